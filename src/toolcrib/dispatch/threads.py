"""A bounded pool of daemon threads for handlers that block.

`concurrent.futures` joins its threads at interpreter exit, so one stuck handler would keep the whole program from
ending; daemon threads do not.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

from toolcrib.core.attempt import attempt_everything
from toolcrib.core.lazy import asyncio

Job = tuple[Callable[[], Any], "asyncio.Future[Any]", "asyncio.AbstractEventLoop"]
Jobs = SimpleQueue["Job | None"]

# Set for everything that a thread of a pool waits for.
_inside_a_pool: ContextVar[bool] = ContextVar("toolcrib_inside_a_pool", default=False)


class DaemonPool:
    """Runs blocking functions for coroutines, at most `limit` at once, with the caller's context variables.

    A function that (through whatever it calls) waits for another one in the pool gets a thread beyond the limit for
    it; else a full pool would wait for itself for ever.
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
            # Before the caller hears of it, so that his next call finds this thread.
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
        # Its caller gave up while it was still in the queue, and has said so: it must not run any more.
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
        pass  # The loop was closed while the handler ran: nobody waits any more.


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
