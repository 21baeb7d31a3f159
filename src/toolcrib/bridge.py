"""Runs coroutines from synchronous code, wherever that code is running.

| the caller is                   | the coroutine runs                                                    |
|---------------------------------|-----------------------------------------------------------------------|
| the main thread, no loop        | on one persistent loop of this bridge                                 |
| a worker thread, no loop        | on a persistent loop of that thread, closed when the thread ends      |
| inside a running loop           | on a spare thread with its own persistent loop; the caller waits      |

Loops persist so that async clients cached between calls stay usable. A coroutine that outlives its deadline is
cancelled on its own loop, and the caller returns at once: it never waits for a coroutine that ignores cancellation.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from toolcrib.core.attempt import attempt_everything
from toolcrib.core.lazy import asyncio, selectors

T = TypeVar("T")

NESTED_CALL_TIMEOUT_SECONDS = 300.0
LEFTOVER_GRACE_SECONDS = 1.0


class NestedCallTimeout(TimeoutError):
    """A coroutine called from inside a running loop did not end in time and was cancelled."""


class Bridge:
    """All loops that one runtime (or one unbound registry) drives from synchronous code."""

    def __init__(self, nested_call_timeout_seconds: float = NESTED_CALL_TIMEOUT_SECONDS) -> None:
        self.nested_call_timeout_seconds = nested_call_timeout_seconds
        # Never use or close what a fork inherited: it belongs to the parent process.
        self._inherited: list[object] = []
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._main_loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.local()
        self._idle: list[_SpareThread] = []
        self._lock = threading.Lock()
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; raises NestedCallTimeout for a call inside a running loop that takes too long."""
        # asyncio's public check for a running loop raises; this function is documented for the purpose.
        if asyncio._get_running_loop() is not None:
            return self._run_on_spare_thread(coroutine)
        loop = self.loop()
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        finally:
            if not task.done():
                # Ctrl-C leaves the task on the loop, where the next call would resume it.
                _cancel(loop, {task})
            _mark_as_seen(task)

    def loop(self) -> asyncio.AbstractEventLoop:
        """The persistent loop for the calling thread."""
        if threading.current_thread() is threading.main_thread():
            return self.main_loop()
        self._notice_fork()
        holder: _LoopHolder | None = getattr(self._thread, "holder", None)
        if holder is None or holder.loop.is_closed():
            holder = self._thread.holder = _LoopHolder()
        return holder.loop

    def main_loop(self) -> asyncio.AbstractEventLoop:
        """The persistent loop for the main thread, from any thread."""
        self._notice_fork()
        with self._lock:
            if self._main_loop is None or self._main_loop.is_closed():
                self._main_loop = new_loop()
            return self._main_loop

    def close(self) -> None:
        """Ends the spare threads and closes the main loop. Loops of worker threads end with their threads."""
        self._notice_fork()
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            main_loop, self._main_loop = self._main_loop, None
        for spare in idle:
            spare.retire()
        if main_loop is not None and not main_loop.is_running():
            _close_loop(main_loop)

    def let_go(self) -> None:
        """Like `close`, for a bridge that is no longer reachable; never waits, so it can run anywhere."""
        if self._process != os.getpid():
            return
        for spare in self._idle:
            spare.retire()
        if self._main_loop is not None and not self._main_loop.is_running():
            self._main_loop.close()

    def _notice_fork(self) -> None:
        if self._process != os.getpid():
            self._inherited += [self._main_loop, self._thread, self._idle]
            self._start()

    def _run_on_spare_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._notice_fork()
        with self._lock:
            spare = self._idle.pop() if self._idle else None
        spare = spare or _SpareThread()
        try:
            return spare.run(coroutine, self.nested_call_timeout_seconds)
        finally:
            self._put_back(spare)

    def _put_back(self, spare: _SpareThread) -> None:
        with self._lock:
            reusable = not self._closed and not spare.retired
            if reusable:
                self._idle.append(spare)
        if not reusable:
            spare.retire()


class _LoopHolder:
    """Lives in thread-local storage, to close the loop when the thread ends."""

    def __init__(self) -> None:
        self.loop = new_loop()
        self._process = os.getpid()

    def __del__(self) -> None:
        if self._process == os.getpid() and not self.loop.is_running():
            _close_loop(self.loop)


class _SpareThread:
    """A daemon thread with its own loop that runs one coroutine at a time for callers inside a running loop.

    Two plain locks hand over the work, at a third of the cost of `run_coroutine_threadsafe`.
    """

    def __init__(self) -> None:
        self.retired = False
        self._loop = new_loop()
        self._job: tuple[Coroutine[Any, Any, Any], contextvars.Context] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stop: asyncio.TimerHandle | None = None
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self._work = threading.Lock()
        self._done = threading.Lock()
        self._work.acquire()
        self._done.acquire()
        threading.Thread(target=self._serve, name="toolcrib-bridge", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        self._job = (coroutine, contextvars.copy_context())
        self._work.release()
        finished = False
        try:
            finished = self._done.acquire(timeout=min(timeout_seconds, threading.TIMEOUT_MAX))
        finally:
            if not finished:
                self._abandon()
        if not finished:
            raise NestedCallTimeout(f"no answer within {timeout_seconds:g} seconds; the call was cancelled")
        (result, error), self._outcome = self._outcome, (None, None)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def retire(self) -> None:
        """Lets the thread end once it is idle."""
        self.retired = True
        if self._work.locked():
            self._work.release()

    def _abandon(self) -> None:
        self.retired = True
        try:
            self._loop.call_soon_threadsafe(self._give_up)
        except RuntimeError:
            pass  # It has just ended, and its loop is already closed.

    def _give_up(self) -> None:
        """Cancels the coroutine; if it ignores that, stops its loop a moment later."""
        if self._task is not None:
            self._task.cancel()
            self._stop = self._loop.call_later(LEFTOVER_GRACE_SECONDS, self._loop.stop)

    def _serve(self) -> None:
        while True:
            self._work.acquire()
            if self._job is None:
                break
            (coroutine, context), self._job = self._job, None
            self._task = self._loop.create_task(coroutine, context=context)
            # Pass whatever it raises to the caller, which raises it again.
            self._outcome = attempt_everything(self._loop.run_until_complete, self._task)
            _mark_as_seen(self._task)
            del coroutine, context
            self._task = None
            self._done.release()
            if self.retired:
                break
        if self._stop is not None:
            self._stop.cancel()
        _close_loop(self._loop)


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop that a forked child can drop without harm.

    A fork shares the state of epoll, asyncio's default, with the child: when the child ends and closes its copy of the
    loop, the parent's loop no longer wakes up for other threads.
    """
    # In a separate context: the loop keeps the context it is created in, and with it the first call.
    loop = contextvars.Context().run(_make_loop)
    loop.set_exception_handler(_report)
    return loop


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # An interrupt may hit a nested task; the caller already has it.
    if not isinstance(context.get("exception"), (KeyboardInterrupt, SystemExit)):
        loop.default_exception_handler(context)


def _make_loop() -> asyncio.AbstractEventLoop:
    if hasattr(selectors, "PollSelector"):
        return asyncio.SelectorEventLoop(selectors.PollSelector())
    return asyncio.new_event_loop()


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels the remaining tasks, lets them finish, and closes the loop; works inside another running loop too."""
    if loop.is_closed():
        return
    if asyncio._get_running_loop() is not None:
        closer = threading.Thread(target=_close_loop, args=(loop,), name="toolcrib-bridge", daemon=True)
        closer.start()
        closer.join()
        return
    left = asyncio.all_tasks(loop)
    _cancel(loop, left)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    for task in left:
        # Otherwise asyncio logs a warning for each task that did not end.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        _mark_as_seen(task)


def _cancel(loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[Any]]) -> None:
    """Cancels the tasks and gives them a moment to end; abandons those that do not."""
    unfinished = {task for task in tasks if not task.done()}
    for task in unfinished:
        task.cancel()
    if unfinished:
        loop.run_until_complete(asyncio.wait(unfinished, timeout=LEFTOVER_GRACE_SECONDS))


def _mark_as_seen(task: asyncio.Task[Any]) -> None:
    """Keeps asyncio from reporting an exception that is raised elsewhere or no longer matters."""
    if task.done() and not task.cancelled():
        task.exception()
