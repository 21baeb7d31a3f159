"""One question at a time, first come first served, for callers in any thread and any event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from threading import Lock


class Turns:
    """Hands out turns. Waiting blocks no loop, and one who gives up waiting loses nothing for the others."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._busy = False
        self._waiting: deque[Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        await self._acquire()
        try:
            yield
        finally:
            self._release()

    async def _acquire(self) -> None:
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            mine: Future[None] = Future()
            self._waiting.append(mine)
        try:
            await asyncio.wrap_future(mine)
        except asyncio.CancelledError:
            # `cancel` fails when the turn was handed over in the meantime; then it goes on to the next.
            if not mine.cancel():
                self._release()
            raise

    def _release(self) -> None:
        with self._lock:
            while self._waiting:
                following = self._waiting.popleft()
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._busy = False
