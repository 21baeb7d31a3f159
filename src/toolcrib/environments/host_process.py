"""Starts programs on this machine and transfers their bytes on an event loop, without a thread per program."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from toolcrib.config.environment import hide_environment
from toolcrib.core.environments import OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed


def on_exit(pid: int, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` on the running loop when the process has ended (soon, if it already has).

    Uses a pidfd or kqueue, so it works for any process of this machine, not only for children. Returns a function that
    stops watching.
    """
    loop = asyncio.get_running_loop()
    try:
        watched = _ExitDescriptor(pid)
    except ProcessLookupError:
        handle = loop.call_soon(callback)
        return handle.cancel

    def stop() -> None:
        if watched.is_open:
            loop.remove_reader(watched.descriptor)
            watched.close()

    def ended() -> None:
        stop()
        callback()

    loop.add_reader(watched.descriptor, ended)
    return stop


class _ExitDescriptor:
    """A descriptor that becomes readable when a process ends."""

    def __init__(self, pid: int) -> None:
        self.is_open = True
        if sys.platform == "linux":
            self.descriptor = os.pidfd_open(pid)
            self._close: Callable[[], None] = lambda: os.close(self.descriptor)
        else:
            queue = select.kqueue()
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            try:
                queue.control([event], 0, 0)
            except OSError:
                queue.close()
                raise
            self.descriptor = queue.fileno()
            self._close = queue.close

    def close(self) -> None:
        self.is_open = False
        self._close()


LARGE_READ_BYTES = 256 * 1024
"""For large output only: the memory for it is mapped for each read, which takes longer than a small read itself."""
USUAL_PIPE_BYTES = 64 * 1024
LARGE_PIPE_BYTES = 1024 * 1024
# A child that floods the pipe after its parent ended must not keep us reading forever.
READS_AFTER_THE_END = 64
# This many chunks within this time are a burst; during a burst, chunks may accumulate between two reads.
BURST_CHUNKS = 32
BURST_SECONDS = 0.02
SMALL_CHUNK_BYTES = 4096
REST_SECONDS = 0.003


class PipeReader:
    """Passes on what arrives in a pipe or terminal."""

    def __init__(
        self, descriptor: int, on_output: OnOutput, *, is_pipe: bool = True, on_close: Callable[[], None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._on_output = on_output
        self._on_close = on_close
        self._may_grow = is_pipe
        self._read_bytes = USUAL_PIPE_BYTES
        self._bursts = _BurstDetector()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._arrived)

    @property
    def descriptor(self) -> int | None:
        """None once closed."""
        return self._descriptor

    def read(self) -> bool:
        """Pass on what has arrived; False when there is nothing to read now."""
        if self._descriptor is None:
            return False
        try:
            data = os.read(self._descriptor, self._read_bytes)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # EIO: the last process on the terminal has ended.
        if not data:
            self.close()
            return False
        if self._may_grow and len(data) >= USUAL_PIPE_BYTES:
            self._grow(self._descriptor)
        self._bursts.note(len(data), self._loop.time())
        self._on_output(data)
        return True

    def drain(self) -> None:
        """The writer has ended: read the rest. What others still write is read as it arrives."""
        for _ in range(READS_AFTER_THE_END):
            if not self.read():
                return

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            if self._on_close is not None:
                self._on_close()

    def _arrived(self) -> None:
        if self.read() and self._bursts.is_burst and self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._loop.call_later(REST_SECONDS, self._rested)

    def _rested(self) -> None:
        if self._descriptor is not None:
            self._loop.add_reader(self._descriptor, self._arrived)

    def _grow(self, descriptor: int) -> None:
        """Enlarge the pipe: fewer context switches, which are most of the cost of large output."""
        self._may_grow, self._read_bytes = False, LARGE_READ_BYTES
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, LARGE_PIPE_BYTES)
        except (AttributeError, OSError):
            return  # Not supported here, or the user's quota is used up.


class PipeWriter:
    """Our end of a program's input; writing waits until the program takes the data, or until the input is closed."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._writing = asyncio.Lock()
        self._may_write = asyncio.Event()
        os.set_blocking(descriptor, False)

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    async def write(self, data: bytes) -> None:
        """Write all of it; raises BrokenPipeError if the input is closed, also meanwhile."""
        async with self._writing:
            rest = memoryview(data)
            while rest:
                if self._descriptor is None:
                    raise BrokenPipeError(errno.EPIPE, "its input is closed")
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:
                    await self._room(self._descriptor)
                except OSError as error:
                    if error.errno == errno.EIO:
                        raise BrokenPipeError(errno.EPIPE, "its terminal is closed") from error
                    raise

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            self._may_write.set()

    async def _room(self, descriptor: int) -> None:
        """Return when more can be written, or when the input was closed."""
        self._may_write.clear()
        self._loop.add_writer(descriptor, self._may_write.set)
        try:
            await self._may_write.wait()
        finally:
            # Once closed, the number may belong to something else.
            if self._descriptor is not None:
                self._loop.remove_writer(descriptor)


class _BurstDetector:
    """Detects a program that writes many small chunks without a pause.

    Waking up for every chunk would take processor time from that very program. If little arrives during a rest, the
    chunks were answers that somebody waits for, or the end: then chunks are read as they arrive again.
    """

    def __init__(self) -> None:
        self.is_burst = False
        self._chunks = 0
        self._since = 0.0

    def note(self, size: int, now: float) -> None:
        if size >= SMALL_CHUNK_BYTES:
            return
        if self.is_burst:
            self.is_burst, self._chunks = False, 0
        if not self._chunks:
            self._since = now
        self._chunks += 1
        if self._chunks == BURST_CHUNKS:
            self.is_burst, self._chunks = now - self._since < BURST_SECONDS, 0


END_OF_TRANSMISSION = b"\x04"
END_SECONDS = 2.0
"""How long a killed program may take to end."""


async def spawn_on_host(
    argv: Sequence[str],
    *,
    on_output: OnOutput,
    environ: Mapping[str, str],
    terminal: TerminalSize | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    on_error: OnOutput | None = None,
) -> HostProcess:
    """Start a program in a session of its own; raises EnvironmentFailed if it cannot be started.

    With `log` its output is appended to that file, and `on_output` gets nothing. With `on_error` its standard error,
    on pipes, is kept apart from its output.
    """
    hide_environment()
    try:
        if log is not None:
            return _into_file(argv, on_output, environ, log)
        if terminal is None:
            return _with_pipes(argv, on_output, environ, cwd, on_error)
        return _on_terminal(argv, on_output, environ, cwd, terminal)
    except OSError as error:
        raise EnvironmentFailed(f"{argv[0]!r} could not be started: {error.strerror or error}") from error


def _with_pipes(
    argv: Sequence[str],
    on_output: OnOutput,
    environ: Mapping[str, str],
    cwd: Path | None,
    on_error: OnOutput | None,
) -> HostProcess:
    read_end, stdin = os.pipe()
    output, write_end = os.pipe()
    errors, errors_end = (None, write_end) if on_error is None else os.pipe()
    try:
        child = subprocess.Popen(
            argv,
            stdin=read_end,
            stdout=write_end,
            stderr=errors_end,
            env=environ,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError:
        for descriptor in (stdin, output, errors):
            if descriptor is not None:
                os.close(descriptor)
        raise
    finally:
        for descriptor in {read_end, write_end, errors_end}:
            os.close(descriptor)
    process = HostProcess(child, stdin=stdin, output=output, on_output=on_output)
    if errors is not None and on_error is not None:
        process.follow_errors(errors, on_error)
    return process


def _into_file(argv: Sequence[str], on_output: OnOutput, environ: Mapping[str, str], log: Path) -> HostProcess:
    read_end, stdin = os.pipe()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            argv, stdin=read_end, stdout=output, stderr=output, env=environ, start_new_session=True
        )
    except OSError:
        os.close(stdin)
        raise
    finally:
        os.close(read_end)
        os.close(output)
    return HostProcess(child, stdin=stdin, output=None, on_output=on_output)


def _on_terminal(
    argv: Sequence[str], on_output: OnOutput, environ: Mapping[str, str], cwd: Path | None, size: TerminalSize
) -> HostProcess:
    master, slave = os.openpty()
    try:
        _set_size(slave, size)
        # A session leader gets a controlling terminal by opening it; the shell does that, then execs the program.
        opening = ["/bin/sh", "-c", 'tty=$1; shift; exec "$@" <>"$tty" >&0 2>&0', "sh", os.ttyname(slave), *argv]
        child = subprocess.Popen(
            opening, stdin=slave, stdout=slave, stderr=slave, env=environ, cwd=cwd, start_new_session=True
        )
    except OSError:
        os.close(master)
        raise
    finally:
        os.close(slave)
    return HostProcess(child, stdin=os.dup(master), output=master, on_output=on_output, on_terminal=True)


def _set_size(descriptor: int, size: TerminalSize) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


class HostProcess:
    """A program on this machine; see EngineProcess."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        *,
        stdin: int,
        output: int | None,
        on_output: OnOutput,
        on_terminal: bool = False,
    ) -> None:
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._on_terminal = on_terminal
        self._input = PipeWriter(stdin)
        self._output = PipeReader(output, on_output, is_pipe=not on_terminal) if output is not None else None
        self._errors: PipeReader | None = None
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._stop_watching = on_exit(child.pid, self._reap)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        return self._exited.done()

    def follow_errors(self, descriptor: int, on_error: OnOutput) -> None:
        """Pass on what arrives in this pipe, too, until the program has ended."""
        self._errors = PipeReader(descriptor, on_error)

    async def write(self, data: bytes) -> None:
        await self._input.write(data)

    async def close_input(self) -> None:
        if not self._input.is_open:
            return
        if self._on_terminal and not self.has_ended:
            await self.write(END_OF_TRANSMISSION)
            return
        self.end_input()

    async def resize(self, size: TerminalSize) -> None:
        if self._on_terminal and self._output is not None and self._output.descriptor is not None:
            _set_size(self._output.descriptor, size)

    async def wait(self) -> int:
        return await asyncio.shield(self._exited)

    async def abandon(self) -> None:
        self.end_input()
        for reader in (self._output, self._errors):
            if reader is not None:
                reader.close()

    async def end(self) -> None:
        """Kill what still runs of its process group, collect its exit and close its streams."""
        if not self.has_ended:
            self.signal_session(signal.SIGKILL)
            # A process in the kernel's hands, or another user's, may stay.
            await asyncio.wait([self._exited], timeout=END_SECONDS)
        await self.abandon()

    def signal_session(self, number: signal.Signals) -> None:
        """Signal the process group that it leads, if it still exists."""
        try:
            os.killpg(self._child.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def _reap(self) -> None:
        code = self._child.poll()
        if code is None:
            # The pidfd became ready an instant before the process could be reaped.
            code = self._child.wait()
        for reader in (self._output, self._errors):
            if reader is not None:
                reader.drain()
        self.end_input()
        if not self._exited.done():
            self._exited.set_result(code if code >= 0 else 128 - code)

    def end_input(self) -> None:
        """Close its standard input at once; whoever writes to it gets BrokenPipeError."""
        self._input.close()
