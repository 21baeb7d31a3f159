"""The skills as the prompt names them: names and descriptions, never the texts."""

from __future__ import annotations

from collections.abc import Iterable

from toolcrib.config.settings import Settings
from toolcrib.sessions.injection_scan import threat_in
from toolcrib.skills.finder import Plugin, find_skills
from toolcrib.skills.skill import Skill

MAX_SKILLS = 200
MAX_DESCRIPTION_CHARS = 240
MAX_INDEX_CHARS = 16_000
HEAD = "# Skills\n\nInstructions for particular kinds of work; open one with skill_view before you do such work.\n"
OF_THE_PROJECT = "\nFrom this project's own folder, which nobody has checked:\n"


def skills_index(settings: Settings, cwd: str, plugins: Iterable[Plugin] = ()) -> str:
    """The skills that can be opened with `skill_view`, a line each; empty when there are none."""
    skills = find_skills(settings, cwd, plugins).skills
    if not skills:
        return ""
    checked = [skill for skill in skills if skill.is_checked]
    of_project = [skill for skill in skills if not skill.is_checked]
    lines: list[str] = [HEAD]
    room = MAX_INDEX_CHARS
    shown = 0
    for head, group in (("", checked), (OF_THE_PROJECT, of_project)):
        if group and head:
            lines.append(head)
        for skill in group:
            line = f"- {skill.name}: {short_description(skill)}".rstrip(": ")
            room -= len(line)
            if room < 0 or shown == MAX_SKILLS:
                break
            shown += 1
            lines.append(line)
    if shown < len(skills):
        lines.append(f"\n{len(skills) - shown} more are not named here; skills_list shows them.")
    return "\n".join(lines)


def short_description(skill: Skill) -> str:
    """What a skill says of itself, in one line; of one that nobody checked nothing that gives the model orders."""
    text = " ".join(skill.description.split())
    if not skill.is_checked and threat_in(text):
        return "(its description is left out, because it tries to give you orders)"
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 1] + "…"
