"""Runs the tool calls of one answer under guardrails; adds their results as messages in call order."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from toolcrib.agent.events import AnyEvent, CallFinished, CallOutput, CallProgressed, CallStarted, Notified
from toolcrib.config.agent_settings import GuardrailSettings
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.messages import Message, RequestedCall, Text, tool_message
from toolcrib.core.types import TOOL_CALL, ToolCall, ToolResult
from toolcrib.dispatch.pipeline import unwrap_tool_call
from toolcrib.registry.results import untrusted, without_marks
from toolcrib.runtime import Runtime

NO_BUDGET = "the budget of tool calls for this question is used up"
DRY_RUN = "dry run: this call was not made"


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one answer, and their budget."""

    calls: Sequence[RequestedCall]
    ctx: ToolContext
    calls_left: int
    dry_run: bool = False


class RunLog(Protocol):
    """The part of a run that a batch reports to."""

    def emit(self, event: AnyEvent) -> None: ...

    def add(self, message: Message) -> int:
        """Add a message to the conversation; returns its position."""
        ...

    async def stored(self) -> None:
        """Wait until the messages so far are on disk."""
        ...

    async def replace(self, position: int, message: Message) -> None: ...


class CallBatch:
    """Runs calls. Each result is on disk as soon as those before it are; none is missing, however the batch ends."""

    def __init__(self, runtime: Runtime, guardrails: Guardrails, log: RunLog, request: BatchRequest) -> None:
        self._runtime = runtime
        self._guardrails = guardrails
        self._log = log
        self._request = request
        self._calls = request.calls
        self._results: dict[str, ToolResult] = {}
        self._added: dict[str, int] = {}
        self._warnings: dict[str, str] = {}
        self.run_count = 0
        self.all_stopped = False
        self.out_of_budget = False

    async def run(self) -> list[ToolResult]:
        """One result for each call, in call order."""
        to_run = [call for call in self._calls if not self._stopped(call)]
        self.all_stopped = not to_run and not self._request.dry_run
        self.run_count = len(to_run)
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        ctx = msgspec.structs.replace(self._request.ctx, on_progress=self._progress, on_output=self._output)
        try:
            results = await self._runtime.call_many(
                [ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in to_run],
                ctx=ctx,
                on_start=self._started,
                on_result=self._finished,
            )
        finally:
            self._flush()
            await self._log.stored()
        for result in results:
            await self._shorten(result)
        return [self._results[call.id] for call in self._calls]

    def _stopped(self, call: RequestedCall) -> bool:
        """Whether the call must not run; if so, adds a result that says why."""
        if self._request.dry_run:
            self._log.emit(self._start_event(call))
            self._finished(refused(call, DRY_RUN, "dry_run"))
            return True
        used = sum(1 for one in self._calls[: self._calls.index(call)] if one.id not in self._results)
        if used >= self._request.calls_left:
            self.out_of_budget = True
            self._finished(refused(call, NO_BUDGET, "budget"))
            return True
        reason = self._guardrails.refusal(call)
        if reason:
            self._finished(refused(call, reason, "guardrail_block"))
        return bool(reason)

    def _started(self, call: ToolCall) -> None:
        requested = next(one for one in self._calls if one.id == call.id)
        self._log.emit(self._start_event(requested))

    def _start_event(self, call: RequestedCall) -> CallStarted:
        registry = self._runtime.registry
        # Show the tool that really runs.
        name, arguments = unwrap_tool_call(call.arguments) if call.name == TOOL_CALL else (call.name, call.arguments)
        entry = registry.get_entry(name)
        title = entry.title if entry is not None and entry.title != call.name else ""
        return CallStarted(call=call, title=title, emoji=registry.get_emoji(name), summary=summary_of(arguments))

    def _progress(self, message: str) -> None:
        ctx = current_context.get()
        self._report(CallProgressed(call_id=ctx.call_id if ctx is not None else "", message=message))

    def _output(self, call_id: str, text: str, lines: int) -> None:
        self._report(CallOutput(call_id=call_id, text=text, lines=lines))

    def _report(self, event: AnyEvent) -> None:
        """Emit an event of a running call, which may work in a thread: watchers expect the loop of the run."""
        if threading.get_ident() == self._thread:
            self._log.emit(event)
            return
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody watches any more.
            self._loop.call_soon_threadsafe(self._log.emit, event)

    def _finished(self, result: ToolResult) -> None:
        self._results[result.call_id] = result
        call = next(one for one in self._calls if one.id == result.call_id)
        warning = self._guardrails.note(call, result, can_change_things=self._runtime.may_have_side_effects(result))
        if warning:
            self._warnings[call.id] = warning
        self._log.emit(
            CallFinished(
                call_id=result.call_id,
                name=result.name,
                status=result.status,
                text=result.text,
                error_message=result.error_message,
                error_type=result.error_type,
                duration_ms=result.duration_ms,
                handle=result.handle,
                edited=result.edited,
            )
        )
        for notice in result.notices:
            self._log.emit(Notified(kind="undo", message=notice, tool=result.name))
        self._flush()

    def _flush(self) -> None:
        """Add the finished results up to the first missing one."""
        for call in self._calls:
            if call.id in self._added:
                continue
            result = self._results.get(call.id)
            if result is None:
                return
            self._added[call.id] = self._log.add(self._message(result))

    async def _shorten(self, result: ToolResult) -> None:
        """Shorten results that together are too long for one turn, which is only known at the end."""
        if result.content is not self._results[result.call_id].content:
            self._results[result.call_id] = result
            await self._log.replace(self._added[result.call_id], self._message(result))

    def _message(self, result: ToolResult) -> Message:
        return as_message(result, self._warnings.get(result.call_id, ""))


UNTRUSTED_FROM_CHARS = 32
_UNTRUSTED_NAMES = ("web_", "browser_", "mcp_", "x_search")
SUMMARY_CHARS = 80
# The argument that says most about a call, best first.
_TELLING = (
    "command", "path", "file_path", "query", "pattern", "url", "urls", "question", "goal", "prompt", "name", "action",
    "code", "text", "content",
)  # fmt: skip


def as_message(result: ToolResult, warning: str = "") -> Message:
    """The message with a result: external text is marked as data, and any warning follows it."""
    message = tool_message(result)
    # An error may quote a page, too; a refusal of our own does not.
    is_quoted = not result.is_error or result.error_type == "tool_error"
    if _is_from_outside(result.name) and len(result.text) >= UNTRUSTED_FROM_CHARS and is_quoted:
        message = _marked(message, result.name)
    if result.edited:
        edited = f"The user changed the command before it ran, to: {result.edited}"
        warning = f"{edited}] [{warning}" if warning else edited
    if warning:
        note = f"[{warning}]"
        content = f"{message.content}\n{note}" if isinstance(message.content, str) else (*message.content, Text(note))
        message = msgspec.structs.replace(message, content=content)
    return message


def refused(call: RequestedCall, reason: str, error_type: str) -> ToolResult:
    """The result of a call that does not run."""
    content = json.dumps({"error": reason, "error_type": error_type}, ensure_ascii=False)
    return ToolResult(
        content=content,
        status="blocked",
        error_type=error_type,
        error_message=reason,
        call_id=call.id,
        name=call.name,
    )


def summary_of(arguments: Mapping[str, Any] | str) -> str:
    """The argument that says most about a call, in one line; empty if there is none."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return ""
    if not isinstance(arguments, Mapping):
        return ""
    return _in_one_line(_telling_value(arguments))


def _telling_value(arguments: Mapping[str, Any]) -> str:
    for key in (*_TELLING, *arguments):
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and isinstance(value[0], str):
            return ", ".join(str(one) for one in value)
    return ""


def _in_one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"


def _is_from_outside(name: str) -> bool:
    return name.startswith(_UNTRUSTED_NAMES)


def _marked(message: Message, source: str) -> Message:
    if isinstance(message.content, str):
        return msgspec.structs.replace(message, content=untrusted(message.content, source))
    safe = [Text(without_marks(part.text)) if isinstance(part, Text) else part for part in message.content]
    opening, closing = f'<untrusted_tool_result source="{source}">', "</untrusted_tool_result>"
    return msgspec.structs.replace(message, content=(Text(opening), *safe, Text(closing)))


REPEATED_STOPS = 3
"""The run ends after this many turns in a row in which every call was stopped."""

NOT_RUN = ("guardrail_block", "budget", "dry_run")
"""The kinds of results that say nothing about a tool, because it did not run."""
WAITED_MS = 1_000
"""A call that took this long has waited for something, so repeating it is not a loop."""


class _RepeatedCall(msgspec.Struct):
    digest: bytes
    times: int


class Guardrails(msgspec.Struct):
    """The guardrails' memory of one run. Other progress clears it: a test may well fail again after an edit."""

    settings: GuardrailSettings
    _failures: dict[str, _RepeatedCall] = msgspec.field(default_factory=dict)
    _results: dict[str, _RepeatedCall] = msgspec.field(default_factory=dict)
    _failed_in_a_row: dict[str, int] = msgspec.field(default_factory=dict)
    _stopped_turns: int = 0

    def refusal(self, call: RequestedCall) -> str:
        """Why this call may no longer run; empty if it may."""
        limits = self.settings.stop_after
        key = _key(call)
        if (seen := self._failures.get(key)) and seen.times >= limits.exact_failure:
            return f"this exact call failed {seen.times} times in the same way; change it or do something else"
        if (times := self._failed_in_a_row.get(call.name, 0)) >= limits.same_tool_failure:
            return f"{call.name} failed {times} times in a row; use another tool or say what the problem is"
        if (seen := self._results.get(key)) and seen.times >= limits.no_progress:
            return f"this exact call returned the same result {seen.times} times; use that result, or do something else"
        return ""

    def note(self, call: RequestedCall, result: ToolResult, *, can_change_things: bool) -> str:
        """Records the result; returns a warning for the model, which is usually empty."""
        if result.status == "cancelled" or result.error_type in NOT_RUN:
            return ""
        key, limits = _key(call), self.settings.warn_after
        digest = hashlib.blake2b(result.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if not result.is_error:
            self._failures.pop(key, None)
            self._failed_in_a_row.pop(call.name, None)
            if result.duration_ms >= WAITED_MS:
                self._results.clear()
                return ""
            seen = _count(self._results, key, digest)
            if can_change_things and seen.times == 1:
                self._forget_all_but(key)
            if seen.times > limits.no_progress:
                return f"This call has returned the same result {seen.times} times; calling it again will not help."
            return ""
        self._results.pop(key, None)
        seen = _count(self._failures, key, digest)
        in_a_row = self._failed_in_a_row[call.name] = self._failed_in_a_row.get(call.name, 0) + 1
        if seen.times >= limits.exact_failure:
            return f"This exact call failed {seen.times} times in the same way; do not repeat it unchanged."
        if in_a_row >= limits.same_tool_failure:
            return f"{call.name} failed {in_a_row} times in a row; consider another approach."
        return ""

    def is_hopeless(self, *, all_stopped: bool) -> bool:
        """Whether the model only repeats calls that may no longer run; checked after each turn."""
        self._stopped_turns = self._stopped_turns + 1 if all_stopped else 0
        return self._stopped_turns >= REPEATED_STOPS

    def _forget_all_but(self, key: str) -> None:
        self._failures.clear()
        self._failed_in_a_row.clear()
        self._results = {key: self._results[key]}


def _count(table: dict[str, _RepeatedCall], key: str, digest: bytes) -> _RepeatedCall:
    seen = table.get(key)
    if seen is None or seen.digest != digest:
        seen = table[key] = _RepeatedCall(digest, 0)
    seen.times += 1
    return seen


def _key(call: RequestedCall) -> str:
    """The call with normalised arguments, so different spellings of the same arguments are equal."""
    try:
        arguments = json.dumps(json.loads(call.arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return f"{call.name}\n{arguments}"
