"""Background commands: their output goes to a log inside the environment, so that it outlives this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.core.environments import BackendPath, CommandExit, Engine, EngineProcess, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.executions import END_SECONDS, LOST, WaitsForInput, with_failure_code
from toolcrib.environments.process_tree import ProcessTree
from toolcrib.environments.scripts import script

TICK_SECONDS = 0.05
BUSY_TICK_SECONDS = 0.001
READ_BYTES = 1024 * 1024
FULL_SECONDS = 5.0
"""How long a write may take; after that the command is not reading."""
KILLED = 137
"""The exit code of a command that was killed by SIGKILL."""

OnEnd = Callable[[CommandExit], None]


class LogWatcher(Protocol):
    """Delivers the output of background commands and how they ended."""

    async def follow(self, command_id: str, offset: int, on_output: OnOutput, on_end: OnEnd) -> None: ...

    async def forget(self, command_id: str) -> None: ...

    async def close(self) -> None: ...


class CommandInput(Protocol):
    """Writes to the standard input of a background command."""

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class BackgroundExecution:
    """A command that runs in the background; see Execution."""

    def __init__(
        self,
        command_id: str,
        *,
        pid: int | None,
        watcher: LogWatcher,
        tree: ProcessTree,
        waits: WaitsForInput,
        stdin: CommandInput,
    ) -> None:
        self.id = command_id
        self.pid = pid
        self._watcher = watcher
        self._tree = tree
        self._waits = waits
        self._stdin = stdin
        self._killed = False
        self._is_abandoned = False
        self._received_bytes = 0
        self.is_over = False
        """It had already ended when it was reattached; only its output is still arriving."""
        self._ended: asyncio.Future[CommandExit] = asyncio.get_running_loop().create_future()

    async def watch(self, on_output: OnOutput, offset: int = 0) -> None:
        def count(data: bytes) -> None:
            self._received_bytes += len(data)
            on_output(data)

        await self._watcher.follow(self.id, offset, count, self._on_end)

    async def wait(self) -> CommandExit:
        return await asyncio.shield(self._ended)

    async def write(self, data: bytes) -> None:
        if self._ended.done():
            raise BrokenPipeError("it has ended")
        await self._stdin.write(data)

    async def close_input(self) -> None:
        if not self._ended.done():
            await self._stdin.close()

    async def resize(self, size: TerminalSize) -> None:
        """Do nothing: it has no terminal."""

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        self._killed = True
        await self._tree.end([self.id], grace_seconds)
        received = -1
        while not self._ended.done() and not self._is_abandoned and received != self._received_bytes:
            # Its output may take a while to arrive.
            received = self._received_bytes
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self.wait()
        if not self._ended.done():
            self._ended.set_result(CommandExit(exit_code=LOST, reason="lost"))
            await self._watcher.forget(self.id)

    def when_ended(self, callback: Callable[[CommandExit], None]) -> None:
        self._ended.add_done_callback(lambda ended: callback(ended.result()))

    async def settled(self) -> None:
        await self.wait()
        await self._tree.settled([self.id])

    async def waits_for_input(self) -> bool:
        return not self._ended.done() and await self._waits(self.id, False)

    async def abandon(self) -> None:
        self._is_abandoned = True
        await self._watcher.forget(self.id)

    def _on_end(self, ended: CommandExit) -> None:
        if self._ended.done():
            return
        if self._killed and ended.reason == "exited":
            ended = with_failure_code(replace(ended, reason="killed"))
        elif self._killed and ended.reason == "lost" and not ended.note:
            # A command killed by SIGKILL reports nothing, but we know why it ended.
            ended = CommandExit(exit_code=KILLED, reason="killed")
        self._ended.set_result(ended)


class OrphanExecution:
    """The surviving processes of a command that has no log any more; see Execution. Their output is lost."""

    pid: int | None = None

    def __init__(self, command_id: str, tree: ProcessTree) -> None:
        self.id = command_id
        self._tree = tree
        self._killed = False

    async def wait(self) -> CommandExit:
        await self._tree.settled([self.id])
        if self._killed:
            return CommandExit(exit_code=KILLED, reason="killed")
        return CommandExit(
            exit_code=LOST, reason="lost", note="it ended after it was reattached; its exit code is unknown"
        )

    async def settled(self) -> None:
        await self._tree.settled([self.id])

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        self._killed = True
        await self._tree.end([self.id], grace_seconds)

    async def write(self, data: bytes) -> None:
        raise BrokenPipeError("its input is closed")

    async def close_input(self) -> None:
        """Do nothing: it has no input."""

    async def resize(self, size: TerminalSize) -> None:
        """Do nothing: it has no terminal."""

    async def waits_for_input(self) -> bool:
        return False

    async def abandon(self) -> None:
        """Do nothing: nobody listens."""


def exit_from_file(text: str) -> CommandExit:
    """The exit that a command's exit file records."""
    word = text.strip()
    if word.isdigit():
        return CommandExit(exit_code=int(word))
    return (
        CommandExit(exit_code=1, reason="no_folder")
        if word == "no_folder"
        else CommandExit(exit_code=LOST, reason="lost")
    )


class _FollowedLog(Struct):
    on_output: OnOutput
    on_end: OnEnd
    offset: int
    log: int = -1
    wants: int = 0
    """Remaining bytes of the current frame."""
    is_announced: bool = False
    """Whether the program in the environment knows about it."""


class BackendLogWatcher:
    """Follows all background commands through one program in the environment; see `scripts/watcher.sh`."""

    def __init__(self, engine: Engine, folder: BackendPath, max_log_bytes: int) -> None:
        self._engine = engine
        self._argv = [engine.shell, "--norc", "--noprofile", "-c", script("watcher"), "toolcrib", folder]
        self._argv.append(str(max_log_bytes))
        self._followed: dict[str, _FollowedLog] = {}
        self._process: EngineProcess | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._buffer = b""
        self._frame: tuple[str, int] = ("", 0)
        self._closed = False

    async def follow(self, command_id: str, offset: int, on_output: OnOutput, on_end: OnEnd) -> None:
        followed = self._followed[command_id] = _FollowedLog(on_output, on_end, offset)
        async with self._starting:
            if self._process is None:
                await self._start()
            elif not followed.is_announced:
                # Announcing it twice would deliver its output twice.
                followed.is_announced = True
                await self._send(f"follow {command_id} {offset}\n")

    async def forget(self, command_id: str) -> None:
        if self._followed.pop(command_id, None) is not None:
            await self._send(f"forget {command_id}\n")

    async def close(self) -> None:
        self._closed = True
        self._followed.clear()
        process, self._process = self._process, None
        if process is not None:
            await process.close_input()
            with contextlib.suppress(TimeoutError, EnvironmentFailed):
                async with asyncio.timeout(END_SECONDS):
                    await process.wait()
            await process.abandon()
        if self._waiting is not None:
            self._waiting.cancel()

    async def _send(self, line: str) -> None:
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                await self._process.write(line.encode())

    async def _start(self) -> None:
        self._buffer, self._frame = b"", ("", 0)
        self._process = await self._engine.spawn(self._argv, on_output=self._feed)
        for command_id, followed in list(self._followed.items()):
            followed.is_announced = True
            await self._send(f"follow {command_id} {followed.offset}\n")
        self._waiting = asyncio.ensure_future(self._restart_when_lost(self._process))

    async def _restart_when_lost(self, process: EngineProcess) -> None:
        """Reconnect once after a dropped connection; if the environment is gone, end all its commands as lost."""
        with contextlib.suppress(EnvironmentFailed):
            await process.wait()
        if self._closed:
            return
        async with self._starting:
            self._process = None
            if not self._followed:
                return
            try:
                await self._start()
            except EnvironmentFailed as error:
                followed, self._followed = self._followed, {}
                for one in followed.values():
                    one.on_end(CommandExit(exit_code=LOST, reason="lost", note=str(error)))

    def _feed(self, data: bytes) -> None:
        self._buffer += data
        while self._buffer:
            command_id, wants = self._frame
            if wants:
                chunk, self._buffer = self._buffer[:wants], self._buffer[wants:]
                self._frame = (command_id, wants - len(chunk))
                followed = self._followed.get(command_id)
                if followed is not None:
                    followed.offset += len(chunk)
                    followed.on_output(chunk)
                continue
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                return
            self._buffer = rest
            self._on_line(line.decode(errors="replace").split())

    def _on_line(self, words: list[str]) -> None:
        match words:
            case ["data", command_id, length]:
                self._frame = (command_id, int(length))
            case ["end", command_id, code]:
                followed = self._followed.pop(command_id, None)
                if followed is not None:
                    followed.on_end(exit_from_file(code))
            case _:
                # Something the environment prints by itself, such as a warning of its shell.
                return


class BackendInput:
    """Writes through the FIFO that the command's supervisor holds open; see `scripts/supervisor.sh`."""

    def __init__(self, engine: Engine, folder: BackendPath, command_id: str) -> None:
        self._engine = engine
        self._stem = f"{folder}/{command_id}"

    async def write(self, data: bytes) -> None:
        # Without a reader the write would block for ever; the FIFO is removed when the command ends.
        code = await self._run('[ -p "$1.in" ] && exec cat >"$1.in"', data)
        if code != 0:
            raise BrokenPipeError("its input is closed")

    async def close(self) -> None:
        await self._run('read -r supervisor <"$1.supervisor" && kill -USR1 "$supervisor" && rm -f "$1.in"', b"")

    async def _run(self, text: str, data: bytes) -> int:
        argv = [self._engine.shell, "--norc", "--noprofile", "-c", text, "toolcrib", self._stem]
        process = await self._engine.spawn(argv, on_output=lambda _: None)
        try:
            async with asyncio.timeout(FULL_SECONDS):
                with contextlib.suppress(BrokenPipeError):
                    await process.write(data)
                await process.close_input()
                return await process.wait()
        except TimeoutError:
            raise BlockingIOError("it does not read its input, and the buffer is full") from None
        finally:
            await process.abandon()


class HostLogWatcher:
    """Follows background commands on this machine by polling the sizes of their logs while anything runs."""

    def __init__(self, folder: Path, max_log_bytes: int) -> None:
        self._folder = folder
        self._max_log_bytes = max_log_bytes
        self._followed: dict[str, _FollowedLog] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def follow(self, command_id: str, offset: int, on_output: OnOutput, on_end: OnEnd) -> None:
        log = os.open(self._folder / f"{command_id}.log", os.O_RDWR | os.O_CLOEXEC)
        self._followed[command_id] = _FollowedLog(on_output, on_end, offset, log)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    async def forget(self, command_id: str) -> None:
        followed = self._followed.pop(command_id, None)
        if followed is not None:
            os.close(followed.log)

    async def close(self) -> None:
        for command_id in list(self._followed):
            await self.forget(command_id)
        if self._timer is not None:
            self._timer.cancel()

    def finish(self, command_id: str, ended: CommandExit) -> None:
        """The command has ended: deliver the rest of its output, then report the exit."""
        followed = self._followed.pop(command_id, None)
        if followed is None:
            return
        while self._read(followed):
            pass
        os.close(followed.log)
        followed.on_end(ended)

    def _tick(self) -> None:
        self._timer = None
        # A log that had more than one read's worth of data is polled again at once.
        behind = [self._read(followed) for followed in list(self._followed.values())]
        if self._followed:
            seconds = BUSY_TICK_SECONDS if any(behind) else TICK_SECONDS
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _read(self, followed: _FollowedLog) -> bool:
        """Deliver new output; True when there may be more."""
        size = os.fstat(followed.log).st_size
        if size - followed.offset > self._max_log_bytes:
            # It prints faster than we read: the middle is omitted.
            followed.on_output(b"\n[... %d bytes omitted ...]\n" % (size - self._max_log_bytes - followed.offset))
            followed.offset = size - self._max_log_bytes
        data = os.pread(followed.log, READ_BYTES, followed.offset)
        if data:
            followed.offset += len(data)
            followed.on_output(data)
        if len(data) < READ_BYTES and followed.offset > self._max_log_bytes:
            # The command appends, so it continues at the start of the truncated file.
            os.ftruncate(followed.log, 0)
            followed.offset = 0
        return len(data) == READ_BYTES
