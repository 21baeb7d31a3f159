"""`handle_function_call` for callers who replaced a part of it, as test suites for the reference system do.

The order is the reference's: coerce, `tool_request`, agent-loop answer, `pre_tool_call`, `tool_execution` around
`registry.dispatch`, `post_tool_call`, `transform_tool_result`; every part is looked up when it is needed. A part that
was not replaced works as usual: the tool runs through the pipeline, but without firing its hooks twice.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.compat import hermes_cli_plugins as plugins
from toolcrib.compat import tools_builtin
from toolcrib.compat.plugin_manager import PluginManager
from toolcrib.core.attempt import attempt
from toolcrib.core.context import ToolContext
from toolcrib.core.types import TOOL_CALL, JsonObject
from toolcrib.dispatch.coercion import InvalidJson, coerce, read_json
from toolcrib.dispatch.executors import Executor, drive
from toolcrib.dispatch.hooks import run_through_middleware
from toolcrib.dispatch.pipeline import unwrap_tool_call
from toolcrib.hooks.manager import HookManager
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import (
    agent_loop_error,
    call_failed,
    error_in,
    handler_failed,
    safe_error_text,
    tool_error,
)

logger = logging.getLogger(__name__)

READ_SEARCH_TOOLS = {"read_file", "search_files"}

_current_parts = itemgetter(*plugins.plain_parts)
_plain_notify = tools_builtin.notify_other_tool_call
_plain_dispatch = ToolRegistry.dispatch.__get__(default_registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyCall:
    """One call of `handle_function_call`, with the names of its parameters."""

    function_name: str
    function_args: Mapping[str, Any] | str | None
    task_id: str | None
    tool_call_id: str | None
    session_id: str | None
    turn_id: str | None
    api_request_id: str | None
    user_task: str | None
    enabled_tools: Sequence[str] | None
    skip_pre_tool_call_hook: bool
    skip_tool_request_middleware: bool
    trace: Sequence[JsonObject]
    enabled_toolsets: Sequence[str] | None
    disabled_toolsets: Sequence[str] | None

    @property
    def ids(self) -> JsonObject:
        """The keywords that every hook and middleware receives."""
        return {
            "task_id": self.task_id or "",
            "session_id": self.session_id or "",
            "tool_call_id": self.tool_call_id or "",
            "turn_id": self.turn_id or "",
            "api_request_id": self.api_request_id or "",
        }

    @property
    def handler_keywords(self) -> JsonObject:
        keywords: JsonObject = {"task_id": self.task_id, "session_id": self.session_id}
        if self.function_name == "execute_code":
            return keywords | {"enabled_tools": self.enabled_tools}
        return keywords | {"user_task": self.user_task}


def nothing_is_replaced(registry: Any) -> bool:
    """True if a call may take the normal path: no part is replaced, and this thread is not restricted."""
    return (
        registry.dispatch == _plain_dispatch
        # Equal tuples hold the same functions; comparing them at once keeps the normal path fast.
        and bool(_current_parts(vars(plugins)) == plugins.plain_values)
        and tools_builtin.notify_other_tool_call is _plain_notify
        and not plugins.thread_has_whitelist()
    )


def call_with_replacements(call: LegacyCall, registry: Any) -> Any:
    """The result of a call in which `registry` and the functions of `hermes_cli.plugins` are used as they are now."""
    name = call.function_name
    try:
        if name == TOOL_CALL:
            name, inner = unwrap_tool_call(call.function_args or {})
            call = replace(call, function_name=name, function_args=inner)
        args = coerced(registry, name, _arguments(call))
        args, trace = _requested(call, args)
        if default_runtime().has_agent_loop_stub(name):
            return agent_loop_error(name)
        refusal = None if call.skip_pre_tool_call_hook else _refusal(call, args, trace)
        if refusal is not None:
            result = tool_error(refusal)
            blocked = {"status": "blocked", "error_type": "plugin_block", "error_message": refusal}
            tell_post_hook(**_ended(call, args, result, 0), **blocked, middleware_trace=trace)
            return result
        if name not in READ_SEARCH_TOOLS:
            tools_builtin.notify_other_tool_call(call.task_id or "default")
        started = time.perf_counter()
        result = _executed(call, args, registry)
        ended = _ended(call, args, result, int((time.perf_counter() - started) * 1000)) | _outcome(result)
        tell_post_hook(**ended, middleware_trace=trace)
        return _transformed(ended)
    except InvalidJson as error:
        return tool_error(f"Invalid tool arguments: {error}")
    except Exception as error:  # the contract: a caller of this function always receives a result
        logger.exception("call of tool %r failed", name)
        return call_failed(name, error)


def tell_post_hook(**keywords: Any) -> None:
    """Tell `post_tool_call` how a call ended; without a status, the result says whether it is an error."""
    if not _wanted("post_tool_call"):
        return
    if keywords["status"] is None:
        keywords |= _outcome(keywords["result"])
    _ask_hook("post_tool_call", keywords)


def coerced(registry: Any, name: str, args: JsonObject) -> JsonObject:
    """The arguments converted to the types of the registered schema without loss."""
    schema = registry.get_schema(name)
    parameters = schema.get("parameters") if isinstance(schema, dict) else None
    return coerce(parameters, args) if isinstance(parameters, dict) else args


def _arguments(call: LegacyCall) -> JsonObject:
    args: Any = call.function_args
    if isinstance(args, str):
        args = read_json(args) if args.strip() else {}
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise InvalidJson(f"expected a JSON object, found a {type(args).__name__}")
    return dict(args)


def _requested(call: LegacyCall, args: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """The arguments after the `tool_request` middleware, and a trace of the changes."""
    trace = list(call.trace)
    asked = plugins.is_replaced("invoke_middleware") or plugins.has_middleware("tool_request")
    if call.skip_tool_request_middleware or not asked:
        return args, trace
    original = dict(args)
    answers = plugins.invoke_middleware(
        "tool_request", tool_name=call.function_name, args=args, original_args=original, **call.ids
    )
    for answer in answers or ():
        if isinstance(answer, dict) and isinstance(answer.get("args"), dict):
            args = answer["args"]
            trace.append(trace_entry(answer))
    return args, trace


def trace_entry(answer: JsonObject) -> JsonObject:
    """The trace entry for a middleware's answer: who changed the call, and why if given."""
    said = {key: answer[key] for key in ("source", "reason") if isinstance(answer.get(key), str)}
    return {"source": "plugin", **said}


def _refusal(call: LegacyCall, args: JsonObject, trace: list[JsonObject]) -> str | None:
    nobody_listens = plugins.is_replaced("has_hook") and not plugins.has_hook("pre_tool_call")
    if nobody_listens and not plugins.thread_has_whitelist():
        return None
    return plugins.resolve_pre_tool_block(call.function_name, args, **call.ids, middleware_trace=trace)


def _executed(call: LegacyCall, args: JsonObject, registry: Any) -> Any:
    """The result of the handler, or of whatever replaces `registry.dispatch`, through the middleware."""
    runtime = default_runtime()
    ctx = _context(call)

    async def run(final: JsonObject, edge: Executor) -> Any:
        if registry.dispatch != _plain_dispatch:
            return registry.dispatch(call.function_name, final, **call.handler_keywords)
        pipeline = copy.copy(runtime._pipeline)
        pipeline.hooks = HookManager()
        return (await pipeline.run(call.function_name, final, ctx, edge)).content

    manager = plugins.get_plugin_manager()
    hooks = manager.hooks if isinstance(manager, PluginManager) else HookManager()
    if not hooks.has_middleware("tool_execution"):
        return drive(run(args, runtime._sync_executor))
    chain = run_through_middleware(hooks, call.function_name, args, dict(args), ctx, runtime._sync_executor, run)
    result, error = attempt(drive, chain)
    if error is not None:
        logger.error("tool %r failed", call.function_name, exc_info=error)
        return handler_failed(error)
    return result


def _context(call: LegacyCall) -> ToolContext:
    runtime = default_runtime()
    allowed = None
    if call.enabled_toolsets is not None or call.disabled_toolsets is not None:
        allowed = runtime.toolsets.select(call.enabled_toolsets, call.disabled_toolsets).tool_names
    return runtime.context(
        tool_name=call.function_name,
        call_id=call.tool_call_id or "",
        session_id=call.session_id or "",
        task_id=call.task_id or "",
        turn_id=call.turn_id or "",
        api_request_id=call.api_request_id or "",
        user_task=call.user_task or "",
        allowed_tools=allowed,
        handler_kwargs=call.handler_keywords,
    )


def _transformed(ended: JsonObject) -> Any:
    result = ended["result"]
    if not _wanted("transform_tool_result"):
        return result
    answers = _ask_hook("transform_tool_result", ended)
    return next((answer for answer in answers if isinstance(answer, str)), result)


def _ask_hook(name: str, keywords: JsonObject) -> list[Any]:
    """What a hook answers after a call; a replaced `invoke_hook` that raises cannot undo what the call did."""
    answers, error = attempt(plugins.invoke_hook, name, **keywords)
    if error is not None:
        logger.error("hook %r failed", name, exc_info=error)
    return answers or []


def _ended(call: LegacyCall, args: JsonObject, result: Any, duration_ms: int) -> JsonObject:
    """What hooks receive about a finished call."""
    return {
        "tool_name": call.function_name,
        "args": args,
        "result": result,
        **call.ids,
        "duration_ms": duration_ms,
    }


def _outcome(result: Any) -> JsonObject:
    message = error_in(result) if isinstance(result, str) else ""
    if not message:
        return {"status": "ok", "error_type": None, "error_message": None}
    return {"status": "error", "error_type": "tool_error", "error_message": safe_error_text(message)}


def _wanted(hook: str) -> bool:
    """Whether to fire a hook: a replaced `has_hook` decides; without one, a replaced `invoke_hook` sees everything."""
    if plugins.is_replaced("invoke_hook") and not plugins.is_replaced("has_hook"):
        return True
    return plugins.has_hook(hook)
