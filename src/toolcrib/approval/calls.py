"""Every single command in a command line, wrapped and nested ones too, and which of them each finding stands on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from toolcrib.approval.shell.model import Assessment, Finding

if TYPE_CHECKING:
    from toolcrib.approval.shell.syntax import Script

UNKNOWN_TEXT = "…"
"""Stands in texts and paths for what only the running shell would know, as in the findings."""


class ProgramCall(msgspec.Struct, frozen=True, kw_only=True):
    """One command that a line would run: its program and words, as they are after quoting and variables."""

    program: str
    words: tuple[str, ...]
    options: frozenset[str]
    operands: tuple[str, ...]
    paths: tuple[str, ...]
    """What the operands and option values would be as paths, absolute where the folder is known."""

    @property
    def text(self) -> str:
        return " ".join((self.program, *self.words))


Stack = tuple[ProgramCall, ...]
"""A command under its wrappers, outermost first: `sudo rm -rf x` is sudo, then rm."""
FindingKey = tuple[str, str, tuple[int, int], tuple[str, ...], str]


class CommandReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a command line would run, and what is dangerous about it."""

    assessment: Assessment
    script: Script | None = None
    """The command line as it was parsed, for whoever reads it again."""
    calls: tuple[ProgramCall, ...] = ()
    stands_on: Mapping[FindingKey, tuple[Stack, ...]] = msgspec.field(default_factory=dict)
    complete: bool = True
    """False where a command may be missing from `calls`: something was not understood, or is only known later."""

    def stacks(self, finding: Finding) -> tuple[Stack, ...]:
        """The commands that a finding is about; none where that is not known."""
        return self.stands_on.get(key_of(finding), ())


def key_of(finding: Finding) -> FindingKey:
    return finding.rule, finding.subcommand, finding.span, finding.paths, finding.reason


class ReadCommand(Protocol):
    """Reads a command line, or one that was parsed already, without running any of it."""

    def __call__(self, command: str | Script, *, cwd: str, home: str, own: tuple[str, ...] = ()) -> CommandReading:
        """`own` are files and folders of toolcrib itself that a home elsewhere than `~/.toolcrib` holds."""
        ...
