"""One question at a time: calls that need the same person wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from threading import Lock


class QuestionQueue:
    """Hands out turns at the terminal. Waiting never blocks the loop; cancelling a wait does not affect others."""

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
            turn: Future[None] = Future()
            self._waiting.append(turn)
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            # `cancel` fails if the turn was handed over before it ran; then pass the turn on.
            if not turn.cancel():
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
