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
from toolcrib.environments.host_process import END_OF_TRANSMISSION
from toolcrib.environments.pipe_reader import PipeReader

# What was written to a terminal arrives a little later than the news that the program has ended.
TERMINAL_SETTLES_SECONDS = 0.05


class SandboxProcess:
    """See EngineProcess."""

    def __init__(self, pid: int | None, *, stdin: int, output: int, on_output: OnOutput, on_terminal: bool) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self._on_terminal = on_terminal
        self._stdin: int | None = stdin
        self._writing = asyncio.Lock()
        self._input_moves: asyncio.Future[None] | None = None
        self._code: int | None = None
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._settling: asyncio.TimerHandle | None = None
        os.set_blocking(stdin, False)
        self._output = PipeReader(output, on_output, is_pipe=not on_terminal, on_close=self._settle)

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
        if self._on_terminal and self._output.descriptor is not None:
            fcntl.ioctl(self._output.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    async def wait(self) -> int:
        return await asyncio.shield(self._exited)

    async def abandon(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Close both streams on this side, now."""
        self._close_stdin()
        self._output.close()

    def ended(self, code: int) -> None:
        """The spawner says that it has ended; what it printed before is in the pipe already."""
        self._code = code
        self._output.read_what_is_left()
        self._close_stdin()
        if self._on_terminal and self._output.descriptor is not None:
            self._settling = self._loop.call_later(TERMINAL_SETTLES_SECONDS, self._settle)
        else:
            self._settle()

    def lost(self, reason: str) -> None:
        """The sandbox has gone, and this program with it."""
        self._close_stdin()
        while self._output.read():
            pass
        self._output.close()
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

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._release_writer()
