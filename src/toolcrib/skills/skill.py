"""One skill: a folder with a SKILL.md, and where it comes from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from toolcrib.core.errors import ToolcribError, UnknownName

SKILL_FILE = "SKILL.md"
MAX_NAME_CHARS = 64
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
NAME_RULE = "lower-case letters and digits, with single hyphens between them"

Source = Literal["user", "folder", "plugin", "bundled", "project"]
WHOSE: dict[Source, str] = {
    "user": "the user's own",
    "folder": "a folder in the settings",
    "plugin": "a plugin",
    "bundled": "comes with toolcrib",
    "project": "the project's folder, which nobody has checked",
}


class SkillError(ToolcribError):
    """A skill cannot be read or changed; says which one, why, and what to do."""


class UnknownSkill(UnknownName):
    kind = "skill"


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a skill before it is opened."""

    name: str
    description: str
    source: Source
    folder: Path
    """Without links."""
    file: Path
    """Its SKILL.md."""
    category: str = ""
    is_alone: bool = False
    """A file without a folder of its own, so that nothing beside it belongs to it."""
    is_linked: bool = False
    """A link leads to its folder."""
    problem: str = ""
    """Why it cannot be used; empty when it can."""
    hidden_by: str = ""
    """Why it is not offered: a skill of the same name, or the settings."""

    @property
    def is_checked(self) -> bool:
        """Whether somebody whom the user trusts has put it there."""
        return self.source != "project"


def is_valid_name(name: str) -> bool:
    """Whether a name keeps the rules of the format."""
    return len(name) <= MAX_NAME_CHARS and NAME.fullmatch(name) is not None
