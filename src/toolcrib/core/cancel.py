"""The cancel token: a stop signal that calls, sessions and jobs pass on to what they start."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from toolcrib.core.attempt import notify
from toolcrib.core.lazy import asyncio

T = TypeVar("T")


class CancelToken:
    """A stop signal. Cancelling any of its parents cancels it too. Thread-safe."""

    __slots__ = ("__weakref__", "_callbacks", "_event", "_lock", "reason")

    def __init__(self, parent: CancelToken | None = None, *others: CancelToken) -> None:
        self.reason = ""
        self._event = threading.Event()
        # Reentrant, because a child that is garbage-collected while the lock is held unregisters itself.
        self._lock = threading.RLock()
        self._callbacks: dict[object, Callable[[], None]] = {}
        for one in (parent, *others):
            if one is not None:
                _follow(self, one)

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def cancel(self, reason: str = "cancelled") -> None:
        """Notify all listeners; one that raises does not stop the others."""
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            notify(callback, name="a listener of a cancel token")

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once on cancellation (now, if already cancelled). Returns a function that unregisters it."""
        key = object()
        with self._lock:
            if not self._event.is_set():
                self._callbacks[key] = callback
                return lambda: self._forget(key)
        callback()
        return lambda: None

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until cancelled; returns False on timeout."""
        return self._event.wait(timeout_seconds)

    def _forget(self, key: object) -> None:
        with self._lock:
            self._callbacks.pop(key, None)


def _follow(child: CancelToken, parent: CancelToken) -> None:
    """Cancels the child with its parent. The reference is weak, because a session outlives thousands of calls."""
    held = weakref.ref(child)

    def cancel_child() -> None:
        token = held()
        if token is not None:
            token.cancel(parent.reason)

    weakref.finalize(child, parent.on_cancel(cancel_child)).atexit = False


async def finish_in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function that writes. Unlike `asyncio.to_thread`, a cancelled caller waits for its end, so that
    nothing is written after the caller has cleaned up."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise
