"""What the analyser knows about the shell at one point of a command line: variables, functions, directory, files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolcrib.approval.shell.model import UNKNOWN, Data, Field

if TYPE_CHECKING:
    from toolcrib.approval.shell.grammar import Command

Value = list[Field]
"""A variable is a list of fields: one for a string, any number for an array."""

UNKNOWN_VALUE: Value = [Field(UNKNOWN)]


@dataclass(slots=True)
class State:
    home: str
    cwd: str
    """The current directory: absolute, or relative to where the command line started."""
    cwd_known: bool = True
    variables: dict[str, Value] = field(default_factory=dict)
    functions: dict[str, tuple[Command, str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    positional: list[Field] | None = None
    files: dict[str, Data] = field(default_factory=dict)
    mounts: tuple[tuple[str, str], ...] = ()
    """Paths inside a container with the host paths behind them; empty outside of containers."""
    container: bool = False
    remote: str = ""
    """The host that commands run on when it is not this one."""
    fetched: tuple[str, ...] = ()
    """Directories that this command line cloned or unpacked from the network."""
    many: bool = False
    """True for a command that runs once for each of many things that another command found."""

    def copy(self) -> State:
        """A state that changes on its own, as a subshell does."""
        return State(
            self.home,
            self.cwd,
            self.cwd_known,
            dict(self.variables),
            dict(self.functions),
            dict(self.aliases),
            self.positional,
            dict(self.files),
            self.mounts,
            self.container,
            self.remote,
            self.fetched,
            self.many,
        )

    def merge(self, other: State) -> None:
        """Take over what may have happened in `other`: a variable that differs is no longer known."""
        for name, value in other.variables.items():
            if self.variables.get(name) != value:
                joined = self.variables.get(name) or []
                origin = 0
                for each in (*joined, *value):
                    origin |= each.origin
                self.variables[name] = [Field(UNKNOWN, origin=origin)]
        for name in self.variables.keys() - other.variables.keys():
            self.variables[name] = UNKNOWN_VALUE
        self.functions.update(other.functions)
        self.aliases.update(other.aliases)
        self.files.update(other.files)
        self.fetched = tuple(dict.fromkeys((*self.fetched, *other.fetched)))
        if other.cwd != self.cwd:
            self.cwd, self.cwd_known = other.cwd, other.cwd_known
        if other.positional != self.positional:
            self.positional = None
