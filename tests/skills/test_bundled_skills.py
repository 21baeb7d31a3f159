"""The skills that come with toolcrib: valid, harmless, short, and true to the tools that they name."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from toolcrib.registry.default import registry
from toolcrib.registry.discovery import load_builtin_tools
from toolcrib.skills.catalog import BUNDLED, find_in
from toolcrib.skills.check import find_problems
from toolcrib.skills.skill import Skill, read_text

SKILLS = list(find_in(BUNDLED, "bundled"))
# Of tools that a bundled skill names: the parameters that each has.
PARAMETERS = {
    "read_file": "path offset limit",
    "write_file": "path content",
    "patch": "mode path old_string new_string replace_all patch",
    "search_files": "pattern target path file_glob limit offset output_mode context",
    "execute_code": "code",
    "terminal": "command background timeout workdir pty notify_on_complete watch_patterns",
    "process": "action session_id data timeout offset limit",
    "todo": "todos merge",
    "memory": "target action content old_text operations",
    "clarify": "question choices",
    "delegate_task": "goal context tasks role background",
    "cronjob": "action job_id prompt schedule name repeat deliver skills model script no_agent context_from "
    "enabled_toolsets workdir attach_to_session",
    "skills_list": "category",
    "skill_view": "name file_path",
    "skill_manage": "action name content old_string new_string replace_all category file_path file_content "
    "absorbed_into",
}
PYTHON = {"float"}
CALL = re.compile(r"`([a-z]+(?:_[a-z]+)*)\(([^`]*)\)")
ARGUMENT = re.compile(r"(?:^|, )([a-z_]+)=")


def by_name(skill: Skill) -> str:
    return skill.name


def test_there_is_a_handful() -> None:
    """Few enough to be read in every prompt."""
    assert 5 <= len(SKILLS) <= 7


@pytest.mark.parametrize("skill", SKILLS, ids=by_name)
def test_nothing_is_wrong_with_it(skill: Skill) -> None:
    """It passes the check that others are held to, and is short."""
    assert find_problems(skill) == []
    assert len(skill.description) <= 240
    assert len(read_text(skill.folder, "SKILL.md").splitlines()) <= 120


@pytest.mark.parametrize("skill", SKILLS, ids=by_name)
def test_tools_and_parameters_exist(skill: Skill) -> None:
    """Every call that a skill shows could be made as it is shown."""
    load_builtin_tools()
    calls = CALL.findall(read_text(skill.folder, "SKILL.md"))
    assert calls
    for tool, arguments in calls:
        if tool in PYTHON:
            continue
        assert tool in PARAMETERS, f"{tool} is no tool"
        named = ARGUMENT.findall(arguments)
        assert named or not arguments.strip("."), f"{tool}({arguments}) names no parameters"
        assert set(named) <= set(PARAMETERS[tool].split())
        entry = registry.get_entry(tool)
        if entry is not None:
            properties = entry.parameters["properties"]
            assert set(named) <= set(properties)
            for key, value in re.findall(r'([a-z_]+)="([a-z_]+)"', arguments):
                assert value in properties[key].get("enum", [value])


@pytest.mark.parametrize("skill", SKILLS, ids=by_name)
def test_commands_of_toolcrib_exist(skill: Skill) -> None:
    """What it tells to type is a command."""
    from toolcrib.cli.app import make_root
    from toolcrib.cli.group import CommandGroup

    root = make_root()
    context = click.Context(root)
    for words in re.findall(
        r"(?<![\w/.])(?<!from )toolcrib ([a-z]+)(?: ([a-z]+))?", read_text(skill.folder, "SKILL.md")
    ):
        group = root.get_command(context, words[0])
        if isinstance(group, CommandGroup):
            assert words[1] in group.summaries(), words


def test_schedules_that_are_shown_can_be_used() -> None:
    """Each row of the table about schedules is one."""
    from toolcrib.cron.schedule import parse_schedule

    rows = re.findall(r"^ *\| `([^`]+)` \|", read_text(BUNDLED / "scheduled-jobs", "SKILL.md"), re.MULTILINE)
    assert len(rows) >= 4
    for row in rows:
        assert parse_schedule(row, UTC, datetime(2026, 1, 1, tzinfo=UTC).timestamp())


def python_in(name: str) -> str:
    text = read_text(BUNDLED / name, "SKILL.md")
    return textwrap.dedent(re.findall(r"^( *)```python\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)[0][1])


def test_the_tool_that_is_shown_works(tmp_path: Path) -> None:
    """It loads, and the check for authors has nothing to say about it."""
    from toolcrib.cli.commands.tools_authoring import lint_file

    file = tmp_path / "tides.py"
    file.write_text(python_in("writing-a-tool"))
    assert lint_file(file) == (["tides"], [])


def test_the_overview_that_is_shown_works(tmp_path: Path) -> None:
    """The script prints rows, columns and what is empty."""
    (tmp_path / "data.csv").write_text("city,tea\nLeer,3\nEmden,\n")
    code = python_in("data-analysis")
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.startswith("2 rows; columns: ['city', 'tea']")
    assert "tea | empty: 1" in done.stdout


def test_they_are_part_of_the_package() -> None:
    """They lie inside the package, so that the wheel has them."""
    import toolcrib

    assert Path(toolcrib.__file__).parent in BUNDLED.parents
