"""Executors: how the pipeline waits and runs blocking handlers, for coroutines and for synchronous callers.

The pipeline itself is one coroutine. For synchronous callers it never suspends: the bridge runs every awaitable to its
end, so a single `send` drives the coroutine.

| executor       | for                                         | coroutines            | blocking functions |
|------------|---------------------------------------------|-----------------------|--------------------|
| AsyncExecutor  | callers that await                          | awaited               | in the pool        |
| SyncExecutor   | synchronous callers                         | on the bridge         | inline             |
| ThreadExecutor | blocking middleware of a caller that awaits | on that caller's loop | inline             |
| InlineExecutor | async middleware of a synchronous caller    | awaited               | inline             |
"""

from __future__ import annotations

import contextvars
import inspect
import math
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from toolcrib.bridge import Bridge
from toolcrib.core.attempt import attempt_everything
from toolcrib.core.cancel import CancelToken, finish_in_thread
from toolcrib.core.lazy import asyncio

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

CLEAN_UP_SECONDS = 0.1
"""How long a stopped handler may take to clean up before its caller continues without it."""
CLEAN_UP_AFTER_EFFECTS_SECONDS = 5.0
"""The same for a handler with effects, which may have processes to end."""


class CallLimit(NamedTuple):
    """What may stop a call before it finishes."""

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


class Executor(Protocol):
    runs_inline: bool
    """Whether a blocking function may be called directly instead of through `block`."""

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """The awaitable's result."""
        ...

    async def wait_bounded(self, awaitable: Awaitable[T], limit: CallLimit) -> T:
        """The awaitable's result; raises CallTimedOut or CallCancelled if it is stopped first."""
        ...

    async def block(self, function: Callable[[], T], seconds: float | None, cancel: CancelToken | None) -> T:
        """The result of a function that may block."""
        ...

    async def record(self, function: Callable[[], None]) -> None:
        """Call a function that writes to disk; a caller that is cancelled meanwhile waits until it is done."""
        ...

    def nested_in_wait(self) -> Executor:
        """The executor for nested work of a coroutine passed to `wait`."""
        ...

    def nested_in_block(self) -> Executor:
        """The executor for nested work of a function passed to `block`; it never suspends, so `drive` works."""
        ...

    def propagates(self, error: BaseException) -> bool:
        """Whether a handler's exception is for the calling program and not for the model."""
        ...


class AsyncExecutor:
    """For callers that await."""

    runs_inline = False

    def __init__(self, pool: DaemonPool) -> None:
        self._pool = pool

    async def wait(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    async def wait_bounded(self, awaitable: Awaitable[T], limit: CallLimit) -> T:
        if limit.is_none:
            return await awaitable
        try:
            return await _bounded(_without_exit(awaitable), limit)
        finally:
            _discard(awaitable)

    async def block(self, function: Callable[[], T], seconds: float | None, cancel: CancelToken | None) -> T:
        return await self.wait_bounded(self._pool.run(function), CallLimit(seconds, cancel))

    async def record(self, function: Callable[[], None]) -> None:
        await finish_in_thread(function)

    def nested_in_wait(self) -> Executor:
        return self

    def nested_in_block(self) -> Executor:
        return ThreadExecutor(asyncio.get_running_loop(), self)

    def propagates(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):
            # A handler may leak the cancellation of its own task; only pass on the caller's cancellation.
            task = asyncio.current_task()
            return task is not None and task.cancelling() > 0
        return isinstance(error, (KeyboardInterrupt, GeneratorExit))


class _BlocksInline:
    """The thread belongs to the call, so it runs the function itself; nothing can interrupt it."""

    runs_inline = True

    async def block(self, function: Callable[[], T], seconds: float | None, cancel: CancelToken | None) -> T:
        return function()

    async def record(self, function: Callable[[], None]) -> None:
        function()


class SyncExecutor(_BlocksInline):
    """For synchronous callers: blocking handlers run in the caller's thread, coroutines on the bridge."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def wait(self, awaitable: Awaitable[T]) -> T:
        return self._bridge.run(_as_coroutine(awaitable))

    async def wait_bounded(self, awaitable: Awaitable[T], limit: CallLimit) -> T:
        if limit.is_none:
            return self._bridge.run(_as_coroutine(awaitable))
        return self._bridge.run(_bounded(awaitable, limit))

    def nested_in_wait(self) -> Executor:
        return InlineExecutor(self)

    def nested_in_block(self) -> Executor:
        return self

    def propagates(self, error: BaseException) -> bool:
        return isinstance(error, (KeyboardInterrupt, SystemExit))


class InlineExecutor(_BlocksInline):
    """For async middleware of a synchronous caller: awaits the handler on the middleware's loop."""

    def __init__(self, outer: SyncExecutor) -> None:
        self._outer = outer

    async def wait(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    async def wait_bounded(self, awaitable: Awaitable[T], limit: CallLimit) -> T:
        if limit.is_none:
            return await awaitable
        return await _bounded(awaitable, limit)

    def nested_in_wait(self) -> Executor:
        return self

    def nested_in_block(self) -> Executor:
        return self._outer

    def propagates(self, error: BaseException) -> bool:
        return self._outer.propagates(error)


class ThreadExecutor(_BlocksInline):
    """For middleware that blocks in a pool thread while its caller awaits on a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, outer: AsyncExecutor) -> None:
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

    async def wait_bounded(self, awaitable: Awaitable[T], limit: CallLimit) -> T:
        try:
            return await self.wait(self._outer.wait_bounded(awaitable, limit))
        finally:
            _discard(awaitable)

    def nested_in_wait(self) -> Executor:
        return self._outer

    def nested_in_block(self) -> Executor:
        return self

    def propagates(self, error: BaseException) -> bool:
        return isinstance(error, GeneratorExit)

    def stop(self) -> None:
        """Cancels what the thread waits for, because its caller has stopped waiting for the thread."""
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
    raise RuntimeError("a call from synchronous code tried to suspend; waits must go through the executor")


def _as_coroutine(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    return awaitable if asyncio.iscoroutine(awaitable) else _await(awaitable)


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _without_exit(awaitable: Awaitable[T]) -> T:
    """The awaitable's result; `sys.exit()` in its own task would end the loop and with it all other calls."""
    try:
        return await awaitable
    except SystemExit as error:
        raise RuntimeError("the handler raised SystemExit") from error


def _discard(awaitable: Awaitable[Any]) -> None:
    """Closes a coroutine that was stopped before it started; otherwise Python warns that it was never awaited."""
    if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
        awaitable.close()


async def _bounded(awaitable: Awaitable[T], limit: CallLimit) -> T:
    seconds = limit.seconds
    task = asyncio.ensure_future(awaitable)
    stopped = asyncio.get_running_loop().create_future()
    forget = _settle_on_cancel(limit.cancel, stopped)
    try:
        await asyncio.wait({task, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            # A handler that swallows the cancellation must not block its caller.
            await asyncio.wait({task}, timeout=limit.clean_up_seconds)
            if task.done() and not task.cancelled() and task.exception() is None:
                # It returned a result despite its cancellation: a stopped command returns its output so far.
                return task.result()
            if stopped.done():
                raise CallCancelled
            # Rounded up: setting up the call took a part of the time that was given.
            given = math.ceil(10 * (seconds or 0)) / 10
            raise CallTimedOut(f"no answer within {given:g} seconds; the call was cancelled")
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


Job = tuple[Callable[[], Any], "asyncio.Future[Any]", "asyncio.AbstractEventLoop"]
"""Quoted: the names would load asyncio in every process."""
Jobs = SimpleQueue["Job | None"]

# Set for everything that a thread of a pool waits for.
_inside_a_pool: ContextVar[bool] = ContextVar("toolcrib_inside_a_pool", default=False)


class DaemonPool:
    """Runs blocking functions for coroutines, at most `limit` at once, with the caller's context variables.

    A function that waits for another one in the pool, directly or indirectly, gets a thread beyond the limit for it;
    otherwise a full pool would deadlock.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._jobs: Jobs = SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], Any]) -> Any:
        """The function's result. A cancelled caller returns at once; the thread ends when the function does."""
        if self._process != os.getpid():
            self._start()  # threads do not survive a fork
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        job = (lambda: context.run(_marked, function), future, loop)
        if _inside_a_pool.get():
            threading.Thread(target=_serve_once, args=job, name="toolcrib-call", daemon=True).start()
        else:
            self._submit(job)
        return await future

    def close(self) -> None:
        """Lets idle threads end; a busy one ends after its function."""
        with self._lock:
            jobs, threads = self._jobs, self._threads
            self._jobs, self._threads, self._idle = SimpleQueue(), 0, 0
        for _ in range(threads):
            jobs.put(None)

    def _submit(self, job: Job) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._threads < self._limit:
                threading.Thread(target=self._serve, args=(self._jobs,), name="toolcrib-call", daemon=True).start()
                self._threads += 1
            self._jobs.put(job)

    def _serve(self, jobs: Jobs) -> None:
        while (job := jobs.get()) is not None:
            outcome = _outcome(job)
            # Before notifying the caller, so that its next call finds this thread.
            with self._lock:
                if jobs is self._jobs:
                    self._idle += 1
            _deliver(job, outcome)
            del job, outcome


def _serve_once(*job: Any) -> None:
    _deliver(job, _outcome(job))


def _marked(function: Callable[[], Any]) -> Any:
    _inside_a_pool.set(True)
    return function()


def _outcome(job: Job) -> tuple[Any, BaseException | None]:
    function, future, _ = job
    if future.cancelled():
        # Its caller gave up while it was still queued and has reported that, so it must not run.
        return None, None
    value, error = attempt_everything(function)
    if error is None or (isinstance(error, Exception) and not isinstance(error, StopIteration)):
        return value, error
    # A future cannot carry StopIteration, and a handler that calls sys.exit() ends neither this thread nor the loop.
    carrier = RuntimeError(f"the handler raised {type(error).__name__}")
    carrier.__cause__ = error
    return None, carrier


def _deliver(job: Job, outcome: tuple[Any, BaseException | None]) -> None:
    _, future, loop = job
    try:
        loop.call_soon_threadsafe(_settle, future, *outcome)
    except RuntimeError:
        pass  # The loop was closed while the handler ran, so no caller is waiting.


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
