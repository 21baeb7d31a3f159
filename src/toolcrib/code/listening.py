"""What a script says, brought from the loop where it lives to the loop of whoever called it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable

from toolcrib.code.channel import CallFrame
from toolcrib.core.context import ToolContext

MOST_WAITING_BYTES = 64 * 1024
"""Who watches sees this much of what a script prints at once; the result has the rest."""
LONGEST_LINE = 64 * 1024
"""Who watches sees this much of a line."""


class CallerSide:
    """Hands calls of tools to the caller, and lines to whoever watches, in the order in which they come."""

    def __init__(self, ctx: ToolContext, mask: Callable[[str], str]) -> None:
        self._ctx = ctx
        self._mask = mask
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._lock = threading.Lock()
        self._calls: deque[CallFrame] = deque()
        self._printed = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        self._finished = False

    # From the script's loop

    def called(self, call: CallFrame) -> None:
        with self._lock:
            self._calls.append(call)
        self._wake()

    def printed(self, data: bytes) -> None:
        if self._ctx.on_progress is None:
            return
        with self._lock:
            is_news = not self._printed
            self._printed += data[: MOST_WAITING_BYTES - len(self._printed)]
        if is_news:
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # The caller's loop may be closed by now.
            self._loop.call_soon_threadsafe(self._news.set)

    # On the caller's loop

    def finish(self) -> None:
        """Nothing more will come."""
        self._finished = True
        self._news.set()

    async def calls(self) -> AsyncIterator[CallFrame]:
        """The calls as they come, until the script has ended; what it prints goes to whoever watches meanwhile."""
        while True:
            await self._news.wait()
            self._news.clear()
            was_finished = self._finished
            with self._lock:
                calls, self._calls = self._calls, deque()
                printed, self._printed = bytes(self._printed), bytearray()
            self._show(printed, last=was_finished)
            if was_finished:
                return
            for call in calls:
                yield call

    def _show(self, data: bytes, *, last: bool) -> None:
        first, *lines = self._decoder.decode(data, last).split("\n")
        lines.insert(0, self._line + first[: LONGEST_LINE - len(self._line)])
        self._line = "" if last else lines.pop()
        shown = [line for line in lines if line.strip()]
        if shown:
            self._ctx.progress(self._mask("\n".join(shown)))
