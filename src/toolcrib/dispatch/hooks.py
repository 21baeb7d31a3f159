"""Runs the hooks and middleware of one call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from copy import deepcopy
from typing import Any

from toolcrib.core.attempt import Attempt
from toolcrib.core.context import ToolContext
from toolcrib.core.lazy import asyncio
from toolcrib.core.types import ALLOW, JsonObject, ToolEntry, ToolResult, Verdict
from toolcrib.dispatch.executors import CallCancelled, CallLimit, Executor, ThreadExecutor, drive
from toolcrib.dispatch.outcome import PLUGIN_BLOCK, plain_text
from toolcrib.hooks.manager import ChainLayer, HookManager, HookRegistration
from toolcrib.hooks.specs import MIDDLEWARE_SCHEMA_VERSION, TELEMETRY_SCHEMA_VERSION
from toolcrib.registry.results import message_of, safe_error_text

logger = logging.getLogger(__name__)

STOPPED_HOOK_SECONDS = 5.0
"""How long each hook of a stopped call may take."""

RunRest = Callable[[JsonObject | None, Executor], Coroutine[Any, Any, Any]]
RunHandler = Callable[[JsonObject, Executor], Awaitable[Any]]


async def rewrite_request(
    hooks: HookManager, name: str, args: JsonObject, ctx: ToolContext, executor: Executor
) -> tuple[JsonObject, tuple[JsonObject, ...]]:
    """The arguments after all `tool_request` middleware, in a chain, and their trace."""
    original = args
    trace = []
    for registered in hooks.middleware("tool_request"):
        # Copies, so that only the return value counts: a middleware that fails halfway changes nothing.
        keywords = _middleware_keywords(name, deepcopy(args), deepcopy(original), ctx)
        answer, error = await _answer(registered, keywords, ctx, executor)
        if error is not None:
            source = registered.source
            logger.error("skipped middleware 'tool_request' from %s because it failed", source, exc_info=error)
        changed = answer.get("args") if isinstance(answer, dict) else None
        if isinstance(changed, dict):
            args = changed
            trace.append({"kind": "tool_request", "source": str(registered.source)})
    return args, tuple(trace)


async def ask_pre_hooks(
    hooks: HookManager,
    entry: ToolEntry,
    args: JsonObject,
    ctx: ToolContext,
    trace: tuple[JsonObject, ...],
    executor: Executor,
) -> Verdict:
    """The answer of `pre_tool_call`: the first valid one counts, but every callback sees the call."""
    verdict = ALLOW
    keywords = _call_keywords(entry.name, args, ctx) | {"middleware_trace": list(trace)}
    for registered in hooks.hooks("pre_tool_call"):
        answer, error = await _answer(registered, keywords, ctx, executor)
        if error is not None:
            logger.error("hook 'pre_tool_call' from %s failed", registered.source, exc_info=error)
            if registered.observer:
                continue
            # A policy check that fails must not mean yes.
            message = safe_error_text(f"{registered.source} could not check this call: {message_of(error)}")
            answer = {"action": "block", "message": message}
        if verdict.decision == "allow":
            verdict = _verdict(answer, entry.name)
    return verdict


async def run_through_middleware(
    hooks: HookManager,
    name: str,
    args: JsonObject,
    original: JsonObject,
    ctx: ToolContext,
    executor: Executor,
    run_handler: RunHandler,
) -> Any:
    """The result of the `tool_execution` chain around the handler, outermost first."""
    layers = hooks.middleware("tool_execution")

    async def enter(index: int, args: JsonObject, executor: Executor) -> Any:
        if index == len(layers):
            return await run_handler(args, executor)
        registered = layers[index]
        # A copy: a layer's changes count only if it passes them on to the rest.
        own = deepcopy(args)

        layer = ChainLayer("tool_execution", registered)

        async def run_rest(changed: JsonObject | None, inner: Executor) -> Any:
            return await layer.run_rest(lambda: enter(index + 1, own if changed is None else changed, inner))

        keywords = _middleware_keywords(name, own, original, ctx)
        answer, error = await layer.call(_run_layer(registered, keywords, run_rest, executor))
        if error is None:
            return answer
        if layer.error is not None:
            raise layer.error from None
        return layer.result if layer.is_used else await enter(index + 1, args, executor)

    return await enter(0, args, executor)


async def fire_post_hooks(
    hooks: HookManager,
    entry: ToolEntry,
    args: JsonObject,
    result: ToolResult,
    ctx: ToolContext,
    trace: tuple[JsonObject, ...],
    executor: Executor,
) -> str | JsonObject:
    """Calls `post_tool_call` with the outcome and returns the content after `transform_tool_result`."""
    keywords = _call_keywords(entry.name, args, ctx) | {
        "result": result.content,
        "duration_ms": round(result.duration_ms),
        "status": result.status,
        # To hooks, a result of a forbidden type is a tool error like any other.
        "error_type": "tool_error" if result.error_type == "tool_result_contract" else result.error_type or None,
        "error_message": result.error_message or None,
    }
    for registered in hooks.hooks("post_tool_call"):
        await _answer_logged("post_tool_call", registered, keywords | {"middleware_trace": list(trace)}, ctx, executor)
    for registered in hooks.hooks("transform_tool_result"):
        answer = await _answer_logged("transform_tool_result", registered, keywords, ctx, executor)
        if isinstance(answer, str):
            return plain_text(answer)
    return result.content


async def _run_layer(registered: HookRegistration, keywords: JsonObject, run_rest: RunRest, executor: Executor) -> Any:
    if registered.is_async:
        inner = executor.nested_in_wait()

        async def next_call_async(args: JsonObject | None = None) -> Any:
            return await run_rest(args, inner)

        return await executor.wait(registered(keywords | {"next_call": next_call_async}))
    threaded = executor.nested_in_block()

    def next_call(args: JsonObject | None = None) -> Any:
        return drive(run_rest(args, threaded))

    try:
        answer = await executor.block(lambda: registered(keywords | {"next_call": next_call}), None, None)
    except asyncio.CancelledError:
        if isinstance(threaded, ThreadExecutor):
            threaded.stop()
        raise
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("plain-function middleware returned a coroutine; write it as `async def`")
    return answer


async def _answer(
    registered: HookRegistration, keywords: JsonObject, ctx: ToolContext, executor: Executor
) -> Attempt[Any]:
    """What a callback returns or raises; raises CallCancelled if the call is stopped while it waits."""
    try:
        answer = registered(keywords)
        if inspect.isawaitable(answer):
            # The hooks of a stopped call still run, if they do not take long.
            limit = CallLimit(STOPPED_HOOK_SECONDS) if ctx.cancelled else CallLimit(cancel=ctx.cancel)
            answer = await executor.wait_bounded(answer, limit)
    except CallCancelled:
        raise
    except Exception as error:  # noqa: BLE001 - a hook may raise anything
        return Attempt(None, error)
    return Attempt(answer, None)


async def _answer_logged(
    name: str, registered: HookRegistration, keywords: JsonObject, ctx: ToolContext, executor: Executor
) -> Any:
    try:
        answer, error = await _answer(registered, keywords, ctx, executor)
    except CallCancelled:
        logger.warning("abandoned hook %r from %s because its call was stopped", name, registered.source)
        return None
    if error is not None:
        logger.error("hook %r from %s failed", name, registered.source, exc_info=error)
    return answer


def _verdict(answer: Any, tool_name: str) -> Verdict:
    if not isinstance(answer, dict):
        return ALLOW
    message = answer.get("message")
    text = message if isinstance(message, str) and message else ""
    if answer.get("action") == "block":
        return Verdict("deny", (text or f"A plugin blocked this call to {tool_name}",), PLUGIN_BLOCK)
    if answer.get("action") == "approve":
        rule = answer.get("rule_key")
        # Keyed by the reason too, so that an answer to one question does not answer another.
        key = rule if isinstance(rule, str) and rule else f"{tool_name}:{text}"
        return Verdict("ask", (text or f"A plugin requires approval for {tool_name}",), f"plugin_rule:{key}")
    return ALLOW


def _call_keywords(name: str, args: JsonObject, ctx: ToolContext) -> JsonObject:
    return {
        "tool_name": name,
        "args": args,
        "task_id": ctx.task_id,
        "session_id": ctx.session_id,
        "tool_call_id": ctx.call_id,
        "turn_id": ctx.turn_id,
        "api_request_id": ctx.api_request_id,
        "telemetry_schema_version": TELEMETRY_SCHEMA_VERSION,
    }


def _middleware_keywords(name: str, args: JsonObject, original: JsonObject, ctx: ToolContext) -> JsonObject:
    keywords = _call_keywords(name, args, ctx)
    return keywords | {"original_args": original, "middleware_schema_version": MIDDLEWARE_SCHEMA_VERSION}
