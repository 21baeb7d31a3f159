"""`hermes_cli.middleware`: the kinds of middleware, and how to run them around a call to a tool or a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from toolcrib.compat import hermes_cli_plugins as plugins
from toolcrib.compat.hermes_cli_plugins import VALID_MIDDLEWARE, has_middleware, invoke_middleware
from toolcrib.compat.plugin_manager import PluginManager
from toolcrib.compat.replaced_calls import trace_entry
from toolcrib.core.attempt import Attempt, attempt
from toolcrib.core.types import JsonObject
from toolcrib.hooks.manager import HookRegistration
from toolcrib.hooks.specs import MIDDLEWARE_SCHEMA_VERSION
from toolcrib.hooks.specs import TELEMETRY_SCHEMA_VERSION as OBSERVER_SCHEMA_VERSION

__all__ = [
    "API_EXECUTION_MIDDLEWARE",
    "API_REQUEST_MIDDLEWARE",
    "LLM_EXECUTION_MIDDLEWARE",
    "LLM_REQUEST_MIDDLEWARE",
    "MIDDLEWARE_SCHEMA_VERSION",
    "OBSERVER_SCHEMA_VERSION",
    "TOOL_EXECUTION_MIDDLEWARE",
    "TOOL_REQUEST_MIDDLEWARE",
    "VALID_MIDDLEWARE",
    "RequestMiddlewareResult",
    "apply_api_request_middleware",
    "apply_llm_request_middleware",
    "apply_tool_request_middleware",
    "has_middleware",
    "invoke_middleware",
    "middleware_payload",
    "observer_payload",
    "run_api_execution_middleware",
    "run_llm_execution_middleware",
    "run_tool_execution_middleware",
]

logger = logging.getLogger(__name__)

TOOL_REQUEST_MIDDLEWARE, TOOL_EXECUTION_MIDDLEWARE = "tool_request", "tool_execution"
LLM_REQUEST_MIDDLEWARE, LLM_EXECUTION_MIDDLEWARE = "llm_request", "llm_execution"
API_REQUEST_MIDDLEWARE, API_EXECUTION_MIDDLEWARE = LLM_REQUEST_MIDDLEWARE, LLM_EXECUTION_MIDDLEWARE


@dataclass
class RequestMiddlewareResult:
    """A request after the middleware, the original, and who changed it."""

    payload: JsonObject
    original_payload: JsonObject
    changed: bool = False
    trace: list[JsonObject] = field(default_factory=list)


def observer_payload(**kwargs: Any) -> JsonObject:
    """The keywords that a hook receives."""
    return {"telemetry_schema_version": OBSERVER_SCHEMA_VERSION, **kwargs}


def middleware_payload(**kwargs: Any) -> JsonObject:
    """The keywords that a middleware receives."""
    return observer_payload(**{"middleware_schema_version": MIDDLEWARE_SCHEMA_VERSION, **kwargs})


def apply_tool_request_middleware(tool_name: str, args: JsonObject, **context: Any) -> RequestMiddlewareResult:
    """The arguments of a call after all `tool_request` middleware."""
    return _rewrite(TOOL_REQUEST_MIDDLEWARE, "args", args, {"tool_name": tool_name, **context})


def apply_llm_request_middleware(request: JsonObject, **context: Any) -> RequestMiddlewareResult:
    """A request to a model after all `llm_request` middleware."""
    return _rewrite(LLM_REQUEST_MIDDLEWARE, "request", request, context)


def run_tool_execution_middleware(
    tool_name: str, args: JsonObject, next_call: Callable[[JsonObject], Any], **context: Any
) -> Any:
    """The result of `next_call(args)` with all `tool_execution` middleware around it, outermost first."""
    return _run_chain(TOOL_EXECUTION_MIDDLEWARE, "args", args, next_call, {"tool_name": tool_name, **context})


def run_llm_execution_middleware(request: JsonObject, next_call: Callable[[JsonObject], Any], **context: Any) -> Any:
    """The result of `next_call(request)` with all `llm_execution` middleware around it, outermost first."""
    return _run_chain(LLM_EXECUTION_MIDDLEWARE, "request", request, next_call, context)


apply_api_request_middleware = apply_llm_request_middleware
run_api_execution_middleware = run_llm_execution_middleware


def _rewrite(kind: str, key: str, payload: JsonObject, context: JsonObject) -> RequestMiddlewareResult:
    outcome = RequestMiddlewareResult(payload, deepcopy(payload))
    for registered in _layers(kind):
        keywords = {key: deepcopy(outcome.payload), f"original_{key}": deepcopy(outcome.original_payload)}
        answer = _answer(kind, registered, context | keywords).value
        if isinstance(answer, dict) and isinstance(answer.get(key), dict):
            outcome.payload, outcome.changed = answer[key], True
            outcome.trace.append(trace_entry(answer))
    return outcome


class _ChainRest:
    """The rest of a chain inside one layer: runs once and remembers the outcome."""

    def __init__(self, run: Callable[[JsonObject], Any], payload: JsonObject) -> None:
        self._run = run
        self._payload = payload
        self.used = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, payload: JsonObject | None = None) -> Any:
        if self.used:
            raise RuntimeError("each middleware can use next_call only once")
        self.used = True
        self.result, self.error = attempt(self._run, self._payload if payload is None else payload)
        if self.error is not None:
            raise self.error
        return self.result


def _run_chain(
    kind: str, key: str, payload: JsonObject, next_call: Callable[[JsonObject], Any], context: JsonObject
) -> Any:
    layers, original = _layers(kind), deepcopy(payload)

    def enter(index: int, payload: JsonObject) -> Any:
        if index == len(layers):
            return next_call(payload)
        rest = _ChainRest(lambda inner: enter(index + 1, inner), payload)
        keywords = {key: payload, f"original_{key}": original, "next_call": rest}
        answer, error = _answer(kind, layers[index], context | keywords, rest)
        if error is None:
            return answer
        if rest.error is not None:
            raise rest.error
        return rest.result if rest.used else enter(index + 1, payload)

    return enter(0, payload)


def _answer(
    kind: str, registered: HookRegistration, keywords: JsonObject, rest: _ChainRest | None = None
) -> Attempt[Any]:
    """What a layer returns or raises; logs its own errors, but not those of the rest of the chain."""
    outcome = attempt(registered, middleware_payload(**keywords))
    if outcome.error is not None and (rest is None or rest.error is None):
        source = registered.source
        logger.error("skipped middleware %r from %s because it failed", kind, source, exc_info=outcome.error)
    return outcome


def _layers(kind: str) -> tuple[HookRegistration, ...]:
    manager = plugins.get_plugin_manager()
    return manager.hooks.middleware(kind) if isinstance(manager, PluginManager) else ()
