"""Every command in a command line, including wrapped and nested ones, and the findings about each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from toolcrib.approval.shell.findings import Assessment, Finding
from toolcrib.core.types import ShellSession

if TYPE_CHECKING:
    from toolcrib.approval.named_files import NamedFiles
    from toolcrib.approval.shell.syntax import Script

UNKNOWN_TEXT = "…"
"""A placeholder in texts and paths for what only the running shell knows, as in findings."""


class ProgramCall(msgspec.Struct, frozen=True, kw_only=True):
    """One command that a line would run: its program and words, with quotes and variables expanded."""

    program: str
    words: tuple[str, ...]
    options: frozenset[str]
    operands: tuple[str, ...]
    paths: tuple[str, ...]
    """The operands and option values as paths, absolute if the folder is known."""
    cwd: str = ""
    """The folder it runs in, absolute or relative to that of the command line; empty if not known."""
    git_dir: str = ""
    """The repository that the variable GIT_DIR names for git."""

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
    """False if `calls` may be incomplete: something was not understood, or is only known at run time."""
    files: NamedFiles
    """The files that it names, and whether it only reads."""

    def stacks(self, finding: Finding) -> tuple[Stack, ...]:
        """The commands that a finding is about; none if that is not known."""
        return self.stands_on.get(key_of(finding), ())


def key_of(finding: Finding) -> FindingKey:
    return finding.rule, finding.subcommand, finding.span, finding.paths, finding.reason


class ReadCommand(Protocol):
    """Reads a command line, parsed or not, without running it."""

    def __call__(
        self,
        command: str | Script,
        *,
        cwd: str,
        home: str,
        own: tuple[str, ...] = (),
        here: bool = False,
        session: ShellSession | None = None,
    ) -> CommandReading:
        """`own` are toolcrib's own files and folders if its home is not `~/.toolcrib`.

        With `here` the command would run on this machine, so links and wildcards are looked up in its files.
        """
        ...
