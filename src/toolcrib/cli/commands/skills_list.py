"""`toolcrib skills list`."""

from __future__ import annotations

import click

from toolcrib.cli.output import hint, note, print_json, print_line, print_table
from toolcrib.cli.skill_shelf import open_shelf, skill_as_json
from toolcrib.core.errors import UsageError

MAX_DESCRIPTION_CHARS = 100


@click.command(name="list")
@click.option("--category", metavar="CATEGORY", default="", help="Only those of this category.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(category: str, as_json: bool) -> None:
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
