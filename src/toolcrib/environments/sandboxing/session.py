"""A running sandbox: the process that holds it, the socket to the spawner inside, and the programs there."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from toolcrib.config.environment import hide_environment
from toolcrib.core.environments import OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.host_process import END_OF_TRANSMISSION, PipeReader, PipeWriter, on_exit

# Output on a terminal arrives a little later than the notification that the program has ended.
TERMINAL_SETTLES_SECONDS = 0.05


class SandboxProcess:
    """A program in a sandbox, with our ends of its pipes or terminal; see EngineProcess."""

    def __init__(self, pid: int | None, *, stdin: int, output: int, on_output: OnOutput, on_terminal: bool) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self._on_terminal = on_terminal
        self._input = PipeWriter(stdin)
        self._code: int | None = None
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._settling: asyncio.TimerHandle | None = None
        self._output = PipeReader(output, on_output, is_pipe=not on_terminal, on_close=self._settle)

    async def write(self, data: bytes) -> None:
        await self._input.write(data)

    async def close_input(self) -> None:
        if not self._input.is_open:
            return
        if self._on_terminal and self._code is None:
            await self.write(END_OF_TRANSMISSION)
            return
        self._input.close()

    async def resize(self, size: TerminalSize) -> None:
        if self._on_terminal and self._output.descriptor is not None:
            fcntl.ioctl(self._output.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    async def wait(self) -> int:
        return await asyncio.shield(self._exited)

    async def abandon(self) -> None:
        self.close_streams()

    def close_streams(self) -> None:
        """Close both streams on this side at once."""
        self._input.close()
        self._output.close()

    def ended(self, code: int) -> None:
        """The spawner reported its exit; its output is already in the pipe."""
        self._code = code
        self._output.drain()
        self._input.close()
        if self._on_terminal and self._output.descriptor is not None:
            self._settling = self._loop.call_later(TERMINAL_SETTLES_SECONDS, self._settle)
        else:
            self._settle()

    def lost(self, reason: str) -> None:
        """The sandbox is gone, and this program with it."""
        self._input.close()
        while self._output.read():
            pass
        self._output.close()
        if not self._exited.done():
            self._exited.set_exception(EnvironmentFailed(reason))
            self._exited.exception()  # Nobody needs to await it.

    def _settle(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._code is not None and not self._exited.done():
            self._exited.set_result(self._code)


START_SECONDS = 20.0
ANSWER_SECONDS = 20.0
END_SECONDS = 8.0
# Longer requests are passed as a file.
LONGEST_MESSAGE = 64 * 1024
DESCRIPTORS = 4
LOST = "the sandbox and every program in it ended; the next command starts a new one"


class _SpawnRequest(Struct, frozen=True, kw_only=True):
    """A program requested from the spawner, with our ends of its streams."""

    started: asyncio.Future[SandboxProcess]
    on_output: OnOutput
    ends: tuple[int, int] | None
    """Standard input and output; None if the terminal is opened inside and arrives with the answer."""
    on_terminal: bool

    def fail(self, reason: str) -> None:
        for descriptor in self.ends or ():
            os.close(descriptor)
        if not self.started.done():
            self.started.set_exception(EnvironmentFailed(reason))


def memory_file(content: bytes = b"") -> BinaryIO:
    """An anonymous file, positioned at its start."""
    file = os.fdopen(os.memfd_create("toolcrib-sandbox"), "w+b")
    file.write(content)
    file.seek(0)
    return file


class SandboxSession:
    """The programs of one sandbox. A new sandbox is a new session."""

    def __init__(self, *, pids_are_ours: bool) -> None:
        """`pids_are_ours`: process ids and terminals inside are those of this machine."""
        self._pids_are_ours = pids_are_ours
        self._loop = asyncio.get_running_loop()
        self._link: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._sending = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._numbers = 0
        self._requested: dict[int, _SpawnRequest] = {}
        self._running: dict[int, SandboxProcess] = {}

    @property
    def is_running(self) -> bool:
        return self._link is not None

    async def start(
        self, arguments: Callable[[int], Sequence[str]], environ: Mapping[str, str], inherited: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Start the program that creates the sandbox; returns its spawner's greeting, or raises EnvironmentFailed."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        self._loop.add_reader(self._link, self._receive)
        with memory_file() as errors, theirs:
            try:
                self._launch(arguments(theirs.fileno()), environ, errors, [theirs.fileno(), *inherited])
                theirs.close()
                async with asyncio.timeout(START_SECONDS):
                    return await asyncio.shield(self._ready)
            except (OSError, TimeoutError, EnvironmentFailed) as error:
                await self.end()
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines()
                raise EnvironmentFailed(lines[-1] if lines else str(error) or "no answer in time") from error
            except asyncio.CancelledError:
                await self.end()
                raise

    async def spawn(self, argv: Sequence[str], on_output: OnOutput, terminal: TerminalSize | None) -> SandboxProcess:
        """Start a program; raises EnvironmentFailed if that fails."""
        given, ends = self._streams(terminal is not None)
        self._numbers += 1
        number = self._numbers
        started: asyncio.Future[SandboxProcess] = self._loop.create_future()
        self._requested[number] = _SpawnRequest(
            started=started, on_output=on_output, ends=ends, on_terminal=terminal is not None
        )
        size = None if terminal is None else [terminal.rows, terminal.columns]
        try:
            await self._send(json.dumps({"id": number, "argv": list(argv), "size": size}).encode(), given)
        except OSError as error:
            self._disconnect()
            raise EnvironmentFailed(LOST) from error
        finally:
            for descriptor in given:
                os.close(descriptor)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await started
        except TimeoutError as error:
            raise EnvironmentFailed(f"the sandbox did not start {argv[0]!r} in time") from error

    async def end(self, *, at_once: bool = False) -> None:
        """End the sandbox; returns when none of its processes is left. `at_once` kills instead of waiting."""
        self._disconnect()
        if self._child is None:
            return
        if at_once and not self._pids_are_ours:
            # Killing its first process ends everything in it, before the process outside notices.
            for pid in _children(self._child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(END_SECONDS):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self._child.send_signal(signal.SIGKILL)
            await asyncio.wait([self._gone], timeout=END_SECONDS)

    def _launch(
        self, arguments: Sequence[str], environ: Mapping[str, str], errors: BinaryIO, inherited: Sequence[int]
    ) -> None:
        hide_environment()
        self._child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environ,
            pass_fds=inherited,
            start_new_session=True,
        )
        on_exit(self._child.pid, self._reap)

    def _streams(self, on_terminal: bool) -> tuple[list[int], tuple[int, int] | None]:
        """The ends for the program, and ours."""
        if not on_terminal:
            their_input, our_input = os.pipe()
            our_output, their_output = os.pipe()
            return [their_input, their_output], (our_input, our_output)
        if self._pids_are_ours:
            master, terminal = os.openpty()
            return [terminal], (os.dup(master), master)
        return [], None

    async def _send(self, message: bytes, descriptors: list[int]) -> None:
        if len(message) > LONGEST_MESSAGE:
            with memory_file(message) as stored:
                descriptors.append(os.dup(stored.fileno()))
            message = b'{"stored": true}'
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        async with self._sending:
            while self._link is not None:
                try:
                    self._link.sendmsg([message], rights)
                    return
                except BlockingIOError:
                    await self._room_to_send(self._link)
        raise BrokenPipeError

    async def _room_to_send(self, link: socket.socket) -> None:
        self._room = room = self._loop.create_future()
        self._loop.add_writer(link, self._release_sender)
        try:
            await room
        finally:
            self._room = None
            if self._link is not None:
                self._loop.remove_writer(link)

    def _release_sender(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _receive(self) -> None:
        while self._link is not None:
            try:
                message, rights, _, _ = self._link.recvmsg(LONGEST_MESSAGE, socket.CMSG_SPACE(DESCRIPTORS * 4))
            except BlockingIOError:
                return
            except OSError:
                message, rights = b"", []
            if not message:
                self._disconnect()
                return
            came = array.array("i")
            for _, _, data in rights:
                came.frombytes(data[: len(data) - len(data) % came.itemsize])
            self._take(json.loads(message), list(came))

    def _take(self, answer: dict[str, Any], descriptors: list[int]) -> None:
        if "ended" in answer:
            process = self._running.pop(answer["ended"], None)
            if process is not None:
                process.ended(answer["code"])
        elif "started" in answer:
            self._begin(answer, descriptors)
        elif "failed" in answer:
            self._requested.pop(answer["failed"]).fail(f"it could not be started: {answer['why']}")
        elif not self._ready.done():
            self._ready.set_result(answer)

    def _begin(self, answer: dict[str, Any], descriptors: list[int]) -> None:
        number = answer["started"]
        requested = self._requested.pop(number)
        stdin, output = requested.ends or (os.dup(descriptors[0]), descriptors[0])
        process = SandboxProcess(
            answer["pid"] if self._pids_are_ours else None,
            stdin=stdin,
            output=output,
            on_output=requested.on_output,
            on_terminal=requested.on_terminal,
        )
        self._running[number] = process
        if requested.started.done():
            # The caller has given up; without its streams the program ends.
            process.close_streams()
        else:
            requested.started.set_result(process)

    def _disconnect(self) -> None:
        """Close the connection, which ends the sandbox; fail everybody who waits for a program in it."""
        if self._link is not None:
            self._loop.remove_reader(self._link)
            self._loop.remove_writer(self._link)
            self._link.close()
            self._link = None
            self._release_sender()
        requested, self._requested = self._requested, {}
        running, self._running = self._running, {}
        for request in requested.values():
            request.fail(LOST)
        for process in running.values():
            process.lost(LOST)
        if not self._ready.done():
            self._ready.set_exception(EnvironmentFailed("it ended immediately"))
            self._ready.exception()  # Nobody needs to await it.

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait()
        self._disconnect()
        if not self._gone.done():
            self._gone.set_result(None)


def _children(pid: int) -> list[int]:
    """The direct children of a process; empty if the kernel does not list them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
