"""`tools.interrupt`: whether the work of this thread should stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toolcrib.core.cancel import CancelToken
from toolcrib.core.context import current_context


class _InterruptedThreads:
    """The threads that were asked to stop.

    One for the process, because the functions below take a thread id and nothing else; a call with a cancel token
    is stopped through that token instead.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._tokens: dict[int, list[CancelToken]] = {}
        self.changed = threading.Condition()

    def change(self, active: bool, thread_id: int) -> None:
        with self.changed:
            if active:
                self.ids.add(thread_id)
            else:
                self.ids.discard(thread_id)
            stopped = list(self._tokens.get(thread_id, ())) if active else []
            self.changed.notify_all()
        for token in stopped:
            token.cancel("interrupted")

    @contextmanager
    def stopping(self, token: CancelToken) -> Iterator[None]:
        """Meanwhile a request to stop this thread cancels the token; one that is open already does so now."""
        thread_id = threading.get_ident()
        with self.changed:
            self._tokens.setdefault(thread_id, []).append(token)
            is_asked = thread_id in self.ids
        if is_asked:
            token.cancel("interrupted")
        try:
            yield
        finally:
            with self.changed:
                self._tokens[thread_id].remove(token)
                if not self._tokens[thread_id]:
                    del self._tokens[thread_id]

    def has(self, thread_id: int) -> bool:
        return thread_id in self.ids

    def wake(self) -> None:
        """Wake up all waiters."""
        with self.changed:
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, timeout)


_interrupted = _InterruptedThreads()
# Test suites clear the one while they hold the other.
_interrupted_threads = _interrupted.ids
_lock = _interrupted.changed


def set_interrupt(active: bool, thread_id: int | None = None) -> None:
    """Ask a thread (by default this one) to stop, or withdraw the request."""
    _interrupted.change(active, threading.get_ident() if thread_id is None else thread_id)


def is_interrupted() -> bool:
    """Whether this thread was asked to stop, or the call that it serves was cancelled."""
    if _interrupted.has(threading.get_ident()):
        return True
    ctx = current_context.get()
    return ctx is not None and ctx.cancelled


@contextmanager
def cancelled_with_thread() -> Iterator[CancelToken]:
    """A token that is cancelled when this thread is asked to stop, or the call that it serves is cancelled."""
    ctx = current_context.get()
    token = CancelToken(ctx.cancel if ctx is not None else None)
    with _interrupted.stopping(token):
        yield token


def clear_current_thread_interrupt() -> None:
    """Withdraw a request to stop this thread."""
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
