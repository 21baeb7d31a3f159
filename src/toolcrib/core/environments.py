"""Where commands run: an Environment has a shell session, an Engine starts the programs behind it.

A backend provides an Engine: it starts programs somewhere and transfers their bytes. Everything else that a command
needs (the session's variables and folder, time limits, ending the whole process tree, background output that outlives
toolcrib, files) is built once on top of the Engine, so commands behave the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NewType, Protocol

from msgspec import Struct

from toolcrib.core.types import Effect, EffectKind, ShellSession

BackendPath = NewType("BackendPath", str)
"""A path inside an environment. A path on this machine is a `pathlib.Path`; the types keep them apart."""

OnOutput = Callable[[bytes], None]

TIMED_OUT = 124
INTERRUPTED = 130


class TerminalSize(Struct, frozen=True, kw_only=True):
    rows: int = 30
    columns: int = 120


class EngineProcess(Protocol):
    """A program that an Engine started. Its output goes to the `on_output` it was started with."""

    @property
    def pid(self) -> int | None:
        """Its process id, if it runs on this machine."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes to its standard input; returns when they are accepted. Raises BrokenPipeError if it has ended."""
        ...

    async def close_input(self) -> None:
        """Close its standard input. Idempotent, and allowed after its end."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Change the size of its terminal; does nothing without one."""
        ...

    async def wait(self) -> int:
        """Its exit code (128 + N for signal N), once it has ended and its output so far has been delivered.

        Does not wait for children that hold the output open. May be called repeatedly and concurrently.
        """
        ...

    async def abandon(self) -> None:
        """Close its streams on this side at once. It is no longer watched."""
        ...


class Engine(Protocol):
    """Starts programs somewhere: in a container, on another machine … Used on one event loop only."""

    kind: str
    """The backend's name in the settings: local, docker …"""
    shell: str
    """The bash to use, as a path or name that `spawn` understands."""
    shell_pool_size: int
    """How many idle shells to keep ready for the next commands; 0 if an idle program costs money."""

    @property
    def temporary(self) -> BackendPath:
        """A folder for temporary files inside; known once open."""
        ...

    @property
    def isolated(self) -> bool:
        """Whether programs inside cannot harm this machine, except through deliberate mounts."""
        ...

    async def open(self) -> None:
        """Get ready to start programs; raises EnvironmentFailed, which says what is missing and how to fix it."""
        ...

    async def close(self) -> None:
        """Release everything: processes, containers, connections, files. Idempotent."""
        ...

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> EngineProcess:
        """Start a program with open standard input; standard output and error go to `on_output`, on this loop.

        With `terminal` it runs on a pseudo-terminal of that size. It starts in any existing folder, with the
        environment's own variables, and leads its own session and process group if possible.
        """
        ...

    def address(self) -> Mapping[str, str]:
        """What another toolcrib process needs to find this engine after a crash: plain strings, no secrets."""
        ...


class CommandRequest(Struct, frozen=True, kw_only=True):
    """One command to run in the shell session of an environment."""

    command: str
    mode: Literal["foreground", "background"] = "foreground"
    """A background command keeps its output inside the environment, where it outlives this process, and its
    standard input stays open. Only a foreground command without a terminal changes the session's folder, variables and
    functions."""
    terminal: TerminalSize | None = None
    cwd: BackendPath | None = None
    """The start folder; None means the session's."""
    stdin: bytes | None = None
    """The input of a foreground command; None means immediate end of file."""
    open_input: bool = False
    """Keep the input of a foreground command open for `Execution.write` until it is closed."""
    id: str = ""
    """Letters, digits, `_` and `-`; generated if empty. Identifies the processes of the command."""
    by_person: bool = False
    """A person types in it, so a toolcrib started from it is a person's."""


class TypingTarget(Struct, frozen=True, kw_only=True):
    """A running process that text is typed into."""

    command: str
    """The command line that it was started with."""
    readers: tuple[str, ...] = ()
    """The command lines of the programs that may read the text now, as far as that is visible from outside."""
    typed: str = ""
    """The latest of what was typed so far."""
    forgot_typed: bool = False
    """Whether more was typed before that, which may have changed what names and folders mean."""
    has_terminal: bool = False
    cwd: str = ""


class OrphanedProcess(Struct, frozen=True, kw_only=True):
    """A process that a finished command left running."""

    pid: int
    """Inside the environment."""
    command: str


EndReason = Literal["exited", "killed", "lost", "no_folder"]


class CommandExit(Struct, frozen=True, kw_only=True):
    """How a command ended."""

    exit_code: int
    reason: EndReason = "exited"
    """`killed` by us; `lost`: the environment or connection was lost; `no_folder`: its folder does not exist there."""
    cwd: BackendPath | None = None
    """The session's folder afterwards, if this command changes the session."""
    orphans: tuple[OrphanedProcess, ...] = ()
    note: str = ""
    """A message for people and models about something unusual: the session's folder no longer exists …"""


class Execution(Protocol):
    """A command that runs or has ended."""

    @property
    def id(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """The process id inside the environment, if known."""
        ...

    async def wait(self) -> CommandExit:
        """How it ended. Returns when the command itself has ended, even if children hold the output open. Cancelling
        this does not stop the command."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to its input; raises BrokenPipeError if the reading end is closed."""
        ...

    async def close_input(self) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        """End its whole process tree, including orphans: TERM, later KILL. Returns when all have ended."""
        ...

    async def settled(self) -> None:
        """Wait until all of its processes have ended, including orphans."""
        ...

    async def waits_for_input(self) -> bool:
        """Whether one of its processes is reading its terminal or standard input right now, as far as we can tell."""
        ...

    async def abandon(self) -> None:
        """Stop listening; the command continues."""
        ...


class FileStatus(Struct, frozen=True, kw_only=True):
    kind: Literal["file", "folder", "link", "other"]
    """`link` only if links are not followed."""
    size: int
    mode: int
    """Permission bits."""
    real: BackendPath = BackendPath("")
    """The path with all links resolved; for a link itself, the links in its parent folders."""
    link: str = ""
    """The target of a link, as written."""
    stamp: str = ""
    """Changes when the file is written or replaced, as far as the environment can tell; empty if it cannot."""


EVERY_LINE = 2**31 - 1
"""As the `count` of `read_lines`: all of them. Who takes them all can count them, so `total_lines` may be missing."""


class FileSlice(Struct, frozen=True, kw_only=True):
    """Some lines of a file."""

    data: bytes
    """Complete lines with their newlines; the last one is truncated if `max_bytes` was reached."""
    first: int
    """The number of the first line, starting at 1."""
    status: FileStatus
    at_end: bool
    """The file ends here."""
    total_lines: int | None = None
    """How many lines the file has, if that was cheap to find out."""


class Environment(Protocol):
    """Where commands run: one shell session that all of them share. Used on one event loop only."""

    kind: str

    @property
    def isolated(self) -> bool: ...

    @property
    def cwd(self) -> BackendPath:
        """The start folder of the next command."""
        ...

    async def session(self) -> ShellSession | None:
        """What the session's shell knows from earlier commands; None if the environment does not tell."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """End all its commands, including background ones, and release everything."""
        ...

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        """Start a command. Its output goes to `on_output`, on this loop, merged and in order."""
        ...

    async def reattach(self, command_id: str, on_output: OnOutput, *, offset: int = 0) -> Execution | None:
        """A background command of an earlier toolcrib process, with its output from `offset` on; None if unknown."""
        ...

    async def spawn(self, argv: Sequence[str], *, on_output: OnOutput) -> EngineProcess:
        """Start a program outside the session, with open standard input; see `Engine.spawn`."""
        ...

    # Files. Relative paths start at `cwd`, `~` at the home there. With `plain=True` the caller has checked that the
    # path is free of links: a link anywhere in it raises PathChanged, so an approval for one path never applies to
    # another. Only files and folders are opened; anything else raises OSError without blocking.

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        """The content of a file; raises FileNotFoundError, IsADirectoryError, PermissionError."""
        ...

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        """Lines `first` to `first + count - 1`, at most `max_bytes`, without reading what follows."""
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
        """Write a file atomically and create its parent folders; an existing file keeps its mode and owner.

        `expected` is the SHA-256 in hex of the current content, or "" for no file; raises PathChanged otherwise.
        """
        ...

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        """Remove a file or a link (not its target); `expected` as in `write_file`; raises IsADirectoryError."""
        ...

    async def remove_folder(self, path: BackendPath) -> None:
        """Remove an empty folder; raises OSError if it is not empty."""
        ...

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        """Create a folder and its parents; an existing one keeps its mode."""
        ...

    async def make_link(self, path: BackendPath, target: str) -> None:
        """Create a symbolic link atomically; replaces an existing file or link."""
        ...

    async def list_folder(self, path: BackendPath) -> list[str]:
        """The names in a folder, sorted."""
        ...

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        """The status of a path; None if nothing is there."""
        ...

    async def upload(self, source: Path, target: BackendPath) -> None:
        """Copy a file or folder from this machine into the environment; keeps modes; the user inside owns the copy."""
        ...

    async def download(self, source: BackendPath, target: Path) -> None:
        """Copy a file or folder out of the environment; keeps modes; we own the copy."""
        ...

    def address(self) -> Mapping[str, str]:
        """How another process finds this environment: `kind`, `folder` and the engine's own keys; no secrets."""
        ...


class EnvironmentSpec(Struct, frozen=True, kw_only=True):
    """Which environment a task wants. Two tasks share one only if all fields are equal."""

    backend: str
    session: str
    """The owner: a session never gets another one's environment."""
    task: str = ""
    """The task of the session that it belongs to; empty for the session's own environment."""
    image: str = ""
    host: str = ""
    user: str = ""
    cwd: str = ""
    """The start folder of its shell; empty means the backend's default."""
    options: tuple[tuple[str, str], ...] = ()


class BackendStatus(Struct, frozen=True, kw_only=True):
    """Whether a backend can be used here."""

    kind: str
    usable: bool
    detail: str
    """What was found ("bubblewrap 0.8.0"), or what is missing."""
    remedy: str = ""


class Leftover(Struct, frozen=True, kw_only=True):
    """Something that an earlier toolcrib process created in a backend and that still exists."""

    kind: str
    """The backend's kind and what it is: docker container, sandbox folder …"""
    name: str
    """Its name in the backend; enough for the backend's `remove` to find it."""
    detail: str
    """For people: the image, its age, its owner."""
    owner_alive: bool
    """Whether the process that created it still runs. Only an orphan may be removed without asking."""


class ExecutionTarget(Struct, frozen=True, kw_only=True):
    """Where a session's calls run, as far as we know without opening an environment."""

    spec: EnvironmentSpec
    folder: str
    """Where relative paths start; empty if only the environment knows."""
    isolated: bool
    """Whether its effects stay inside, except over the network."""
    is_here: bool
    """Whether its paths are paths on this machine."""
    session: ShellSession | None = None
    """What its shell knows from earlier commands; None if nothing has changed."""

    def effect(self, kind: EffectKind, target: str, folder: str = "") -> Effect:
        """An effect in this environment."""
        folder = folder or self.folder
        session = self.session if kind == "exec" else None
        if self.is_here:
            return Effect(kind, target, folder, isolated=self.isolated and kind != "exec", session=session)
        return Effect(kind, target, folder, self.spec.backend, self.isolated, self.spec.cwd, session=session)
