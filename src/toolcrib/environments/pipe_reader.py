"""Reads what programs write into pipes and terminals, on an event loop."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable

from toolcrib.core.environments import OnOutput

READ_BYTES = 256 * 1024
USUAL_PIPE_BYTES = 64 * 1024
LARGE_PIPE_BYTES = 1024 * 1024
# A child that floods the pipe after its parent ended must not keep us reading for ever.
READS_AFTER_THE_END = 64
# This many pieces in this time are a burst; while one lasts, pieces are let come together between two looks.
BURST_PIECES = 32
BURST_SECONDS = 0.02
MANY_PIECES_BYTES = 4096
REST_SECONDS = 0.003


class PipeReader:
    """Hands on what arrives in a pipe or terminal, as the loop has time for it."""

    def __init__(
        self, descriptor: int, on_output: OnOutput, *, is_pipe: bool = True, on_close: Callable[[], None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._on_output = on_output
        self._on_close = on_close
        self._may_grow = is_pipe
        self._pace = _Pace()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._arrived)

    @property
    def descriptor(self) -> int | None:
        """None once it is closed."""
        return self._descriptor

    def read(self) -> bool:
        """Hand over what has arrived; False when there is nothing (more) to read now."""
        if self._descriptor is None:
            return False
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # EIO: the last process on the terminal has gone.
        if not data:
            self.close()
            return False
        if self._may_grow and len(data) >= USUAL_PIPE_BYTES:
            self._grow(self._descriptor)
        self._pace.note(len(data), self._loop.time())
        self._on_output(data)
        return True

    def read_what_is_left(self) -> None:
        """The writer has ended; what others still write is read as it comes."""
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
        if self.read() and self._pace.is_trickling and self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._loop.call_later(REST_SECONDS, self._rested)

    def _rested(self) -> None:
        if self._descriptor is not None:
            self._loop.add_reader(self._descriptor, self._arrived)

    def _grow(self, descriptor: int) -> None:
        """More room means fewer switches between the program and us, which is most of the cost of large output."""
        self._may_grow = False
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, LARGE_PIPE_BYTES)
        except (AttributeError, OSError):
            return  # Not on this system, or the user's share is used up.


class _Pace:
    """Tells a program that writes many small pieces without a pause.

    Waking up for each piece would take the time of the processor from that very program. When little has come during a
    rest, the pieces were answers that somebody waits for, or the end: the next ones are taken as they come again.
    """

    def __init__(self) -> None:
        self.is_trickling = False
        self._pieces = 0
        self._since = 0.0

    def note(self, size: int, now: float) -> None:
        if size >= MANY_PIECES_BYTES:
            return
        if self.is_trickling:
            self.is_trickling, self._pieces = False, 0
        if not self._pieces:
            self._since = now
        self._pieces += 1
        if self._pieces == BURST_PIECES:
            self.is_trickling, self._pieces = now - self._since < BURST_SECONDS, 0
