"""What a handler may know about the call it serves, and how that call is told to stop."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from toolcrib.core.attempt import attempt
from toolcrib.core.types import Effect

if TYPE_CHECKING:
    from toolcrib.core.environments import ExecutionTarget
    from toolcrib.core.services import Services

logger = logging.getLogger(__name__)


class CancelToken:
    """One stop signal; cancelling any of its parents cancels it too. Safe from any thread."""

    __slots__ = ("__weakref__", "_callbacks", "_event", "_lock", "reason")

    def __init__(self, parent: CancelToken | None = None, *others: CancelToken) -> None:
        self.reason = ""
        self._event = threading.Event()
        # Reentrant, because a child that is collected while the lock is held unregisters itself.
        self._lock = threading.RLock()
        self._callbacks: dict[object, Callable[[], None]] = {}
        for one in (parent, *others):
            if one is not None:
                _follow(self, one)

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def cancel(self, reason: str = "cancelled") -> None:
        """Tell everybody who listens to stop; one who fails to hear it does not keep the others from it."""
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            _, error = attempt(callback)
            if error is not None:
                logger.error("a listener of a cancel token failed", exc_info=error)

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when cancelled (now, if it already is). Returns what unregisters it."""
        key = object()
        with self._lock:
            if not self._event.is_set():
                self._callbacks[key] = callback
                return lambda: self._forget(key)
        callback()
        return lambda: None

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until cancelled; False when the time ran out first."""
        return self._event.wait(timeout_seconds)

    def _forget(self, key: object) -> None:
        with self._lock:
            self._callbacks.pop(key, None)


def _follow(child: CancelToken, parent: CancelToken) -> None:
    """Cancels the child with its parent. Held weakly: a session outlives thousands of calls."""
    held = weakref.ref(child)

    def cancel_child() -> None:
        token = held()
        if token is not None:
            token.cancel(parent.reason)

    weakref.finalize(child, parent.on_cancel(cancel_child)).atexit = False


class CallMemo:
    """What was found out about one call on its way, so that each thing is computed once.

    It starts empty at admission: what planning found authorises nothing.
    """

    __slots__ = ("readings", "target")

    def __init__(self) -> None:
        self.target: ExecutionTarget | None = None
        """The environment that the call runs in."""
        self.readings: dict[str, Any] = {}
        """Command lines as the gate read them."""

    def clear(self) -> None:
        self.target = None
        self.readings.clear()


# Made for every call that needs one, so a msgspec Struct: a sixth of the cost of a frozen dataclass.
class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The surroundings of one call. A handler that names a parameter `ctx` receives it."""

    services: Services
    tool_name: str = ""
    call_id: str = ""
    session_id: str = ""
    task_id: str = ""
    turn_id: str = ""
    api_request_id: str = ""
    user_task: str = ""
    cwd: str = ""
    deadline: float | None = None
    """On the clock of `time.monotonic()`."""
    cancel: CancelToken | None = None
    allowed_tools: frozenset[str] | None = None
    """The tools that this session may call; None when nothing was said about it."""
    on_progress: Callable[[str], None] | None = None
    handler_kwargs: dict[str, Any] | None = None
    """What the handler receives by keyword, where the caller chose that; else task_id, session_id and user_task."""
    effects: tuple[Effect, ...] | None = None
    """In a handler: the effects of this call, as they were agreed to. What it does must be these and no others."""
    memo: CallMemo | None = None
    """From admission on: what was found out about this call; None for a call that does nothing to admit."""

    @property
    def cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.cancelled

    def progress(self, message: str) -> None:
        """Tell whoever watches this call how far it is."""
        if self.on_progress is not None:
            self.on_progress(message)

    async def ask(self, question: str, choices: tuple[str, ...] = ()) -> str:
        """Ask the person in front of this session; raises UsageError where nobody can answer."""
        return await self.services.ask(self, question, choices)

    def spill(self, text: str) -> str:
        """Store a long text and return the handle under which it can be read."""
        return self.services.spill(self, text)


# For handlers written without a `ctx` parameter (`tools.interrupt.is_interrupted()`): the call being served here.
current_context: ContextVar[ToolContext | None] = ContextVar("toolcrib_current_context", default=None)
