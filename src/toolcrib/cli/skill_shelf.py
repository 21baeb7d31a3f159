"""The skills that commands speak about: those that a session in the current folder would see."""

from __future__ import annotations

import click

from toolcrib.cli.output import silence
from toolcrib.cli.state import open_runtime
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.skills.catalog import SkillCatalog
from toolcrib.skills.skill import Skill, UnknownSkill


def open_shelf() -> SkillCatalog:
    """All skills, those of plugins too."""
    runtime = open_runtime()
    shelf: SkillCatalog = runtime.context().services.get("skills").catalog(runtime.workspace)
    return shelf


def require_skill(shelf: SkillCatalog, name: str) -> Skill:
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
    with silence():
        try:
            return [skill.name for skill in open_shelf().skills if skill.name.startswith(incomplete)]
        except ToolcribError:
            return []


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
