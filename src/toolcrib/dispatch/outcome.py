"""Makes the result of a call from the handler's return value or from what went wrong."""

from __future__ import annotations

import inspect
import time
from typing import Any

from msgspec.structs import replace

from toolcrib.config.redact import redact
from toolcrib.core.approvals import PLAN_MODE, UNTRUSTED_VALUE
from toolcrib.core.context import ToolContext
from toolcrib.core.origins import is_origin
from toolcrib.core.types import ResultStatus, ToolEntry, ToolResult, Verdict
from toolcrib.registry import results

PLUGIN_BLOCK = "plugin_block"
APPROVAL_TIMEOUT = "approval_timeout"
"""The rule of a verdict after an approval timeout."""


def from_value(value: Any, entry: ToolEntry, ctx: ToolContext, started: float) -> ToolResult:
    """The result for a handler's return value: a text or a multimodal object; anything else breaks the contract."""
    name, origin = entry.name, entry.origin
    # Checked first, because it is the usual type, and `isinstance` of a Struct is slow.
    if type(value) is not str and isinstance(value, ToolResult):
        # The handler knows better than its declaration where this content comes from.
        origin = value.origin if value.origin and is_origin(value.origin) else origin
        value = value.content
    if isinstance(value, str):
        text = value if type(value) is str else plain_text(value)
        if not text.isascii():
            text = results.sendable(text)
        error = results.error_in(text)
        if error:
            return replace(failed(text, "error", "tool_error", error, name, ctx, started), origin=origin)
        duration = _milliseconds_since(started)
        return ToolResult(content=text, call_id=ctx.call_id, name=name, duration_ms=duration, origin=origin)
    if results.is_multimodal(value):
        duration = _milliseconds_since(started)
        return ToolResult(content=value, call_id=ctx.call_id, name=name, duration_ms=duration, origin=origin)
    if inspect.iscoroutine(value):
        value.close()
    text = results.unsupported_result(name, value)
    message = f"unsupported result type: {type(value).__name__}"
    return failed(text, "error", "tool_result_contract", message, name, ctx, started)


def handler_failed(error: BaseException, name: str, ctx: ToolContext, started: float) -> ToolResult:
    """The first error layer: what the handler raised."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, (StopIteration, SystemExit)):
        # These cannot propagate unchanged out of a coroutine or a thread.
        error = error.__cause__
    message = results.safe_error_text(f"Tool execution failed: {type(error).__name__}: {results.message_of(error)}")
    return failed(results.tool_error(message), "error", "tool_error", message, name, ctx, started)


def call_failed(error: BaseException, name: str, ctx: ToolContext) -> ToolResult:
    """The second error layer: what went wrong around the handler."""
    message = results.safe_error_text(f"Error executing {name}: {results.message_of(error)}")
    return failed(results.tool_error(message), "error", "tool_error", message, name, ctx)


def unknown(name: str, known: list[str], ctx: ToolContext) -> ToolResult:
    """The result for an unknown tool."""
    return failed(results.unknown_tool(name, known), "error", "unknown_tool", f"Unknown tool: {name}", name, ctx)


def denied(verdict: Verdict, name: str, ctx: ToolContext) -> ToolResult:
    """The result of a call that policy, a user or a plugin did not allow."""
    # They quote the call, and the model must not read a key that it did not have.
    reasons = redact("; ".join(verdict.reasons))
    if verdict.rule == PLUGIN_BLOCK:
        return problem(reasons, "blocked", PLUGIN_BLOCK, name, ctx)
    if verdict.rule == APPROVAL_TIMEOUT:
        return problem(f"This call was not approved in time: {reasons}", "blocked", APPROVAL_TIMEOUT, name, ctx)
    message = f"This call was not allowed: {reasons}"
    finding = next((finding for finding in verdict.findings if not finding.vouched), None)
    if finding is None or not any(danger.rule == UNTRUSTED_VALUE for danger in verdict.dangers):
        return problem(message, "blocked", PLAN_MODE if verdict.rule == PLAN_MODE else "denied", name, ctx)
    source = finding.origin.call_id if finding.origin is not None else ""
    text = results.tool_error(
        message, error_type=UNTRUSTED_VALUE, pointer=finding.pointer, value=redact(finding.value), source_call=source
    )
    return replace(failed(text, "blocked", UNTRUSTED_VALUE, message, name, ctx), finding=finding)


def cancelled(name: str, ctx: ToolContext, started: float | None = None, reason: str = "") -> ToolResult:
    """The result of a call that was stopped before it started or while it ran."""
    if ctx.cancel is not None and ctx.cancel.cancelled:
        reason = reason or ctx.cancel.reason
    message = f"{name} was stopped before it ended: {reason or 'cancelled'}"
    return problem(message, "cancelled", "keyboard_interrupt", name, ctx, started)


def timed_out(reason: object, name: str, ctx: ToolContext, started: float | None = None) -> ToolResult:
    return problem(f"{name} gave {reason}", "timeout", "tool_timeout", name, ctx, started)


def problem(
    message: str, status: ResultStatus, error_type: str, name: str, ctx: ToolContext, started: float | None = None
) -> ToolResult:
    """An error result with our own message for the model."""
    text = results.tool_error(message, error_type=error_type)
    return failed(text, status, error_type, message, name, ctx, started)


def failed(
    text: str,
    status: ResultStatus,
    error_type: str,
    message: str,
    name: str,
    ctx: ToolContext,
    started: float | None = None,
) -> ToolResult:
    return ToolResult(
        content=text,
        status=status,
        error_type=error_type,
        error_message=results.safe_error_text(message),
        call_id=ctx.call_id,
        name=name,
        duration_ms=0.0 if started is None else _milliseconds_since(started),
    )


def plain_text(text: str) -> str:
    """The text as an exact `str`: what subclasses add would be lost in encoding anyway."""
    return str.__str__(text)


def _milliseconds_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
