"""Calls that come one by one: together where their effects allow it, else in the order in which they came."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.lazy import asyncio
from toolcrib.dispatch.effects import Footprint, Group, Reach, reach_of

FootprintOf = Callable[[str, Mapping[str, Any] | str, ToolContext], Footprint]


class _Turn:
    def __init__(self, look: Callable[[], Reach]) -> None:
        self._look = look
        self._reach: Reach | None = None
        self.begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def reach(self) -> Reach:
        """Only looked at when another call is there, too."""
        if self._reach is None:
            self._reach = self._look()
        return self._reach

    @property
    def has_begun(self) -> bool:
        return self.begins.done()

    def goes_with(self, other: _Turn) -> bool:
        group = Group()
        group.add(other.reach)
        return group.admits(self.reach)


class CallTurns:
    """The calls of one caller, such as a script with threads. Used on one event loop."""

    def __init__(self, footprint: FootprintOf, limit: int) -> None:
        self._footprint = footprint
        self._limit = limit
        self._turns: list[_Turn] = []

    @asynccontextmanager
    async def turn(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> AsyncIterator[None]:
        """Waits until no earlier call stands against this one."""
        one = _Turn(partial(self._reach, name, arguments, ctx))
        self._turns.append(one)
        try:
            self._let_begin()
            await one.begins
            yield
        finally:
            self._turns.remove(one)
            self._let_begin()

    def _reach(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> Reach:
        return reach_of(self._footprint(name, arguments, ctx), ctx.cwd)

    def _let_begin(self) -> None:
        running = sum(turn.has_begun for turn in self._turns)
        for index, turn in enumerate(self._turns):
            if turn.has_begun:
                continue
            if running < self._limit and all(turn.goes_with(earlier) for earlier in self._turns[:index]):
                turn.begins.set_result(None)
                running += 1
