"""One program on the far end of an ssh connection, as a session of asyncssh that hands bytes straight on."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolcrib.core.environments import OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed

if TYPE_CHECKING:
    import asyncssh

# The exit status overtakes output that is still in a pipe over there; children of the program may keep that pipe open.
SILENCE_AFTER_THE_END_SECONDS = 0.2
OUTPUT_AFTER_THE_END_SECONDS = 3.0
END_OF_TRANSMISSION = b"\x04"


class SshProcess:
    """A program that sshd runs for us; see EngineProcess.

    It is at the same time the session object that asyncssh calls back; it does not inherit from asyncssh's class, since
    that package is optional.
    """

    def __init__(self, where: str, on_output: OnOutput, *, on_terminal: bool, on_closed: Callable[[], None]) -> None:
        self._where = where
        self._on_output = on_output
        self._on_terminal = on_terminal
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._exit_code: int | None = None
        self._outcome: asyncio.Future[int | str] = self._loop.create_future()
        """Its exit code, or the sentence that says why that will never be known."""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._ended_unread = False
        """It ended while a writer waited for it to read."""
        self._last_output = 0.0
        self._drain_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        return None

    @property
    def has_ended(self) -> bool:
        """Nothing can be written to it any more: it ended, or its connection did."""
        return self._exit_code is not None or self._outcome.done()

    @property
    def was_opened(self) -> bool:
        """The server gave us a channel for it, so the program may have started."""
        return self._channel is not None

    async def write(self, data: bytes) -> None:
        if self._channel is None or self.has_ended:
            raise BrokenPipeError(errno.EPIPE, "it has ended")
        self._channel.write(data)
        await self._may_write.wait()
        if self._ended_unread:
            raise BrokenPipeError(errno.EPIPE, "it ended before it had read everything")

    async def close_input(self) -> None:
        if self._channel is None or self._channel.is_closing():
            return
        if self._on_terminal:
            # The end of the stream does not reach a program on a terminal; the end-of-file character does.
            self._channel.write(END_OF_TRANSMISSION)
        else:
            self._channel.write_eof()

    async def resize(self, size: TerminalSize) -> None:
        if self._on_terminal and self._channel is not None and not self._outcome.done():
            self._channel.change_terminal_size(size.columns, size.rows)

    async def wait(self) -> int:
        """Its exit code; raises EnvironmentFailed when the connection was lost before the program ended."""
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, str):
            raise EnvironmentFailed(outcome)
        return outcome

    async def abandon(self) -> None:
        self.let_go("it was abandoned")

    def let_go(self, reason: str) -> None:
        """Close the channel without waiting for anything; whoever waits for the program is told `reason`."""
        self._settle(f"what runs on {self._where} is not watched any more: {reason}")
        self._free_writers()
        if self._channel is not None:
            self._channel.abort()

    # What asyncssh calls:

    def connection_made(self, channel: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = channel

    def session_started(self) -> None:
        return

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._last_output = self._loop.time()
        self._on_output(data)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def eof_received(self) -> bool:
        if self._exit_code is not None:
            self._settle(self._exit_code)
        return True  # A program may close its output and still read.

    def exit_status_received(self, status: int) -> None:
        self._ended(status)

    def exit_signal_received(self, name: str, core_dumped: bool, message: str, language: str) -> None:
        # A server names only the usual signals (`KILL`); for the others its number is not told.
        number = signal.Signals.__members__.get(f"SIG{name}")
        self._ended(128 + (number or 0))

    def connection_lost(self, error: Exception | None) -> None:
        if self._exit_code is not None:
            self._settle(self._exit_code)
        else:
            self._settle(
                f"the connection to {self._where} was lost while a program ran there ({error or 'closed'}); "
                "it is not known whether it goes on. The next command connects again"
            )
        self._free_writers()
        self._on_closed()

    def _ended(self, code: int) -> None:
        self._exit_code = code
        self._free_writers()
        self._last_output = self._loop.time()
        self._drain(self._last_output + OUTPUT_AFTER_THE_END_SECONDS)

    def _free_writers(self) -> None:
        self._ended_unread = self._ended_unread or not self._may_write.is_set()
        self._may_write.set()

    def _drain(self, deadline: float) -> None:
        """Settle once nothing has come for a while; the end of the stream, which is usual, comes first."""
        now = self._loop.time()
        quiet_at = min(self._last_output + SILENCE_AFTER_THE_END_SECONDS, deadline)
        if now >= quiet_at and self._exit_code is not None:
            self._settle(self._exit_code)
        else:
            self._drain_timer = self._loop.call_at(quiet_at, self._drain, deadline)

    def _settle(self, outcome: int | str) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        if not self._outcome.done():
            self._outcome.set_result(outcome)
