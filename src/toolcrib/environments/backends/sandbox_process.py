"""A program in a sandbox, as this side sees it: the ends of its pipes or of its terminal."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios

from toolcrib.core.environments import OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.host_process import END_OF_TRANSMISSION, LARGE_PIPE_BYTES, READ_BYTES, READS_AFTER_THE_END

# What was written to a terminal arrives a little later than the news that the program has ended.
TERMINAL_SETTLES_SECONDS = 0.05


class SandboxProcess:
    """See EngineProcess."""

    def __init__(self, pid: int | None, *, stdin: int, output: int, on_output: OnOutput, on_terminal: bool) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self._on_output = on_output
        self._on_terminal = on_terminal
        self._stdin: int | None = stdin
        self._output: int | None = output
        self._writing = asyncio.Lock()
        self._input_moves: asyncio.Future[None] | None = None
        self._code: int | None = None
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._settling: asyncio.TimerHandle | None = None
        self._pipe_is_large = on_terminal
        os.set_blocking(stdin, False)
        os.set_blocking(output, False)
        self._loop.add_reader(output, self._read)

    async def write(self, data: bytes) -> None:
        async with self._writing:
            rest = memoryview(data)
            while rest:
                if self._stdin is None:
                    raise BrokenPipeError(errno.EPIPE, "its input is closed")
                try:
                    rest = rest[os.write(self._stdin, rest) :]
                except BlockingIOError:
                    await self._room_for_input(self._stdin)
                except OSError as error:
                    if error.errno == errno.EIO:
                        raise BrokenPipeError(errno.EPIPE, "its terminal is closed") from error
                    raise

    async def close_input(self) -> None:
        if self._stdin is None:
            return
        if self._on_terminal and self._code is None:
            await self.write(END_OF_TRANSMISSION)
            return
        self._close_stdin()

    async def resize(self, size: TerminalSize) -> None:
        if self._on_terminal and self._output is not None:
            fcntl.ioctl(self._output, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    async def wait(self) -> int:
        return await asyncio.shield(self._exited)

    async def abandon(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Close both streams on this side, now."""
        self._close_stdin()
        self._close_output()

    def ended(self, code: int) -> None:
        """The spawner says that it has ended; what it printed before is in the pipe already."""
        self._code = code
        for _ in range(READS_AFTER_THE_END):
            if not self._read():
                break
        self._close_stdin()
        if self._on_terminal and self._output is not None:
            self._settling = self._loop.call_later(TERMINAL_SETTLES_SECONDS, self._settle)
        else:
            self._settle()

    def lost(self, reason: str) -> None:
        """The sandbox has gone, and this program with it."""
        self._close_stdin()
        while self._read():
            pass
        self._close_output()
        if not self._exited.done():
            self._exited.set_exception(EnvironmentFailed(reason))
            self._exited.exception()  # Nobody has to be waiting.

    def _settle(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._code is not None and not self._exited.done():
            self._exited.set_result(self._code)

    async def _room_for_input(self, descriptor: int) -> None:
        """Returns when more can be written, or when the input has been closed meanwhile."""
        self._input_moves = self._loop.create_future()
        self._loop.add_writer(descriptor, self._release_writer)
        try:
            await self._input_moves
        finally:
            if self._stdin is not None:
                self._loop.remove_writer(descriptor)
            self._input_moves = None

    def _release_writer(self) -> None:
        if self._input_moves is not None and not self._input_moves.done():
            self._input_moves.set_result(None)

    def _read(self) -> bool:
        """Hand over what has arrived; False when there is nothing (more) to read now."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # EIO: the last process on the terminal has gone.
        if not data:
            self._close_output()
            return False
        if not self._pipe_is_large and len(data) >= 65536:
            self._enlarge_pipe(self._output)
        self._on_output(data)
        return True

    def _enlarge_pipe(self, output: int) -> None:
        """More room means fewer switches between the program and us, which is most of the cost of large output."""
        self._pipe_is_large = True
        try:
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, LARGE_PIPE_BYTES)
        except (AttributeError, OSError):
            return  # Not on this system, or the user's share is used up.

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._release_writer()

    def _close_output(self) -> None:
        if self._output is not None:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = None
        self._settle()
