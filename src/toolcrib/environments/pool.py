"""Hands out environments: one per key, opened once, kept while in use, closed when idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from toolcrib.config.os_errors import explain_os_error
from toolcrib.core.attempt import attempt_async
from toolcrib.core.environments import Environment, EnvironmentSpec
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.specs import check_overrides

logger = logging.getLogger(__name__)

Create = Callable[[EnvironmentSpec], Environment]
State = Literal["opening", "in use", "busy", "idle", "closing"]
CLOSE_SECONDS = 60.0
NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})


class PoolEntry(Struct, frozen=True, kw_only=True):
    """What the pool holds for one key at this moment."""

    spec: EnvironmentSpec
    state: State
    """`busy`: not leased, but something runs in it."""
    leases: int
    idle_seconds: float
    environment: Environment | None
    """None until it is open."""


class _PooledEnvironment(Struct, eq=False):
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
        """Open, and neither leased nor about to be."""
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
        """`create` makes an environment that is not open yet; `is_busy` reports work that holds no lease.

        `on_open` is called with each environment that was opened, `on_close` with each that was closed.
        """
        self._create = create
        self._lifetime_seconds = lifetime_seconds
        self._is_busy = is_busy
        self._on_open = on_open
        self._on_close = on_close
        self._clock = clock
        self._environments: dict[EnvironmentSpec, _PooledEnvironment] = {}
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reaping: asyncio.Task[None] | None = None

    # Leasing

    @asynccontextmanager
    async def acquire(self, spec: EnvironmentSpec) -> AsyncIterator[Environment]:
        """The environment of that key, opened if necessary; it stays open at least until the block is left."""
        pooled, environment = await self._opened(spec)
        pooled.leases += 1
        try:
            yield environment
        finally:
            pooled.leases -= 1
            pooled.idle_since = self._clock()
            self._watch_for_idleness()

    def entries(self) -> list[PoolEntry]:
        """All environments that are open, opening or closing."""
        return [self._entry(pooled) for pooled in self._environments.values()]

    def find(self, spec: EnvironmentSpec) -> Environment | None:
        """The environment of that key, if it is open."""
        pooled = self._environments.get(spec)
        return pooled.environment if pooled is not None and pooled.closing is None else None

    # Closing

    async def discard(self, environment: Environment) -> None:
        """Drop an environment that was lost: the next caller with its key gets a new one."""
        await self._close(pooled for pooled in self._environments.values() if pooled.environment is environment)

    async def close(self, spec: EnvironmentSpec) -> None:
        """Close the environment of that key, whatever runs in it. Does nothing when there is none."""
        await self._close(pooled for pooled in self._environments.values() if pooled.spec == spec)

    async def close_session(self, session: str) -> None:
        """Close every environment of a session, including those of its tasks; or those of one task."""
        every = self._environments.values()
        await self._close(pooled for pooled in every if session in (pooled.spec.session, pooled.spec.task))

    async def close_all(self) -> None:
        """Close all environments, whatever runs in them. The pool can be used again afterwards."""
        await self._close(self._environments.values())
        if self._reaping is not None:
            await asyncio.wait([self._reaping])
        self._watch_for_idleness()

    async def reap(self) -> None:
        """Close environments that were idle too long. Runs by itself; never touches one that is leased or busy."""
        now = self._clock()
        unused = [pooled for pooled in self._environments.values() if pooled.is_unused]
        for pooled in unused:
            if pooled.environment is not None and self._is_busy(pooled.environment):
                # Its idle time starts when the last process in it has ended.
                pooled.idle_since = now
        await self._close(pooled for pooled in unused if now - pooled.idle_since >= self._lifetime_seconds)
        self._watch_for_idleness()

    # Overrides of single tasks

    def set_override(self, task: str, overrides: Mapping[str, str]) -> None:
        """Give this task another backend, image or folder; raises ConfigError for an unknown name."""
        check_overrides(overrides)
        self._overrides[task] = MappingProxyType(dict(overrides))

    def clear_override(self, task: str) -> None:
        self._overrides.pop(task, None)

    def override_of(self, task: str) -> Mapping[str, str]:
        return self._overrides.get(task, NO_OVERRIDES)

    # Inside

    async def _opened(self, spec: EnvironmentSpec) -> tuple[_PooledEnvironment, Environment]:
        while (pooled := self._environments.get(spec)) is not None and pooled.closing is not None:
            await asyncio.wait([pooled.closing])
        if pooled is None:
            pooled = _PooledEnvironment(spec, asyncio.ensure_future(self._open(spec)))
            self._environments[spec] = pooled
        pooled.waiting += 1
        try:
            environment = await asyncio.shield(pooled.opening)
        except asyncio.CancelledError as error:
            if pooled.opening.cancelled() and not _is_being_cancelled():
                raise EnvironmentFailed(f"the {spec.backend!r} environment was closed while it was opening") from error
            raise
        finally:
            pooled.waiting -= 1
            self._settle(pooled)
        return (pooled, environment) if pooled.closing is None else await self._opened(spec)

    def _settle(self, pooled: _PooledEnvironment) -> None:
        """Forget a failed opening, and cancel one that nobody waits for any more."""
        if pooled.environment is not None:
            pooled.idle_since = self._clock()
            self._watch_for_idleness()
        elif pooled.opening.done():
            self._forget(pooled)
        elif not pooled.waiting:
            self._begin_to_close(pooled)

    async def _open(self, spec: EnvironmentSpec) -> Environment:
        try:
            environment = self._create(spec)
            async with AsyncExitStack() as undo:
                undo.push_async_callback(_close_quietly, environment)
                await environment.open()
                self._on_open(environment)
                undo.pop_all()
        except OSError as error:
            if error.errno is None:
                raise  # a timeout of ours
            what = f"the {spec.backend!r} environment cannot be opened"
            raise EnvironmentFailed(f"{what}: {explain_os_error(error)}") from error
        return environment

    async def _close(self, several: Iterable[_PooledEnvironment]) -> None:
        """Close each one once. Closing continues if the caller gives up: a half-closed one would block its key."""
        if closing := [self._begin_to_close(pooled) for pooled in several]:
            await asyncio.wait(closing)

    def _begin_to_close(self, pooled: _PooledEnvironment) -> asyncio.Task[None]:
        # From here on nobody can acquire it: nothing is awaited between the check that it is unused and this.
        if pooled.closing is None:
            pooled.closing = asyncio.ensure_future(self._finish(pooled))
        return pooled.closing

    async def _finish(self, pooled: _PooledEnvironment) -> None:
        try:
            if not pooled.opening.done():
                pooled.opening.cancel()
                await asyncio.wait([pooled.opening])
            if pooled.environment is not None and await _close_quietly(pooled.environment):
                self._on_close(pooled.environment)
        finally:
            self._forget(pooled)

    def _forget(self, pooled: _PooledEnvironment) -> None:
        if self._environments.get(pooled.spec) is pooled:
            del self._environments[pooled.spec]

    def _watch_for_idleness(self) -> None:
        """Set a timer for the next unused environment that may have been idle long enough."""
        # If it is used in between, the timer fires too early and the next check finds that out.
        if self._timer is not None:
            return
        waits = [
            pooled.idle_since + self._lifetime_seconds - self._clock()
            for pooled in self._environments.values()
            if pooled.is_unused
        ]
        if waits:
            self._timer = asyncio.get_running_loop().call_later(max(min(waits), 0.0), self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        if self._reaping is None or self._reaping.done():
            self._reaping = asyncio.ensure_future(self.reap())

    def _entry(self, pooled: _PooledEnvironment) -> PoolEntry:
        environment = pooled.environment
        state: State = "idle"
        if pooled.closing is not None:
            state = "closing"
        elif environment is None:
            state = "opening"
        elif pooled.leases:
            state = "in use"
        elif self._is_busy(environment):
            state = "busy"
        idle_seconds = max(self._clock() - pooled.idle_since, 0.0) if state == "idle" else 0.0
        return PoolEntry(
            spec=pooled.spec, state=state, leases=pooled.leases, idle_seconds=idle_seconds, environment=environment
        )


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _close_quietly(environment: Environment) -> bool:
    """Close the environment and return whether that worked; a failure is logged, as nothing else can be done here."""
    # A third-party backend may raise anything, and the other environments must still be closed.
    _, error = await attempt_async(asyncio.wait_for(environment.close(), CLOSE_SECONDS))
    if error is not None:
        logger.warning("could not close an environment of kind %r", environment.kind, exc_info=error)
    return error is None
