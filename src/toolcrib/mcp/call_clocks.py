"""The time limits of the calls on one connection, which rest while the server waits for our side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

Callback = Callable[..., Awaitable[Any]]


class CallClocks:
    """Used on one loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Timeout] = set()
        self._resting: dict[asyncio.Timeout, float] = {}
        self._questions = 0
        """How many of the server are being answered."""

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError where the inside takes longer, the time of our own answers left out."""
        async with asyncio.timeout(seconds) as clock:
            self._running.add(clock)
            if self._questions:
                self._stop(clock)
            try:
                yield
            finally:
                self._running.discard(clock)
                self._resting.pop(clock, None)

    def unhurried(self, answer: Callback | None) -> Any:
        """The callback for a request of the server, during which no call of ours runs out of time.

        A person may think for longer than a server may take. Which call a question belongs to is not always said, so
        the clocks of all of them rest.
        """
        if answer is None:
            return None

        async def answered(*given: Any) -> Any:
            with self._rest():
                return await answer(*given)

        return answered

    @contextmanager
    def _rest(self) -> Iterator[None]:
        self._questions += 1
        if self._questions == 1:
            for clock in self._running:
                self._stop(clock)
        try:
            yield
        finally:
            self._questions -= 1
            if not self._questions:
                self._go_on()

    def _stop(self, clock: asyncio.Timeout) -> None:
        ends = clock.when()
        if ends is not None and not clock.expired():
            self._resting[clock] = ends - asyncio.get_running_loop().time()
            clock.reschedule(None)

    def _go_on(self) -> None:
        now = asyncio.get_running_loop().time()
        for clock, left in self._resting.items():
            clock.reschedule(now + left)
        self._resting.clear()
