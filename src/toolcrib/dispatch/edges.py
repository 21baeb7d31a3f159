"""How the pipeline waits, which depends on who called: a coroutine, or synchronous code.

The pipeline itself is one coroutine. For synchronous callers it never suspends: whatever has to be waited for is run
to its end by the bridge, so the coroutine is driven by a single `send`.

| edge       | for                                         | coroutines            | blocking functions |
|------------|---------------------------------------------|-----------------------|--------------------|
| AsyncEdge  | callers that await                          | awaited               | in the pool        |
| SyncEdge   | synchronous callers                         | on the bridge         | inline             |
| ThreadEdge | blocking middleware of a caller that awaits | on that caller's loop | inline             |
| InlineEdge | async middleware of a synchronous caller    | awaited               | inline             |
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from toolcrib.bridge import Bridge
from toolcrib.core.context import CancelToken
from toolcrib.core.lazy import asyncio
from toolcrib.dispatch.threads import DaemonPool

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

CLEAN_UP_SECONDS = 0.1
"""How long a stopped handler may take to clean up before its caller goes on without it."""
CLEAN_UP_AFTER_EFFECTS_SECONDS = 5.0
"""The same for one with effects, which may have processes to end."""


class Limit(NamedTuple):
    """What may stop a call before it ends by itself."""

    seconds: float | None = None
    cancel: CancelToken | None = None
    clean_up_seconds: float = CLEAN_UP_SECONDS

    @property
    def is_none(self) -> bool:
        return self.seconds is None and self.cancel is None


class CallCancelled(Exception):
    """The call's cancel token was cancelled while it ran."""


class CallTimedOut(Exception):
    """The call's deadline passed while it ran."""


class Edge(Protocol):
    blocks_inline: bool
    """A blocking function may be called as it is, instead of through `block`."""

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """The awaitable's result."""
        ...

    async def wait_bounded(self, awaitable: Awaitable[T], limit: Limit) -> T:
        """The awaitable's result; raises CallTimedOut or CallCancelled when it is stopped first."""
        ...

    async def block(self, function: Callable[[], T], seconds: float | None, cancel: CancelToken | None) -> T:
        """The result of a function that may block."""
        ...

    def within_wait(self) -> Edge:
        """The edge for what a coroutine given to `wait` runs in its turn."""
        ...

    def within_block(self) -> Edge:
        """The edge for what a function given to `block` runs in its turn; on it nothing suspends, so `drive` works."""
        ...

    def passes_on(self, error: BaseException) -> bool:
        """Whether what a handler raised is meant for the caller's program, and not for the model."""
        ...


class AsyncEdge:
    """For callers that await."""

    blocks_inline = False

    def __init__(self, pool: DaemonPool) -> None:
        self._pool = pool

    async def wait(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    async def wait_bounded(self, awaitable: Awaitable[T], limit: Limit) -> T:
        if limit.is_none:
            return await awaitable
        try:
            return await _bounded(_without_exit(awaitable), limit)
        finally:
            _discard(awaitable)

    async def block(self, function: Callable[[], T], seconds: float | None, cancel: CancelToken | None) -> T:
        return await self.wait_bounded(self._pool.run(function), Limit(seconds, cancel))

    def within_wait(self) -> Edge:
        return self

    def within_block(self) -> Edge:
        return ThreadEdge(asyncio.get_running_loop(), self)

    def passes_on(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):
            # A handler may let the cancellation of something of its own escape; only the caller's is the caller's.
            task = asyncio.current_task()
            return task is not None and task.cancelling() > 0
        return isinstance(error, (KeyboardInterrupt, GeneratorExit))


class _BlocksInline:
    """A thread that belongs to the call: it may as well run the function itself, which nothing can interrupt."""

    blocks_inline = True

    async def block(self, function: Callable[[], T], seconds: float | None, cancel: CancelToken | None) -> T:
        return function()


class SyncEdge(_BlocksInline):
    """For synchronous callers: blocking handlers run in the caller's thread, coroutines on the bridge."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def wait(self, awaitable: Awaitable[T]) -> T:
        return self._bridge.run(_as_coroutine(awaitable))

    async def wait_bounded(self, awaitable: Awaitable[T], limit: Limit) -> T:
        if limit.is_none:
            return self._bridge.run(_as_coroutine(awaitable))
        return self._bridge.run(_bounded(awaitable, limit))

    def within_wait(self) -> Edge:
        return InlineEdge(self)

    def within_block(self) -> Edge:
        return self

    def passes_on(self, error: BaseException) -> bool:
        return isinstance(error, (KeyboardInterrupt, SystemExit))


class InlineEdge(_BlocksInline):
    """For async middleware of a synchronous caller: the handler is awaited on the loop that the middleware is on."""

    def __init__(self, outer: SyncEdge) -> None:
        self._outer = outer

    async def wait(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    async def wait_bounded(self, awaitable: Awaitable[T], limit: Limit) -> T:
        if limit.is_none:
            return await awaitable
        return await _bounded(awaitable, limit)

    def within_wait(self) -> Edge:
        return self

    def within_block(self) -> Edge:
        return self._outer

    def passes_on(self, error: BaseException) -> bool:
        return self._outer.passes_on(error)


class ThreadEdge(_BlocksInline):
    """For middleware that blocks in a thread of the pool while its caller awaits on a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, outer: AsyncEdge) -> None:
        self._loop = loop
        self._outer = outer
        self._running: Future[Any] | None = None
        self._stopped = threading.Event()

    async def wait(self, awaitable: Awaitable[T]) -> T:
        if self._stopped.is_set():
            _discard(awaitable)
            raise CallCancelled
        running: Future[T] = asyncio.run_coroutine_threadsafe(_as_coroutine(awaitable), self._loop)
        self._running = running
        if self._stopped.is_set():
            running.cancel()
        return running.result()

    async def wait_bounded(self, awaitable: Awaitable[T], limit: Limit) -> T:
        try:
            return await self.wait(self._outer.wait_bounded(awaitable, limit))
        finally:
            _discard(awaitable)

    def within_wait(self) -> Edge:
        return self._outer

    def within_block(self) -> Edge:
        return self

    def passes_on(self, error: BaseException) -> bool:
        return isinstance(error, GeneratorExit)

    def stop(self) -> None:
        """Cancels what the thread waits for: nobody waits for the thread any more."""
        self._stopped.set()
        if self._running is not None:
            self._running.cancel()


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a call from synchronous code tried to suspend; waits must go through the edge")


def _as_coroutine(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    return awaitable if asyncio.iscoroutine(awaitable) else _await(awaitable)


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _without_exit(awaitable: Awaitable[T]) -> T:
    """The awaitable's result; `sys.exit()` in a task of its own would end the loop, and all other calls with it."""
    try:
        return await awaitable
    except SystemExit as error:
        raise RuntimeError("the handler raised SystemExit") from error


def _discard(awaitable: Awaitable[Any]) -> None:
    """Closes a coroutine that was stopped before it began; Python would complain that nobody awaited it."""
    if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
        awaitable.close()


async def _bounded(awaitable: Awaitable[T], limit: Limit) -> T:
    seconds = limit.seconds
    task = asyncio.ensure_future(awaitable)
    stopped = asyncio.get_running_loop().create_future()
    forget = _settle_on_cancel(limit.cancel, stopped)
    try:
        await asyncio.wait({task, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            # A handler that swallows the cancellation must not hold up its caller.
            await asyncio.wait({task}, timeout=limit.clean_up_seconds)
            if task.done() and not task.cancelled() and task.exception() is None:
                # It answered its own cancellation: a command that was stopped tells what it printed so far.
                return task.result()
            if stopped.done():
                raise CallCancelled
            raise CallTimedOut(f"no answer within {round(seconds or 0, 3):g} seconds; the call was cancelled")
        return task.result()
    finally:
        forget()
        stopped.cancel()
        if not task.done():
            task.cancel()
        task.add_done_callback(_read_outcome)


def _settle_on_cancel(cancel: CancelToken | None, stopped: asyncio.Future[None]) -> Callable[[], None]:
    if cancel is None:
        return lambda: None
    loop = stopped.get_loop()

    def settle() -> None:
        if not stopped.done():
            stopped.set_result(None)

    def stop() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle)

    return cancel.on_cancel(stop)


def _read_outcome(task: asyncio.Future[Any]) -> None:
    """Marks the late exception of an abandoned task as seen."""
    if not task.cancelled():
        task.exception()
