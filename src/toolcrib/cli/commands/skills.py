"""The skills that commands speak about: those that a session in the current folder would see."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import clean, hint, note, one_line, plural, print_json, print_line, print_table
from toolcrib.cli.runtime import open_runtime
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.skills.check import Problem, problems_of
from toolcrib.skills.finder import Shelf, find_in, skill_at
from toolcrib.skills.reading import files_of, read_text
from toolcrib.skills.skill import SKILL_FILE, WHOSE, Skill, SkillError, UnknownSkill

group = CommandGroup("skills")


def open_shelf() -> Shelf:
    """All skills, those of plugins too."""
    runtime = open_runtime()
    shelf: Shelf = runtime.context().services.get("skills").shelf(runtime.workspace)
    return shelf


def require_skill(shelf: Shelf, name: str) -> Skill:
    """The skill of a name, also one that is hidden or disabled; raises UnknownSkill in words for the command line."""
    for skill in shelf.hidden:
        if name == skill.name and not any(one.name == name for one in shelf.skills):
            return skill
    try:
        return shelf.get(name)
    except UnknownSkill:
        known = [skill.name for skill in shelf.skills]
        raise UnknownSkill(name, known, advice="`toolcrib skills list` shows all that are here") from None


def complete_skills(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The names for a shell that completes a word; none where the config cannot be read."""
    return matching_names(lambda: [skill.name for skill in open_shelf().skills], incomplete)


def skill_as_json(skill: Skill) -> JsonObject:
    """The object that programs read about one skill; keys are only ever added."""
    return {
        "name": skill.name,
        "description": skill.description,
        "category": skill.category,
        "source": skill.source,
        "path": str(skill.folder),
        "hidden_by": skill.hidden_by,
        "problem": skill.problem,
    }


MAX_DESCRIPTION_CHARS = 100


@group.command("list")
@click.option("--category", metavar="CATEGORY", default="", help="Only those of this category.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def list_skills(category: str, as_json: bool) -> None:
    """List the skills that are here, and where each comes from.

    Of several skills with the same name the user's own counts, then those of skills.folders in the config, of plugins,
    those that come with toolcrib, and last the project's.

    Each object of --json has the keys name, description, category, source (user, folder, plugin, bundled or project),
    path, hidden_by (why it is not offered, or empty) and problem (why it cannot be read, or empty).
    """
    shelf = open_shelf()
    wanted = category.strip("/")
    found = [
        skill
        for skill in (*shelf.skills, *shelf.hidden)
        if not wanted or skill.category == wanted or skill.category.startswith(f"{wanted}/")
    ]
    if wanted and not found:
        known = ", ".join(sorted({skill.category for skill in shelf.skills if skill.category})) or "none"
        advice = "`toolcrib skills list` shows all skills"
        raise UsageError(f"no skill is in the category {category!r}; the categories are: {known}; {advice}")
    if as_json:
        print_json([skill_as_json(skill) for skill in found])
        return
    shown = [skill for skill in found if not skill.hidden_by and not skill.problem]
    rows = [[skill.name, skill.category or "-", skill.source, _short(skill.description)] for skill in shown]
    if rows:
        print_table(["name", "category", "source", "description"], rows)
    else:
        print_line("There are no skills; `toolcrib tools new NAME --kind skill` writes the first version of one.")
    for skill in found:
        if skill.hidden_by:
            note(f"{skill.name} in {str(skill.folder)!r} is hidden by {skill.hidden_by}.")
        elif skill.problem:
            note(f"{skill.name} in {str(skill.folder)!r} cannot be used: {skill.problem}.")
    hint("`toolcrib skills view NAME` prints one.")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DESCRIPTION_CHARS else line[: MAX_DESCRIPTION_CHARS - 1] + "…"


@group.command("view")
@click.argument("name", metavar="NAME", shell_complete=complete_skills)
@click.argument("file", metavar="[FILE]", default="")
def view_skill(name: str, file: str) -> None:
    """Print one skill, or a file of it.

    The text goes to stdout as it is on the disk; where it comes from, and which files it has, to stderr.

    \b
    Examples:
      toolcrib skills view writing-skills
      toolcrib skills view release-notes references/format.md
    """
    skill = require_skill(open_shelf(), name)
    if skill.problem:
        raise SkillError(f"the skill {skill.name!r} cannot be used: {skill.problem}")
    # Not Path.exists, which raises for a name that is too long.
    if file and (skill.is_alone or not os.path.exists(skill.folder / file)):  # noqa: PTH110
        advice = f"`toolcrib skills view {skill.name}` names its files"
        raise UsageError(f"the skill {skill.name!r} has no file {file!r}; {advice}")
    print_line(clean(read_text(skill.folder, file or skill.file.name)).rstrip("\n"))
    if file:
        return
    note(f"\nFrom {str(skill.file)!r} ({WHOSE[skill.source]}).")
    if skill.hidden_by:
        note(f"It is not offered: hidden by {skill.hidden_by}.")
    if names := _names(skill):
        note(f"Its files: {', '.join(names)}")


def _names(skill: Skill) -> list[str]:
    return [found.path for found in files_of(skill)]


@group.command("check")
@click.argument("targets", metavar="[PATH|NAME]...", nargs=-1, shell_complete=complete_skills)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def check_skills(targets: tuple[str, ...], as_json: bool) -> int:
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
    found = [(skill, problem) for skill in skills for problem in problems_of(skill)]
    if as_json:
        print_json([_as_json(skill, problem) for skill, problem in found])
    else:
        for skill, problem in found:
            place = f"{skill.folder / problem.file}:{problem.line}"
            print_line(one_line(f"{place}: {problem.severity}: {problem.message} [{problem.rule}]"))
        _print_summary(targets, skills, [problem for _, problem in found])
    return 1 if any(problem.severity == "error" for _, problem in found) else 0


def _all(shelf: Shelf) -> list[Skill]:
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


def _print_summary(targets: tuple[str, ...], skills: list[Skill], problems: list[Problem]) -> None:
    severities = [problem.severity for problem in problems]
    errors, warnings = severities.count("error"), severities.count("warning")
    if errors or warnings:
        again = " ".join(["toolcrib skills check", *map(shlex.quote, targets)])
        note(f"{plural(errors, 'error')}, {plural(warnings, 'warning')}. Correct them, then type `{again}` again.")
    elif not skills:
        print_line("There are no skills of your own; `toolcrib tools new NAME --kind skill` writes one.")
    else:
        print_line(f"Nothing to change in {plural(len(skills), 'skill')}.")


def _as_json(skill: Skill, problem: Problem) -> JsonObject:
    return {
        "file": str(skill.folder / problem.file),
        "line": problem.line,
        "severity": problem.severity,
        "rule": problem.rule,
        "message": problem.message,
    }
