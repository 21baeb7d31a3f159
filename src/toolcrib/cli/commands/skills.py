"""`toolcrib skills`: lists, prints and checks skills, as a session in the current folder sees them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import clean, hint, note, one_line, plural, print_json, print_line, print_table
from toolcrib.cli.runtime import open_runtime
from toolcrib.config.load import load_settings
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.skills.authorship import SkillAuthorship
from toolcrib.skills.catalog import SkillCatalog, find_in, skill_at
from toolcrib.skills.check import SkillProblem, find_problems
from toolcrib.skills.skill import SKILL_FILE, SOURCE_LABELS, Skill, SkillError, list_files, read_text

group = CommandGroup("skills")
MAX_DESCRIPTION_CHARS = 100


def find_skills() -> SkillCatalog:
    """All skills, including those of plugins."""
    runtime = open_runtime()
    catalog: SkillCatalog = runtime.context().services.skills.catalog(runtime.workspace)
    return catalog


def require_skill(catalog: SkillCatalog, name: str) -> Skill:
    """The skill with this name, even if hidden or disabled; raises UnknownSkill with the nearest names."""
    for skill in catalog.hidden:
        if name == skill.name and not any(one.name == name for one in catalog.skills):
            return skill
    return catalog.get(name, advice="`toolcrib skills list` lists them all")


def complete_skills(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Skill names for the shell."""
    return matching_names(lambda: [skill.name for skill in find_skills().skills], incomplete)


def skill_as_json(skill: Skill) -> JsonObject:
    """A skill as JSON; keys may be added, never removed."""
    return {
        "name": skill.name,
        "description": skill.description,
        "category": skill.category,
        "source": skill.source,
        "path": str(skill.folder),
        "hidden_by": skill.hidden_by,
        "problem": skill.problem,
    }


@group.command("list")
@click.option("--category", metavar="CATEGORY", default="", help="Only skills in this category.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_skills(category: str, as_json: bool) -> None:
    """List the skills and where each comes from.

    If several skills have the same name, yours wins, then those of skills.folders in the config, of plugins, of
    toolcrib, and last the project's.

    Each object of --json has the keys name, description, category, source (user, folder, plugin, bundled or project),
    path, hidden_by (why the agent does not see it, or empty) and problem (why it cannot be read, or empty).
    """
    catalog = find_skills()
    wanted = category.strip("/")
    found = [
        skill
        for skill in (*catalog.skills, *catalog.hidden)
        if not wanted or skill.category == wanted or skill.category.startswith(f"{wanted}/")
    ]
    if wanted and not found:
        known = ", ".join(sorted({skill.category for skill in catalog.skills if skill.category})) or "none"
        advice = "`toolcrib skills list` lists all skills"
        raise UsageError(f"no skill is in the category {category!r}; the categories are: {known}; {advice}")
    if as_json:
        print_json([skill_as_json(skill) for skill in found])
        return
    shown = [skill for skill in found if not skill.hidden_by and not skill.problem]
    rows = [[skill.name, skill.category or "-", skill.source, _short(skill.description)] for skill in shown]
    if rows:
        print_table(["name", "category", "source", "description"], rows)
    else:
        print_line("There are no skills; run `toolcrib tools new NAME --kind skill` to create one.")
    for skill in found:
        if skill.hidden_by:
            note(f"{skill.name} in {str(skill.folder)!r} is hidden by {skill.hidden_by}.")
        elif skill.problem:
            note(f"{skill.name} in {str(skill.folder)!r} cannot be used: {skill.problem}.")
    hint("Run `toolcrib skills view NAME` to print a skill.")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DESCRIPTION_CHARS else line[: MAX_DESCRIPTION_CHARS - 1] + "…"


@group.command("view")
@click.argument("name", metavar="NAME", shell_complete=complete_skills)
@click.argument("file", metavar="[FILE]", default="")
def view_skill(name: str, file: str) -> None:
    """Print a skill or one of its files.

    Prints the text to stdout as it is on disk, and its source and files to stderr.

    \b
    Examples:
      toolcrib skills view writing-skills
      toolcrib skills view release-notes references/format.md
    """
    skill = require_skill(find_skills(), name)
    if skill.problem:
        raise SkillError(f"the skill {skill.name!r} cannot be used: {skill.problem}")
    # Path.exists raises for a name that is too long.
    if file and (skill.is_single_file or not os.path.exists(skill.folder / file)):  # noqa: PTH110
        advice = f"run `toolcrib skills view {skill.name}` to see its files"
        raise UsageError(f"the skill {skill.name!r} has no file {file!r}; {advice}")
    print_line(clean(read_text(skill.folder, file or skill.file.name)).rstrip("\n"))
    if file:
        return
    note(f"\nFrom {str(skill.file)!r} ({SOURCE_LABELS[skill.source]}).")
    if skill.is_unreviewed:
        note(f"An agent wrote it. Run `toolcrib skills approve {skill.name}` if agents should follow it.")
    if skill.hidden_by:
        note(f"The agent does not see it: hidden by {skill.hidden_by}.")
    if names := _names(skill):
        note(f"Files: {', '.join(names)}")


def _names(skill: Skill) -> list[str]:
    return [found.path for found in list_files(skill)]


@group.command("approve")
@click.argument("name", metavar="NAME", shell_complete=complete_skills)
def approve_skill(name: str) -> None:
    """Approve a skill that an agent wrote.

    Until then, the agent gets its text as a quotation that nobody reviewed. Read it first: `toolcrib skills view NAME`.
    """
    skill = require_skill(find_skills(), name)
    if not skill.is_unreviewed:
        print_line(f"The skill {skill.name!r} needs no approval: no agent wrote it, or you have changed it since.")
        return
    SkillAuthorship(load_settings().home).record_review(skill.folder)
    print_line(f"Approved: agents now follow the skill {skill.name!r}.")


@group.command("check")
@click.argument("targets", metavar="[PATH|NAME]...", nargs=-1, shell_complete=complete_skills)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def check_skills(targets: tuple[str, ...], as_json: bool) -> int:
    """Check skills for problems.

    Takes names of skills, skill folders, SKILL.md files, or folders with several skills; the default is all skills
    except toolcrib's own. Checks the format, the files a skill refers to, and looks for prompt injections and dangerous
    commands. Exit code 1 if there is an error; warnings alone give 0.

    \b
    Examples:
      toolcrib skills check
      toolcrib skills check ./skills/release-notes

    Each object of --json has the keys file, line, severity (error or warning), rule and message.
    """
    skills = [skill for target in targets for skill in _meant(target)] if targets else _all(find_skills())
    found = [(skill, problem) for skill in skills for problem in find_problems(skill)]
    if as_json:
        print_json([_as_json(skill, problem) for skill, problem in found])
    else:
        for skill, problem in found:
            location = f"{skill.folder / problem.file}:{problem.line}"
            print_line(one_line(f"{location}: {problem.severity}: {problem.message} [{problem.rule}]"))
        _print_summary(targets, skills, [problem for _, problem in found])
    return 1 if any(problem.severity == "error" for _, problem in found) else 0


def _all(catalog: SkillCatalog) -> list[Skill]:
    return [skill for skill in (*catalog.skills, *catalog.hidden) if skill.source != "bundled"]


def _meant(target: str) -> list[Skill]:
    """The skills for a path or a name; what looks like a path or is an existing folder is a path."""
    path = Path(target).expanduser()
    is_path = os.sep in target or target.startswith((".", "~")) or path.name.lower() == SKILL_FILE.lower()
    if not is_path:
        catalog = find_skills()
        if any(skill.name == target for skill in (*catalog.skills, *catalog.hidden)) or not path.is_dir():
            return [require_skill(catalog, target)]
    folder = path.parent if path.name.lower() == SKILL_FILE.lower() else path
    one = skill_at(folder)
    found = [one] if one is not None else list(find_in(folder, "folder"))
    if not found:
        raise UsageError(f"there is no {SKILL_FILE} in {str(folder)!r}; run `toolcrib skills list` to see all skills")
    return found


def _print_summary(targets: tuple[str, ...], skills: list[Skill], problems: list[SkillProblem]) -> None:
    severities = [problem.severity for problem in problems]
    errors, warnings = severities.count("error"), severities.count("warning")
    if errors or warnings:
        again = " ".join(["toolcrib skills check", *map(shlex.quote, targets)])
        note(f"{plural(errors, 'error')}, {plural(warnings, 'warning')}. Fix them, then run `{again}` again.")
    elif not skills:
        print_line("You have no skills of your own; run `toolcrib tools new NAME --kind skill` to create one.")
    else:
        print_line(f"No problems found in {plural(len(skills), 'skill')}.")


def _as_json(skill: Skill, problem: SkillProblem) -> JsonObject:
    return {
        "file": str(skill.folder / problem.file),
        "line": problem.line,
        "severity": problem.severity,
        "rule": problem.rule,
        "message": problem.message,
    }
