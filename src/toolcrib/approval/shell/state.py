"""What the analyser knows about the shell at one point in a command line: variables, functions, directory, files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from toolcrib.approval.shell.file_lookup import FileLookup
from toolcrib.approval.shell.model import MAX_PATH, UNKNOWN, ExpandedWord, StreamData

if TYPE_CHECKING:
    from toolcrib.approval.shell.syntax import Command, Substitution

Value = list[ExpandedWord]
"""A variable is a list of fields: one for a string, any number for an array."""

UNKNOWN_VALUE: Value = [ExpandedWord(UNKNOWN)]
WORDS_IN_A_STEP = 4
PATH_CHARACTERS_IN_A_STEP = 1000
CHARACTERS_PASSED_ON = 2000
OPTION_LETTERS_IN_A_STEP = 64
DESCRIPTOR = re.compile(r"/(?:dev|proc/[^/]+)/fd/(.+)")


class ShellState(msgspec.Struct):
    home: str
    cwd: str
    """The current directory: absolute, or relative to where the command line started."""
    cwd_known: bool = True
    variables: dict[str, Value] = msgspec.field(default_factory=dict)
    functions: dict[str, tuple[Command, str]] = msgspec.field(default_factory=dict)
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    positional: list[ExpandedWord] | None = None
    files: dict[str, StreamData] = msgspec.field(default_factory=dict)
    mounts: tuple[tuple[str, str], ...] = ()
    """Paths inside a container and the host paths mounted there; empty outside containers."""
    container: bool = False
    remote: str = ""
    """The host that commands run on, if it is not this one."""
    fetched: tuple[str, ...] = ()
    """Directories that this command line cloned or unpacked from the network."""
    references: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables that refer to others (`declare -n`)."""
    sinks: dict[str, Substitution] = msgspec.field(default_factory=dict)
    """The `>( … )` processes, by the file names that the shell gives them."""
    descriptors: dict[str, StreamData] = msgspec.field(default_factory=dict)
    """What can be read from open file descriptors."""
    outputs: dict[str, str] = msgspec.field(default_factory=dict)
    """The files that open file descriptors write to."""
    many: bool = False
    """True for a command that runs once for each thing that another command found."""
    listing: bool = False
    """True in a loop condition, where `read` takes one thing after another."""
    input: StreamData | None = None
    """The standard input that `exec <file` set for the following commands; not copied to a new state."""

    own: tuple[str, ...] = ()
    """Files and folders of toolcrib, wherever its home is, and the address of its server (`//localhost:PORT`)."""

    stack: tuple[str, ...] = ()
    """The directories that `pushd` left and `popd` goes back to."""
    links: dict[str, str] = msgspec.field(default_factory=dict)
    """Links that this command line made: their paths and where they lead."""
    view: FileLookup | None = None
    """The files of this machine; None where the command would run elsewhere."""
    integers: frozenset[str] = frozenset()
    """Variables that calculate what is assigned to them (`declare -i`)."""

    start: str = ""
    """The directory where the command line started."""

    def copy(self) -> ShellState:
        """An independent copy, as for a subshell."""
        return ShellState(
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
            dict(self.references),
            dict(self.sinks),
            dict(self.descriptors),
            dict(self.outputs),
            self.many,
            self.listing,
            own=self.own,
            stack=self.stack,
            start=self.start,
            links=dict(self.links),
            view=self.view,
            integers=self.integers,
        )

    def assign(self, name: str, value: Value) -> None:
        """Set a variable, or the one that it refers to."""
        self.variables[self.target(name)] = value

    def target(self, name: str) -> str:
        """The variable that a name finally refers to."""
        for _ in range(8):
            if name not in self.references:
                return name
            name = self.references[name]
        return UNKNOWN

    def written(self, path: str, given: str = "") -> StreamData | None:
        """What is known about a file: written here, or an open descriptor; None for a file from elsewhere."""
        found = self.files.get(path) or self.files.get(given)
        if found is None and path.startswith(("/dev/fd/", "/proc/")):
            descriptor = DESCRIPTOR.fullmatch(path)
            if descriptor:
                return self.descriptors.get(descriptor.group(1), StreamData(None))
        return found

    def merge(self, other: ShellState) -> None:
        """Merge what may have happened in `other`: a variable that differs becomes unknown."""
        for name, value in other.variables.items():
            if self.variables.get(name) != value:
                joined = self.variables.get(name) or []
                origin = 0
                for each in (*joined, *value):
                    origin |= each.origin
                self.variables[name] = [ExpandedWord(UNKNOWN, origin=origin)]
        for name in self.variables.keys() - other.variables.keys():
            self.variables[name] = UNKNOWN_VALUE
        if "OLDPWD" in other.variables:
            # It belongs to the directory, which is merged below.
            self.variables["OLDPWD"] = other.variables["OLDPWD"]
        self.functions.update(other.functions)
        self.aliases.update(other.aliases)
        self.files.update(other.files)
        self.references.update(other.references)
        self.sinks.update(other.sinks)
        self.descriptors.update(other.descriptors)
        self.outputs.update(other.outputs)
        self.input = other.input or self.input
        self.integers |= other.integers
        self.links.update(other.links)
        self.fetched = tuple(dict.fromkeys((*self.fetched, *other.fetched)))
        if other.cwd != self.cwd:
            self.cwd, self.cwd_known = other.cwd, other.cwd_known
        if other.positional != self.positional:
            self.positional = None
        if other.stack != self.stack:
            self.stack = ()


def effort(words: list[ExpandedWord], state: ShellState, stdin: StreamData | None) -> int:
    """The steps that judging one command takes: every word may be a path relative to its directory."""
    path_characters = len(words) * len(state.cwd) + sum(min(len(word.text), MAX_PATH) for word in words)
    letters = sum(len(word.text) for word in words if word.text.startswith("-"))
    read = len(stdin.text) if stdin is not None and stdin.text is not None else 0
    return (
        # Looking at the files of this machine takes as long again.
        (1 if state.view is None else 2)
        + len(words) // WORDS_IN_A_STEP
        + path_characters // PATH_CHARACTERS_IN_A_STEP
        + letters // OPTION_LETTERS_IN_A_STEP
        + read // CHARACTERS_PASSED_ON
    )
