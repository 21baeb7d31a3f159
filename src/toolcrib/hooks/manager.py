"""Keeps the callbacks of one runtime and calls each with only the arguments that it names."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from toolcrib.core.attempt import Attempt, attempt, attempt_async
from toolcrib.core.errors import nearest_names
from toolcrib.core.types import CODE, Source
from toolcrib.hooks.specs import HOOKS, MIDDLEWARE, MIDDLEWARE_SCHEMA_VERSION, TELEMETRY_SCHEMA_VERSION

logger = logging.getLogger(__name__)

Callback = Callable[..., Any]


class HookRegistration(msgspec.Struct, frozen=True):
    """One callback, with the arguments that it accepts (None: all) and who registered it."""

    callback: Callback
    names: frozenset[str] | None
    source: Source = CODE
    observer: bool = False
    """An observer of `pre_tool_call` cannot block: if it raises, the call continues."""
    is_async: bool = False
    """Whether calling it returns a coroutine."""

    def __call__(self, keywords: dict[str, Any]) -> Any:
        if self.names is None:
            return self.callback(**keywords)
        return self.callback(**{name: value for name, value in keywords.items() if name in self.names})


class HookManager:
    """The hooks and middleware of one runtime, in order of registration."""

    def __init__(self) -> None:
        self.is_empty = True
        """True while nothing is registered; one check that spares a call all the others."""
        self._hooks: dict[str, tuple[HookRegistration, ...]] = {}
        self._middleware: dict[str, tuple[HookRegistration, ...]] = {}
        self._lock = threading.Lock()

    def register(self, name: str, callback: Callback, *, source: Source = CODE, observer: bool = False) -> None:
        """Add a callback. An unknown hook name is kept, because something may fire it, but logs a warning."""
        if name not in HOOKS:
            logger.warning("%s registered the unknown hook %r%s", source, name, _suggest(name, HOOKS))
        self._add(self._hooks, name, callback, source, observer)

    def register_middleware(self, kind: str, callback: Callback, *, source: Source = CODE) -> None:
        if kind not in MIDDLEWARE:
            logger.warning("%s registered the unknown middleware %r%s", source, kind, _suggest(kind, MIDDLEWARE))
        self._add(self._middleware, kind, callback, source, False)

    def unregister(self, callback: Callback) -> None:
        """Remove a callback from everything it was registered for."""
        with self._lock:
            for table in (self._hooks, self._middleware):
                for name, registered in table.items():
                    # Compare by equality: each access to a bound method makes a new object.
                    table[name] = tuple(one for one in registered if one.callback != callback)

    def has(self, name: str) -> bool:
        return bool(self._hooks.get(name))

    def has_middleware(self, kind: str) -> bool:
        return bool(self._middleware.get(kind))

    def hooks(self, name: str) -> tuple[HookRegistration, ...]:
        return self._hooks.get(name, ())

    def middleware(self, kind: str) -> tuple[HookRegistration, ...]:
        return self._middleware.get(kind, ())

    def invoke(self, name: str, **keywords: Any) -> list[Any]:
        """The callbacks' answers, without None; one that raises is logged and skipped."""
        keywords.setdefault("telemetry_schema_version", TELEMETRY_SCHEMA_VERSION)
        answers = []
        for registered in self._hooks.get(name, ()):
            answer = call_logged(name, registered, keywords)
            if answer is not None:
                answers.append(answer)
        return answers

    def invoke_middleware(self, kind: str, **keywords: Any) -> list[Any]:
        """The answers of all middleware of a kind, without None; each gets the same keywords."""
        keywords.setdefault("middleware_schema_version", MIDDLEWARE_SCHEMA_VERSION)
        answers = [call_logged(kind, registered, keywords) for registered in self._middleware.get(kind, ())]
        return [answer for answer in answers if answer is not None]

    def _add(
        self,
        table: dict[str, tuple[HookRegistration, ...]],
        name: str,
        callback: Callback,
        source: Source,
        observer: bool,
    ) -> None:
        registered = HookRegistration(callback, accepted_names(callback), source, observer, _is_async(callback))
        with self._lock:
            table[name] = (*table.get(name, ()), registered)
            self.is_empty = False


def call_logged(name: str, registered: HookRegistration, keywords: dict[str, Any]) -> Any:
    """The callback's answer; if it raises, logs that and returns None."""
    answer, error = attempt(registered, keywords)
    if error is not None:
        _log_failure(name, registered, error)
    return answer


async def call_logged_async(name: str, registered: HookRegistration, keywords: dict[str, Any]) -> Any:
    """Like `call_logged`, for a callback that may be async."""
    answer = call_logged(name, registered, keywords)
    if not inspect.isawaitable(answer):
        return answer
    answer, error = await attempt_async(answer)
    if error is not None:
        _log_failure(name, registered, error)
    return answer


def _log_failure(name: str, registered: HookRegistration, error: BaseException) -> None:
    logger.error("hook %r from %s failed", name, registered.source, exc_info=error)


class ChainLayer:
    """One layer of an execution chain: it may run the rest of the chain once, and remembers the outcome."""

    def __init__(self, kind: str, registered: HookRegistration) -> None:
        self._kind = kind
        self._registered = registered
        self.is_used = False
        self.result: Any = None
        self.error: BaseException | None = None

    async def run_rest(self, rest: Callable[[], Awaitable[Any]]) -> Any:
        """What the rest of the chain returns or raises."""
        if self.is_used:
            raise RuntimeError("each middleware can use next_call only once")
        self.is_used = True
        try:
            self.result = await rest()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise
        return self.result

    async def call(self, layer: Awaitable[Any]) -> Attempt[Any]:
        """What the layer itself returns or raises; logs its own errors, but not those of the rest."""
        outcome = await attempt_async(layer)
        if outcome.error is not None and self.error is None:
            source = self._registered.source
            logger.error("skipped middleware %r from %s because it failed", self._kind, source, exc_info=outcome.error)
        return outcome


def accepted_names(callback: Callback) -> frozenset[str] | None:
    """The keyword arguments that a callback accepts; None if it accepts any."""
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters if parameter.kind in named)


def _is_async(callback: Callback) -> bool:
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(getattr(callback, "__call__", None))  # noqa: B004


def _suggest(name: str, known: dict[str, Any]) -> str:
    nearest = nearest_names(name, known, limit=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
