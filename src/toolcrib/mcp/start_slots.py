"""Lets a few servers start at a time, so that fifty of them do not take the whole machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 8
SECONDS = 1.5
"""A server that takes longer waits for something else than the machine, and does not hold up the next one."""


class StartSlots:
    """Shared by all servers; used on one event loop."""

    def __init__(self, at_once: int = AT_ONCE, seconds: float = SECONDS) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._seconds = seconds

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a slot; it is given back at the end of the block, or before that when the time is up."""
        await self._free.acquire()
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()
