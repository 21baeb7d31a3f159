"""`toolcrib skills list|view|approve|check`, as a person and as a program see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_program import Program
from toolcrib.config.paths import Home
from toolcrib.skills.authorship import SkillAuthorship

GOOD = "---\nname: brew\ndescription: Make tea.\n---\n\n# Brew\n\nBoil.\n"
BAD = "---\nname: Brew\nversion: 1\n---\n\n```bash\nrm -rf /\n```\n"


@pytest.fixture
def brew(toolcrib: Program) -> Path:
    toolcrib.write("skills/kitchen/brew/references/water.md", "Hot.\n")
    return toolcrib.write("skills/kitchen/brew/SKILL.md", GOOD)


def test_list_shows_where_each_comes_from(toolcrib: Program, brew: Path) -> None:
    """A table for people, objects for programs, and one category where that is asked for."""
    seen = toolcrib("skills", "list")
    assert seen.code == 0
    assert any(line.split()[:3] == ["brew", "kitchen", "user"] for line in seen.stdout.splitlines())
    assert "writing-skills" in seen.stdout
    found = json.loads(toolcrib("skills", "list", "--category", "kitchen", "--json").stdout)
    assert [(one["name"], one["source"], one["path"]) for one in found] == [("brew", "user", str(brew.parent))]
    missing = toolcrib("skills", "list", "--category", "garden")
    assert missing.code == 2
    assert "the categories are: kitchen" in missing.stderr


def test_view_prints_a_skill_or_a_file_of_it(toolcrib: Program, brew: Path) -> None:
    """The text alone on stdout; an unknown name is answered with the nearest."""
    seen = toolcrib("skills", "view", "brew")
    assert seen.stdout == GOOD
    assert "references/water.md" in seen.stderr
    assert toolcrib("skills", "view", "brew", "references/water.md").stdout == "Hot.\n"
    assert "did you mean 'brew'" in toolcrib("skills", "view", "brw").stderr
    outside = toolcrib("skills", "view", "brew", "../../../config.yaml")
    assert outside.code != 0
    assert outside.stdout == ""


def test_check_names_every_problem_and_fails_on_errors(toolcrib: Program, brew: Path) -> None:
    """By name, by path, or all; file, line, severity and rule; exit code 1 for errors alone."""
    assert toolcrib("skills", "check").code == 0
    assert toolcrib("skills", "check", "brew").stdout == "No problems found in 1 skill.\n"
    toolcrib.write("skills/bad/SKILL.md", BAD)
    for target in ("bad", str(toolcrib.home / "skills/bad"), str(toolcrib.home / "skills/bad/SKILL.md")):
        seen = toolcrib("skills", "check", target, "--json")
        assert seen.code == 1
        found = [(one["line"], one["severity"], one["rule"]) for one in json.loads(seen.stdout)]
        assert found == [
            (2, "error", "name"),
            (2, "error", "description"),
            (3, "warning", "fields"),
            (7, "error", "safe"),
        ]
    assert "3 errors, 1 warning." in toolcrib("skills", "check").stderr
    assert toolcrib("skills", "check", "./nowhere").code == 2


def test_a_skill_from_the_scaffold_is_valid(toolcrib: Program) -> None:
    """What `tools new --kind skill` writes passes the check; a name that cannot pass is refused with one that can."""
    assert toolcrib("tools", "new", "make-tea", "--kind", "skill").code == 0
    assert toolcrib("skills", "check", "make-tea").code == 0
    refused = toolcrib("tools", "new", "Make_Tea", "--kind", "skill")
    assert refused.code == 2
    assert "`toolcrib tools new make-tea --kind skill`" in refused.stderr


def test_a_skill_of_an_agent_is_approved_by_name(toolcrib: Program, brew: Path) -> None:
    """Until then `view` says who wrote it; a skill of the person needs no approval."""
    assert "needs no approval" in toolcrib("skills", "approve", "brew").stdout
    SkillAuthorship(Home(toolcrib.home)).record_text(brew, GOOD)
    assert "An agent wrote it" in toolcrib("skills", "view", "brew").stderr

    assert "Approved" in toolcrib("skills", "approve", "brew").stdout

    assert "An agent wrote it" not in toolcrib("skills", "view", "brew").stderr
