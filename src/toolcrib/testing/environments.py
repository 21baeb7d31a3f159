"""An environment that runs nothing: it answers from a script and records what it was asked to do."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.core.environments import (
    BackendPath,
    CommandExit,
    CommandRequest,
    EndReason,
    Execution,
    FileSlice,
    FileStatus,
    OnOutput,
    OrphanedProcess,
    TerminalSize,
)
from toolcrib.core.errors import PathChanged
from toolcrib.core.types import ShellSession


class FakeFiles:
    """The file methods of Environment. Paths are plain strings: none is made absolute, and links are not followed."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.modes: dict[str, int] = {}
        self.links: dict[str, str] = {}
        """The target of each link, by its path."""
        self.folders: set[str] = set()
        """The folders that were created explicitly; others exist because they contain something."""

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        if path in self.files:
            return self.files[path]
        if plain and path in self.links:
            raise PathChanged(f"{path!r} is a link to {self.links[path]!r}")
        if self._is_folder(path):
            raise _refusal(IsADirectoryError, errno.EISDIR, path)
        raise _refusal(FileNotFoundError, errno.ENOENT, path)

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        content = await self.read_file(path, plain=plain)
        lines = content.split(b"\n")
        lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        asked = b"".join(lines[first - 1 : first - 1 + count])
        status = await self.status(path)
        assert status is not None
        return FileSlice(
            data=asked[:max_bytes],
            first=first,
            status=status,
            at_end=len(asked) <= max_bytes and first - 1 + count >= len(lines),
            total_lines=len(lines),
        )

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        self._check(path, expected, plain)
        if self._is_folder(path):
            raise _refusal(IsADirectoryError, errno.EISDIR, path)
        self.files[path] = data
        if mode is not None:
            self.modes[path] = mode

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        if self._is_folder(path):
            raise _refusal(IsADirectoryError, errno.EISDIR, path)
        if path not in self.files and path not in self.links:
            raise _refusal(FileNotFoundError, errno.ENOENT, path)
        self._check(path, expected, plain=False)
        self.files.pop(path, None)
        self.links.pop(path, None)

    async def remove_folder(self, path: BackendPath) -> None:
        if self._names(path):
            raise _refusal(OSError, errno.ENOTEMPTY, path)
        if path not in self.folders:
            raise _refusal(FileNotFoundError, errno.ENOENT, path)
        self.folders.discard(path)

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        if path in self.files:
            raise _refusal(FileExistsError, errno.EEXIST, path)
        if not self._is_folder(path) and mode is not None:
            self.modes[path] = mode
        self.folders.add(path)

    async def make_link(self, path: BackendPath, target: str) -> None:
        if self._is_folder(path):
            raise _refusal(IsADirectoryError, errno.EISDIR, path)
        self.files.pop(path, None)
        self.links[path] = target

    async def list_folder(self, path: BackendPath) -> list[str]:
        if path in self.files:
            raise _refusal(NotADirectoryError, errno.ENOTDIR, path)
        if not self._is_folder(path):
            raise _refusal(FileNotFoundError, errno.ENOENT, path)
        return self._names(path)

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        if path in self.links and not follow_links:
            return FileStatus(kind="link", size=0, mode=0o777, real=path, link=self.links[path])
        if path in self.files:
            content = self.files[path]
            mode, stamp = self.modes.get(path, 0o644), hashlib.sha256(content).hexdigest()
            return FileStatus(kind="file", size=len(content), mode=mode, real=path, stamp=stamp)
        if self._is_folder(path):
            return FileStatus(kind="folder", size=0, mode=self.modes.get(path, 0o755), real=path)
        return None

    async def upload(self, source: Path, target: BackendPath) -> None:
        """Copy a file into the environment; folders are not supported here."""
        data, about = await asyncio.to_thread(lambda: (source.read_bytes(), source.stat()))
        await self.write_file(target, data, mode=about.st_mode & 0o777)

    async def download(self, source: BackendPath, target: Path) -> None:
        await asyncio.to_thread(target.write_bytes, await self.read_file(source))

    def _is_folder(self, path: str) -> bool:
        return path == "/" or path in self.folders or bool(self._names(path))

    def _names(self, path: str) -> list[str]:
        above = path.rstrip("/") + "/"
        known = (*self.files, *self.links, *self.folders)
        return sorted({one[len(above) :].partition("/")[0] for one in known if one.startswith(above) and one != above})

    def _check(self, path: str, expected: str | None, plain: bool) -> None:
        above = path
        while plain and above not in ("", "/"):
            if above in self.links:
                raise PathChanged(f"{path!r} leads through a link to {self.links[above]!r}")
            above = posixpath.dirname(above)
        if expected is None:
            return
        content = self.files.get(path)
        if (content is None) != (expected == "") or (content is not None and _digest(content) != expected):
            raise PathChanged(f"{path!r} has changed since it was checked; read it again")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refusal(kind: type[OSError], number: int, path: str) -> OSError:
    return kind(number, os.strerror(number), path)


__all__ = ["FakeEnvironment", "FakeExecution", "FakeProcess", "ScriptedReply"]

TERMINATED = 143


class ScriptedReply(Struct, frozen=True, kw_only=True):
    """What a scripted command does."""

    output: str = ""
    exit_code: int | None = 0
    """None: it runs until the test ends it or something terminates it."""
    orphans: tuple[OrphanedProcess, ...] = ()
    note: str = ""
    fails_with: BaseException | None = None
    """Raised instead of starting anything."""


class FakeExecution:
    """A scripted command; see Execution. The test controls it with `prints`, `ends` and `settles`."""

    def __init__(self, request: CommandRequest, on_output: OnOutput, *, pid: int) -> None:
        self.request = request
        self.id = request.id
        self.pid: int | None = pid
        self.written = b""
        """Everything that was written to its input."""
        self.input_is_closed = False
        self.reads_input = False
        """What `waits_for_input` answers."""
        self.is_stubborn = False
        """Whether it ignores `terminate`."""
        self.terminations = 0
        self.size: TerminalSize | None = request.terminal
        self._on_output = on_output
        self._printed = b""
        self._ended: asyncio.Future[CommandExit] = asyncio.get_running_loop().create_future()
        self._children_gone = asyncio.Event()
        self._children_gone.set()

    def prints(self, data: bytes | str) -> None:
        """Make it print something."""
        data = data.encode() if isinstance(data, str) else data
        self._printed += data
        self._on_output(data)

    def ends(
        self,
        exit_code: int = 0,
        reason: EndReason = "exited",
        *,
        orphans: tuple[OrphanedProcess, ...] = (),
        note: str = "",
    ) -> None:
        """Make it end; its leftover processes run until `settles` or `terminate`."""
        if self._ended.done():
            return
        if orphans:
            self._children_gone.clear()
        self._ended.set_result(CommandExit(exit_code=exit_code, reason=reason, orphans=orphans, note=note))

    def settles(self) -> None:
        """Make its leftover processes end."""
        self._children_gone.set()

    def heard_by(self, on_output: OnOutput, offset: int) -> None:
        """Send its output from `offset` on, and all further output, to a new receiver."""
        self._on_output = on_output
        if self._printed[offset:]:
            on_output(self._printed[offset:])

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def wait(self) -> CommandExit:
        return await asyncio.shield(self._ended)

    async def write(self, data: bytes) -> None:
        if self._ended.done() or self.input_is_closed:
            raise BrokenPipeError("its input is closed")
        self.written += data

    async def close_input(self) -> None:
        self.input_is_closed = True

    async def resize(self, size: TerminalSize) -> None:
        if self.size is not None:
            self.size = size

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        self.terminations += 1
        if not self.is_stubborn:
            self.ends(TERMINATED, "killed")
            self.settles()

    async def settled(self) -> None:
        await self.wait()
        await self._children_gone.wait()

    async def waits_for_input(self) -> bool:
        return self.reads_input and not self._ended.done()

    async def abandon(self) -> None:
        self._on_output = _nobody


class FakeProcess:
    """A scripted program outside the session; see EngineProcess."""

    pid = None

    def __init__(self, exit_code: int | None) -> None:
        self.written = b""
        self.input_is_closed = False
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if exit_code is not None:
            self.ends(exit_code)

    def ends(self, exit_code: int = 0) -> None:
        """Make it end."""
        if not self._ended.done():
            self._ended.set_result(exit_code)

    async def write(self, data: bytes) -> None:
        if self.input_is_closed or self._ended.done():
            raise BrokenPipeError("its input is closed")
        self.written += data

    async def close_input(self) -> None:
        self.input_is_closed = True

    async def resize(self, size: TerminalSize) -> None:
        """Do nothing: it has no terminal."""

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def abandon(self) -> None:
        """Do nothing: it holds no resources."""


class FakeEnvironment(FakeFiles):
    """An in-memory environment; see Environment. `replies` says what each command does, `default` what all others do.

    environment = FakeEnvironment({"make": ScriptedReply(output="done\\n")})
    ...
    assert environment.commands == ["make"]
    """

    kind = "fake"
    isolated = True

    def __init__(
        self,
        replies: Mapping[str, ScriptedReply] | None = None,
        *,
        default: ScriptedReply | None = None,
        cwd: str = "/work",
    ) -> None:
        super().__init__()
        self.replies = dict(replies or {})
        self.default = default or ScriptedReply()
        self.commands: list[str] = []
        """Every command that was started, in order."""
        self.executions: dict[str, FakeExecution] = {}
        """The same, by id."""
        self.programs: list[str] = []
        """Every program that was started outside the session, as a shell line."""
        self.is_open = False
        self.closings = 0
        self._cwd = BackendPath(cwd)

    @property
    def cwd(self) -> BackendPath:
        return self._cwd

    async def session(self) -> ShellSession | None:
        return None

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        self.closings += 1
        for execution in self.executions.values():
            await execution.terminate()

    async def start(self, request: CommandRequest, on_output: OnOutput) -> FakeExecution:
        reply = self.replies.get(request.command, self.default)
        self.commands.append(request.command)
        if reply.fails_with is not None:
            raise reply.fails_with
        number = len(self.commands)
        if not request.id:
            request = replace(request, id=f"cmd_{number:012x}")
        execution = self.executions[request.id] = FakeExecution(request, on_output, pid=number)
        if reply.output:
            execution.prints(reply.output)
        if reply.exit_code is not None:
            execution.ends(reply.exit_code, orphans=reply.orphans, note=reply.note)
        return execution

    async def reattach(self, command_id: str, on_output: OnOutput, *, offset: int = 0) -> Execution | None:
        execution = self.executions.get(command_id)
        if execution is None or execution.request.mode != "background":
            return None
        execution.heard_by(on_output, offset)
        return execution

    async def spawn(self, argv: Sequence[str], *, on_output: OnOutput) -> FakeProcess:
        """Start a program; it does what `replies` says about its arguments as one shell line."""
        line = shlex.join(argv)
        reply = self.replies.get(line, self.default)
        self.programs.append(line)
        if reply.fails_with is not None:
            raise reply.fails_with
        if reply.output:
            on_output(reply.output.encode())
        return FakeProcess(reply.exit_code)

    def address(self) -> Mapping[str, str]:
        return {"kind": self.kind, "folder": f"fake-{id(self):x}"}


def _nobody(_: bytes) -> None:
    """Where the output of an abandoned command goes."""
