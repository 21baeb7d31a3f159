"""Where commands run: an Environment is a place with a shell session, an Engine starts programs in such a place.

A backend is an Engine: it opens a place, starts programs in it and carries their bytes. Everything that a command needs
beyond that (its session's variables and folder, time limits, ending the whole tree, background output that survives us,
files) is built once over the Engine, so that a command behaves the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NewType, Protocol

from toolcrib.core.types import Effect, EffectKind

BackendPath = NewType("BackendPath", str)
"""A path inside a backend. A path of this machine is a `pathlib.Path`; the two are never mixed up."""

OnOutput = Callable[[bytes], None]

TIMED_OUT = 124
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSize:
    rows: int = 30
    columns: int = 120


class EngineProcess(Protocol):
    """One program that an Engine started. Its output goes to the `on_output` that it was started with."""

    @property
    def pid(self) -> int | None:
        """Its process id on this machine, where it is a process of this machine."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes to its standard input; returns when they are taken. One that has ended raises BrokenPipeError."""
        ...

    async def close_input(self) -> None:
        """End its standard input. Harmless when repeated, or when it has ended."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Change the size of its terminal; nothing happens without one."""
        ...

    async def wait(self) -> int:
        """Its exit code (128 + N for signal N), when it has ended and its output so far has been handed over.

        Does not wait for children of it that keep the output open. May be called often, by many.
        """
        ...

    async def abandon(self) -> None:
        """Let go of its streams on this side, now. What it does afterwards is not watched any more."""
        ...


class Engine(Protocol):
    """A place that programs can be started in. Used on one event loop only."""

    kind: str
    """The name of the backend in the settings: local, docker …"""
    shell: str
    """The bash in that place, as a path or name that `spawn` understands."""
    spare_shells: int
    """How many shells are started ahead of the next command. None where a waiting program costs money."""

    @property
    def temporary(self) -> BackendPath:
        """A folder in the place for temporary files; known when it is open."""
        ...

    @property
    def isolated(self) -> bool:
        """Nothing of this machine can be harmed from inside, except through what was mounted on purpose."""
        ...

    async def open(self) -> None:
        """Make the place ready; raises EnvironmentFailed saying what is missing and what to do."""
        ...

    async def close(self) -> None:
        """Give everything back: processes, containers, connections, files. Harmless when repeated."""
        ...

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> EngineProcess:
        """Start a program with open standard input; standard output and error go to `on_output`, on this loop.

        With `terminal` it runs on a pseudo-terminal of that size. Its folder is any that exists, its environment the
        place's own; it leads a session and process group of its own where the place can do that.
        """
        ...

    def address(self) -> Mapping[str, str]:
        """What another process needs to find this place again after a crash: plain texts, no secrets."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """One command to run in the shell session of an environment."""

    command: str
    mode: Literal["foreground", "background"] = "foreground"
    """A background command keeps its output inside the place, so that it outlives this process, and its standard input
    stays open. Only a foreground command without a terminal changes the session's folder, variables and functions."""
    terminal: TerminalSize | None = None
    cwd: BackendPath | None = None
    """The folder to start in; None means the session's."""
    stdin: bytes | None = None
    """What a foreground command reads; without it, it reads nothing (end of file at once)."""
    open_input: bool = False
    """The input of a foreground command stays open, for `Execution.write`, until it is closed."""
    id: str = ""
    """Letters, digits, `_` and `-`; made up when empty. Processes of the command are found again by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A process that a finished command left running."""

    pid: int
    """Inside the backend."""
    command: str


EndReason = Literal["exited", "killed", "lost", "no_folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    exit_code: int
    reason: EndReason = "exited"
    """`killed` by us; `lost`: the place or the connection went away; `no_folder`: its folder does not exist there."""
    cwd: BackendPath | None = None
    """The session's folder afterwards, if this command decides that."""
    left_behind: tuple[LeftBehind, ...] = ()
    note: str = ""
    """A sentence for people and models about something odd: the session's folder had vanished …"""


class Execution(Protocol):
    """A command on its way, or ended."""

    @property
    def id(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """The process id inside the backend, where it is known."""
        ...

    async def wait(self) -> Ended:
        """How it ended. Cancelling this does not stop the command. Returns when the command itself has ended, also
        while children of it keep the output open."""
        ...

    async def write(self, data: bytes) -> None:
        """Type something; raises BrokenPipeError when nobody can read it any more."""
        ...

    async def close_input(self) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        """End its whole tree, what it left behind included: TERM, after a while KILL; returns when none is left."""
        ...

    async def settled(self) -> None:
        """Returns when nothing of it runs any more, what it left behind included."""
        ...

    async def waits_for_input(self) -> bool:
        """Whether a process of it is reading from its terminal or standard input right now, as far as can be seen."""
        ...

    async def abandon(self) -> None:
        """Stop listening; the command goes on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    kind: Literal["file", "folder", "link", "other"]
    """`link` only where links are not followed."""
    size: int
    mode: int
    """Permission bits."""
    real: BackendPath = BackendPath("")
    """The path with every link on the way followed; for a link itself, every link above it."""
    link: str = ""
    """Of a link: what it says, as it is written."""
    stamp: str = ""
    """Differs when the file was written to or replaced, as far as the place can tell; empty where it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """Some lines of a file."""

    data: bytes
    """Whole lines with their ends, except that the last one is cut where `max_bytes` was reached."""
    first: int
    """The number of the first line, counted from 1."""
    status: FileStatus
    at_end: bool
    """Nothing of the file follows."""
    total_lines: int | None = None
    """How many lines the file has, where that was cheap to know."""


class Environment(Protocol):
    """A place with one shell session, which all its commands share. Used on one event loop only."""

    kind: str

    @property
    def isolated(self) -> bool: ...

    @property
    def cwd(self) -> BackendPath:
        """The folder that the next command starts in."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """End every command of it, background ones too, and give the place back."""
        ...

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        """Start a command. What it prints arrives in `on_output`, on this loop, merged and in order."""
        ...

    async def reattach(self, command_id: str, on_output: OnOutput, *, offset: int = 0) -> Execution | None:
        """A background command of an earlier process of ours, its output from `offset` on; None when there is none."""
        ...

    async def spawn(self, argv: Sequence[str], *, on_output: OnOutput) -> EngineProcess:
        """Start a program beside the session, with an open standard input; see `Engine.spawn`."""
        ...

    # Files. Relative paths start at `cwd`, `~` at the home there. `plain=True` says that the path was looked at and is
    # free of links: one that turns up on the way, or at its end, raises PathChanged, so that nothing that was agreed to
    # for one place happens in another. What is neither a file nor a folder is never opened: OSError, without waiting.

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        """The content of a file; raises FileNotFoundError, IsADirectoryError, PermissionError."""
        ...

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        """Lines `first` to `first + count - 1`, at most so many bytes, without reading what follows them."""
        ...

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        """Put a file in its place in one step, folders above it included; mode and owner of an old one are kept.

        `expected` is the SHA-256 in hex of what must be there now, or "" for nothing; raises PathChanged otherwise.
        """
        ...

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        """Remove a file, or a link itself; `expected` as in `write_file`. A folder raises IsADirectoryError."""
        ...

    async def remove_folder(self, path: BackendPath) -> None:
        """Remove an empty folder; raises OSError when something is in it."""
        ...

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        """Make a folder, those above it included; one that is there already keeps its mode."""
        ...

    async def make_link(self, path: BackendPath, target: str) -> None:
        """Put a symbolic link in its place in one step; replaces a file or link that is there."""
        ...

    async def list_folder(self, path: BackendPath) -> list[str]:
        """The names in a folder, sorted."""
        ...

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        """What is at a path; None when nothing is."""
        ...

    async def upload(self, source: Path, target: BackendPath) -> None:
        """Copy a file or folder of this machine into the place, modes kept, owned by the user of the place."""
        ...

    async def download(self, source: BackendPath, target: Path) -> None:
        """Copy a file or folder out of the place, modes kept, owned by us."""
        ...

    def address(self) -> Mapping[str, str]:
        """How another process finds the place again: `kind`, `folder` and what the engine adds; no secrets."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """Which environment a task wants. Two tasks share one only if all of this is equal."""

    backend: str
    session: str
    """Whose environment it is: one session never gets another's."""
    image: str = ""
    host: str = ""
    user: str = ""
    cwd: str = ""
    """The folder that its shell starts in; empty means the backend's usual one."""
    options: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """Whether a backend can be used here."""

    kind: str
    usable: bool
    detail: str
    """What is in force ("bubblewrap 0.8.0"), or what is missing."""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that an earlier process of ours made in a backend and that is still there."""

    kind: str
    """The backend's name and what it is: docker container, sandbox folder …"""
    name: str
    """How the backend calls it; enough for that backend's `remove` to find it again."""
    detail: str
    """For people: the image, since when, whose."""
    owner_alive: bool
    """Whether the process that made it still runs. Only what has lost its owner may be removed unasked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTarget:
    """Where a call of a session runs, as far as that is known without opening an environment."""

    spec: EnvironmentSpec
    folder: str
    """Where relative paths start; empty where only the environment knows it."""
    isolated: bool
    """What happens there cannot leave it, except through the network."""
    is_here: bool
    """Its paths are paths of this machine."""

    def effect(self, kind: EffectKind, target: str, folder: str = "") -> Effect:
        """An effect in this environment."""
        folder = folder or self.folder
        if self.is_here:
            return Effect(kind, target, folder, isolated=self.isolated and kind != "exec")
        return Effect(kind, target, folder, self.spec.backend, self.isolated, self.spec.cwd)
