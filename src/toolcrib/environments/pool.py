"""Hands out environments: one for each key, opened once, kept while it is used, given back when it stood idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from toolcrib.core.attempt import attempt_async
from toolcrib.core.environments import Environment, EnvironmentSpec
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.specs import check_overrides

logger = logging.getLogger(__name__)

Create = Callable[[EnvironmentSpec], Environment]
State = Literal["opening", "in use", "busy", "idle", "closing"]
CLOSE_SECONDS = 60.0
NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEntry:
    """What the pool holds for one key, at the moment of asking."""

    spec: EnvironmentSpec
    state: State
    """`busy`: nobody holds it, but something runs in it."""
    leases: int
    idle_seconds: float
    environment: Environment | None
    """None until it is open."""


@dataclass(slots=True, eq=False)
class _Place:
    spec: EnvironmentSpec
    opening: asyncio.Task[Environment]
    waiting: int = 0
    leases: int = 0
    idle_since: float = 0.0
    closing: asyncio.Task[None] | None = None

    @property
    def environment(self) -> Environment | None:
        done = self.opening.done() and not self.opening.cancelled() and self.opening.exception() is None
        return self.opening.result() if done else None

    @property
    def is_unused(self) -> bool:
        """Open, and nobody holds it or is about to."""
        return self.environment is not None and not self.leases and not self.waiting and self.closing is None


class EnvironmentPool:
    """The open environments of one Runtime, by key. Used on one event loop only."""

    def __init__(
        self,
        create: Create,
        *,
        lifetime_seconds: float,
        is_busy: Callable[[Environment], bool] = lambda _: False,
        on_open: Callable[[Environment], None] = lambda _: None,
        on_close: Callable[[Environment], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`create` makes an environment that is not open yet; `is_busy` tells of work that no lease stands for.

        `on_open` is told of each that was opened, `on_close` of each that was given back.
        """
        self._create = create
        self._lifetime_seconds = lifetime_seconds
        self._is_busy = is_busy
        self._on_open = on_open
        self._on_close = on_close
        self._clock = clock
        self._places: dict[EnvironmentSpec, _Place] = {}
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reaping: asyncio.Task[None] | None = None

    # Handing out

    @asynccontextmanager
    async def acquire(self, spec: EnvironmentSpec) -> AsyncIterator[Environment]:
        """The environment of that key, opened if need be; it stays open at least until the block is left."""
        place, environment = await self._opened(spec)
        place.leases += 1
        try:
            yield environment
        finally:
            place.leases -= 1
            place.idle_since = self._clock()
            self._watch_for_idleness()

    def entries(self) -> list[PoolEntry]:
        """What is open, and what is on its way."""
        return [self._entry(place) for place in self._places.values()]

    def find(self, spec: EnvironmentSpec) -> Environment | None:
        """The environment of that key, if it is open."""
        place = self._places.get(spec)
        return place.environment if place is not None and place.closing is None else None

    # Giving back

    async def discard(self, environment: Environment) -> None:
        """Drop one that was lost: whoever asks for its key next gets a new one."""
        await self._close(place for place in self._places.values() if place.environment is environment)

    async def close(self, spec: EnvironmentSpec) -> None:
        """Close the environment of that key, whatever runs in it; harmless when there is none."""
        await self._close(place for place in self._places.values() if place.spec == spec)

    async def close_session(self, session: str) -> None:
        """Close every environment of a session."""
        await self._close(place for place in self._places.values() if place.spec.session == session)

    async def close_all(self) -> None:
        """Close everything, whatever runs. The pool can be used again afterwards."""
        await self._close(self._places.values())
        if self._reaping is not None:
            await asyncio.wait([self._reaping])
        self._watch_for_idleness()

    async def reap(self) -> None:
        """Close what stood idle for too long. Happens by itself; never touches what is held or busy."""
        now = self._clock()
        unused = [place for place in self._places.values() if place.is_unused]
        for place in unused:
            if place.environment is not None and self._is_busy(place.environment):
                # Its time begins when the last process in it has ended.
                place.idle_since = now
        await self._close(place for place in unused if now - place.idle_since >= self._lifetime_seconds)
        self._watch_for_idleness()

    # What single tasks want differently

    def set_override(self, task: str, overrides: Mapping[str, str]) -> None:
        """From now on this task wants another backend, image or folder; raises ConfigError for an unknown name."""
        check_overrides(overrides)
        self._overrides[task] = MappingProxyType(dict(overrides))

    def clear_override(self, task: str) -> None:
        self._overrides.pop(task, None)

    def override_of(self, task: str) -> Mapping[str, str]:
        return self._overrides.get(task, NO_OVERRIDES)

    # Inside

    async def _opened(self, spec: EnvironmentSpec) -> tuple[_Place, Environment]:
        while (place := self._places.get(spec)) is not None and place.closing is not None:
            await asyncio.wait([place.closing])
        if place is None:
            place = _Place(spec, asyncio.ensure_future(self._open(spec)))
            self._places[spec] = place
        place.waiting += 1
        try:
            environment = await asyncio.shield(place.opening)
        except asyncio.CancelledError as error:
            if place.opening.cancelled() and not _is_being_cancelled():
                raise EnvironmentFailed(f"the {spec.backend!r} environment was closed while it was opened") from error
            raise
        finally:
            place.waiting -= 1
            self._settle(place)
        return (place, environment) if place.closing is None else await self._opened(spec)

    def _settle(self, place: _Place) -> None:
        """See to it that a failed opening is not remembered, and that one which all gave up is not finished."""
        if place.environment is not None:
            place.idle_since = self._clock()
            self._watch_for_idleness()
        elif place.opening.done():
            self._forget(place)
        elif not place.waiting:
            self._begin_to_close(place)

    async def _open(self, spec: EnvironmentSpec) -> Environment:
        environment = self._create(spec)
        try:
            await environment.open()
            self._on_open(environment)
        except BaseException:
            await _close_quietly(environment)
            raise
        return environment

    async def _close(self, places: Iterable[_Place]) -> None:
        """Close each once, whoever asks; it goes on when they give up, for what is half closed is in the way."""
        if closing := [self._begin_to_close(place) for place in places]:
            await asyncio.wait(closing)

    def _begin_to_close(self, place: _Place) -> asyncio.Task[None]:
        # From here on nobody can acquire it: there is no step between looking whether it is unused and this.
        if place.closing is None:
            place.closing = asyncio.ensure_future(self._finish(place))
        return place.closing

    async def _finish(self, place: _Place) -> None:
        try:
            if not place.opening.done():
                place.opening.cancel()
                await asyncio.wait([place.opening])
            if place.environment is not None and await _close_quietly(place.environment):
                self._on_close(place.environment)
        finally:
            self._forget(place)

    def _forget(self, place: _Place) -> None:
        if self._places.get(place.spec) is place:
            del self._places[place.spec]

    def _watch_for_idleness(self) -> None:
        """Wake up when the next of those that nobody holds may have stood idle for long enough."""
        # One that is used in between only makes that moment come too early, which the next look finds out.
        if self._timer is not None:
            return
        waits = [
            place.idle_since + self._lifetime_seconds - self._clock()
            for place in self._places.values()
            if place.is_unused
        ]
        if waits:
            self._timer = asyncio.get_running_loop().call_later(max(min(waits), 0.0), self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        if self._reaping is None or self._reaping.done():
            self._reaping = asyncio.ensure_future(self.reap())

    def _entry(self, place: _Place) -> PoolEntry:
        environment = place.environment
        state: State = "idle"
        if place.closing is not None:
            state = "closing"
        elif environment is None:
            state = "opening"
        elif place.leases:
            state = "in use"
        elif self._is_busy(environment):
            state = "busy"
        idle_seconds = max(self._clock() - place.idle_since, 0.0) if state == "idle" else 0.0
        return PoolEntry(
            spec=place.spec, state=state, leases=place.leases, idle_seconds=idle_seconds, environment=environment
        )


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _close_quietly(environment: Environment) -> bool:
    """Close, and say whether it is closed; a failure is logged, for nobody can do more about it here than to go on."""
    # A third party's backend may fail in any way, and the others must be closed too.
    _, error = await attempt_async(asyncio.wait_for(environment.close(), CLOSE_SECONDS))
    if error is not None:
        logger.warning("an environment of kind %r could not be closed", environment.kind, exc_info=error)
    return error is None
