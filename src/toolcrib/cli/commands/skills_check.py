"""`toolcrib skills check [PATH|NAME]...`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from toolcrib.cli.output import note, one_line, plural, print_json, print_line
from toolcrib.cli.skill_shelf import complete_skills, open_shelf, require_skill
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.skills.catalog import SkillCatalog, find_in, skill_at
from toolcrib.skills.check import SkillProblem, find_problems
from toolcrib.skills.skill import SKILL_FILE, Skill


@click.command(name="check")
@click.argument("targets", metavar="[PATH|NAME]...", nargs=-1, shell_complete=complete_skills)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(targets: tuple[str, ...], as_json: bool) -> int:
    """Say what is wrong with a skill.

    Takes the name of a skill, its folder, its SKILL.md, or a folder with several; without any, checks all skills but
    those that come with toolcrib. Looks at the format, at the files that a skill names, and for orders to the model
    and dangerous commands. Exit code 1 when there is an error; warnings alone are 0.

    \b
    Examples:
      toolcrib skills check
      toolcrib skills check ./skills/release-notes

    Each object of --json has the keys file, line, severity (error or warning), rule and message.
    """
    skills = [skill for target in targets for skill in _meant(target)] if targets else _all(open_shelf())
    found = [(skill, problem) for skill in skills for problem in find_problems(skill)]
    if as_json:
        print_json([_as_json(skill, problem) for skill, problem in found])
    else:
        for skill, problem in found:
            place = f"{skill.folder / problem.file}:{problem.line}"
            print_line(one_line(f"{place}: {problem.severity}: {problem.message} [{problem.rule}]"))
        _print_summary(targets, skills, [problem for _, problem in found])
    return 1 if any(problem.severity == "error" for _, problem in found) else 0


def _all(shelf: SkillCatalog) -> list[Skill]:
    return [skill for skill in (*shelf.skills, *shelf.hidden) if skill.source != "bundled"]


def _meant(target: str) -> list[Skill]:
    """The skills that a path or a name stands for; what looks like a path, or is a folder here, is one."""
    path = Path(target).expanduser()
    is_path = os.sep in target or target.startswith((".", "~")) or path.name.lower() == SKILL_FILE.lower()
    if not is_path:
        shelf = open_shelf()
        if any(skill.name == target for skill in (*shelf.skills, *shelf.hidden)) or not path.is_dir():
            return [require_skill(shelf, target)]
    folder = path.parent if path.name.lower() == SKILL_FILE.lower() else path
    one = skill_at(folder)
    found = [one] if one is not None else list(find_in(folder, "folder"))
    if not found:
        raise UsageError(f"there is no {SKILL_FILE} in {str(folder)!r}; `toolcrib skills list` shows all skills")
    return found


def _print_summary(targets: tuple[str, ...], skills: list[Skill], problems: list[SkillProblem]) -> None:
    severities = [problem.severity for problem in problems]
    errors, warnings = severities.count("error"), severities.count("warning")
    if errors or warnings:
        again = " ".join(["toolcrib skills check", *map(shlex.quote, targets)])
        note(f"{plural(errors, 'error')}, {plural(warnings, 'warning')}. Correct them, then type `{again}` again.")
    elif not skills:
        print_line("There are no skills of your own; `toolcrib tools new NAME --kind skill` writes one.")
    else:
        print_line(f"Nothing to change in {plural(len(skills), 'skill')}.")


def _as_json(skill: Skill, problem: SkillProblem) -> JsonObject:
    return {
        "file": str(skill.folder / problem.file),
        "line": problem.line,
        "severity": problem.severity,
        "rule": problem.rule,
        "message": problem.message,
    }
