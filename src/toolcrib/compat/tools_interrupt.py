"""`tools.interrupt`: whether the work of this thread should stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

from toolcrib.core.context import current_context


class _InterruptedThreads:
    """The threads that were asked to stop.

    One for the process, because the functions below take a thread id and nothing else; a call with a cancel token
    is stopped through that token instead.
    """

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._changed = threading.Condition()

    def change(self, active: bool, thread_id: int) -> None:
        with self._changed:
            if active:
                self._ids.add(thread_id)
            else:
                self._ids.discard(thread_id)
            self._changed.notify_all()

    def has(self, thread_id: int) -> bool:
        return thread_id in self._ids

    def wake(self) -> None:
        """Have everybody who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout)


_interrupted = _InterruptedThreads()


def set_interrupt(active: bool, thread_id: int | None = None) -> None:
    """Ask a thread (by default this one) to stop, or take the request back."""
    _interrupted.change(active, threading.get_ident() if thread_id is None else thread_id)


def is_interrupted() -> bool:
    """Whether this thread was asked to stop, or the call that it serves was cancelled."""
    if _interrupted.has(threading.get_ident()):
        return True
    ctx = current_context.get()
    return ctx is not None and ctx.cancelled


def clear_current_thread_interrupt() -> None:
    """Take back a request to stop this thread."""
    set_interrupt(False)


class _InterruptEvent:
    """Looks like a `threading.Event`, but each thread sees its own."""

    def is_set(self) -> bool:
        return is_interrupted()

    def set(self) -> None:
        set_interrupt(True)

    def clear(self) -> None:
        set_interrupt(False)

    def wait(self, timeout: float | None = None) -> bool:
        ctx = current_context.get()
        if ctx is None or ctx.cancel is None:
            return _interrupted.wait_until(is_interrupted, timeout)
        forget = ctx.cancel.on_cancel(_interrupted.wake)
        try:
            return _interrupted.wait_until(is_interrupted, timeout)
        finally:
            forget()


_interrupt_event = _InterruptEvent()
