"""What a patch asks for, read from its text: the V4A format and unified diffs, told apart by how they look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from toolcrib.core.errors import ToolcribError

Sign = Literal[" ", "-", "+"]
_NO_HEADING = re.compile(r"[\s\d,.…+-]*")


class PatchError(ToolcribError):
    """The text is no patch; says in which line of it, and what was expected."""


@dataclass(frozen=True, slots=True)
class HunkLine:
    """One line of a hunk, without its sign and its end."""

    sign: Sign
    text: str


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """Lines of a file, as they are and as they should be."""

    number: int
    """Counted from 1 in its file."""
    lines: tuple[HunkLine, ...]
    headings: tuple[str, ...] = ()
    """Lines that stand above it, the outer one first."""
    at_end: bool = False
    """Its last old line is the last one of the file."""
    old_line: int | None = None
    """Where its first old line was in the file that the patch was made for; for a hunk without old lines, the line
    that it follows."""
    new_is_open: bool | None = None
    """Whether its last new line has no line end; None where the patch does not say."""

    @property
    def old(self) -> tuple[str, ...]:
        return tuple(line.text for line in self.lines if line.sign != "+")

    @property
    def new(self) -> tuple[str, ...]:
        return tuple(line.text for line in self.lines if line.sign != "-")


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """What a patch does to one file."""

    kind: Literal["add", "update", "delete"]
    path: str
    hunks: tuple[Hunk, ...] = ()
    content: str = ""
    """Of an added file."""
    move_to: str = ""
    mode: int | None = None
    """The permission bits that the file gets, where the patch says so."""

    def touched(self) -> Iterator[tuple[Literal["write", "delete"], str]]:
        """The paths that this writes and deletes, in a fixed order."""
        if self.kind == "delete":
            yield "delete", self.path
        elif self.move_to:
            yield "write", self.move_to
            yield "delete", self.path
        else:
            yield "write", self.path


def heading_of(line: str) -> tuple[str, ...]:
    """The line of the file that a line with `@@` names; none where it has only numbers or dots."""
    heading = line[2:].removeprefix(" ").rstrip().removesuffix("@@").rstrip()
    return () if _NO_HEADING.fullmatch(heading) else (heading,)


class PatchLines:
    """The lines of a patch, one after the other."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self._next_text = _next_text(lines)

    @property
    def more(self) -> bool:
        return self.at < len(self.lines)

    def look(self, ahead: int = 0) -> str:
        """The next line, or one further ahead; empty behind the end."""
        return self.lines[self.at + ahead] if self.at + ahead < len(self.lines) else ""

    def take(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]

    def next_text(self) -> str:
        """The next line that is not blank; empty when there is none."""
        at = self._next_text[self.at] if self.more else len(self.lines)
        return self.lines[at] if at < len(self.lines) else ""

    def error(self, expected: str, *, back: int = 0) -> PatchError:
        """What to raise about the line that comes next, or that was taken `back` lines ago."""
        at = self.at - back
        line = self.lines[at] if 0 <= at < len(self.lines) else ""
        shown = line if len(line) <= 80 else line[:80] + "…"
        return PatchError(f"line {at + 1} of the patch ({shown!r}): {expected}")


def _next_text(lines: list[str]) -> list[int]:
    """For each line the number of the first one from it on that is not blank."""
    found = [len(lines)] * len(lines)
    following = len(lines)
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].strip():
            following = at
        found[at] = following
    return found
