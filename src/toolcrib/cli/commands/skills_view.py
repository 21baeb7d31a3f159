"""`toolcrib skills view NAME [FILE]`."""

from __future__ import annotations

import os

import click

from toolcrib.cli.output import clean, note, print_line
from toolcrib.cli.skill_shelf import complete_skills, open_shelf, require_skill
from toolcrib.core.errors import UsageError
from toolcrib.skills.skill import SOURCE_LABELS, Skill, SkillError, list_files, read_text


@click.command(name="view")
@click.argument("name", metavar="NAME", shell_complete=complete_skills)
@click.argument("file", metavar="[FILE]", default="")
def command(name: str, file: str) -> None:
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
    if file and (skill.is_single_file or not os.path.exists(skill.folder / file)):  # noqa: PTH110
        advice = f"`toolcrib skills view {skill.name}` names its files"
        raise UsageError(f"the skill {skill.name!r} has no file {file!r}; {advice}")
    print_line(clean(read_text(skill.folder, file or skill.file.name)).rstrip("\n"))
    if file:
        return
    note(f"\nFrom {str(skill.file)!r} ({SOURCE_LABELS[skill.source]}).")
    if skill.hidden_by:
        note(f"It is not offered: hidden by {skill.hidden_by}.")
    if names := _names(skill):
        note(f"Its files: {', '.join(names)}")


def _names(skill: Skill) -> list[str]:
    return [found.path for found in list_files(skill)]
