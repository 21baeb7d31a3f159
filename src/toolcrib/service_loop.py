"""An event loop on its own thread, for services that outlive single calls: commands, connections, processes.

Callers may use any loop or thread; a service's state is only touched on this loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from toolcrib.bridge import new_loop

T = TypeVar("T")

JOIN_SECONDS = 5.0


class ServiceLoop:
    """Starts on first use. After a fork the child starts its own, because threads do not survive a fork."""

    def __init__(self, name: str = "toolcrib-services") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._thread: threading.Thread | None = None

    @property
    def is_started(self) -> bool:
        return self._loop is not None and self._process == os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this loop and so must not wait for it."""
        return self.is_started and self._thread is threading.current_thread()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._process != os.getpid():
                self._forget()
            if self._loop is None:
                self._loop = new_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """The result as a future of the calling loop; cancelling the future does not stop the coroutine.

        Cheaper than `run_coroutine_threadsafe` with its two chains of callbacks.
        """
        caller = asyncio.get_running_loop()
        given: asyncio.Future[T] = caller.create_future()

        def begin() -> None:
            task = self.loop.create_task(coroutine)
            self._running.add(task)
            task.add_done_callback(hand_over)

        def hand_over(task: asyncio.Task[T]) -> None:
            self._running.discard(task)
            with contextlib.suppress(RuntimeError):  # The caller's loop may already be closed.
                caller.call_soon_threadsafe(_settle, given, task)

        self.loop.call_soon_threadsafe(begin)
        return given

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; cancelling the caller cancels it."""
        if asyncio.get_running_loop() is self.loop:
            return await coroutine
        return await asyncio.wrap_future(self.submit(coroutine))

    def run_sync(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """The coroutine's result, for callers outside any loop that this loop waits for."""
        future = self.submit(coroutine)
        try:
            return future.result(timeout_seconds)
        finally:
            future.cancel()

    def close(self) -> None:
        """Stop the loop, and wait a moment for its thread."""
        if not self.is_started:
            return
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        self._forget()
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=JOIN_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _settle(given: asyncio.Future[T], task: asyncio.Task[T]) -> None:
    """Pass a task's outcome to a future of another loop, unless that future is already done."""
    if given.cancelled():
        return
    if task.cancelled():
        given.cancel()
        return
    error = task.exception()
    if error is not None:
        given.set_exception(error)
    else:
        given.set_result(task.result())
