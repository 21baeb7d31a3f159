"""The calls of one answer: run through the runtime, watched, and told to the model in the order it asked for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from toolcrib.agent.events import AnyEvent, CallFinished, CallProgressed, CallStarted
from toolcrib.agent.guardrails import Guardrails
from toolcrib.agent.results import as_message, refused, summary_of
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.types import TOOL_CALL, ToolCall, ToolResult
from toolcrib.dispatch.deferred import unwrap
from toolcrib.runtime import Runtime

NO_BUDGET = "the budget of tool calls for this question is used up"
DRY_RUN = "dry run: this call was not made"


class BatchSurroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch works with."""

    runtime: Runtime
    ctx: ToolContext
    guardrails: Guardrails
    emit: Callable[[AnyEvent], None]
    add: Callable[[Message], int]
    """Puts a message into the conversation; returns its position."""
    replace: Callable[[int, Message], None]
    calls_left: int
    dry_run: bool = False


class Batch:
    """Each result is on disk as soon as those before it are; none is missing whatever ends the batch."""

    def __init__(self, around: BatchSurroundings, calls: Sequence[RequestedCall]) -> None:
        self._around = around
        self._calls = calls
        self._results: dict[str, ToolResult] = {}
        self._added: dict[str, int] = {}
        self._warnings: dict[str, str] = {}
        self.run_count = 0
        self.all_stopped = False
        self.out_of_budget = False

    async def run(self) -> list[ToolResult]:
        """One result for each call, in call order."""
        around = self._around
        to_run = [call for call in self._calls if not self._stopped(call)]
        self.all_stopped = not to_run and not around.dry_run
        self.run_count = len(to_run)
        ctx = msgspec.structs.replace(around.ctx, on_progress=self._progress)
        try:
            results = await around.runtime.call_many(
                [ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in to_run],
                ctx=ctx,
                on_start=self._started,
                on_result=self._finished,
            )
        finally:
            self._flush()
        for result in results:
            self._shorten(result)
        return [self._results[call.id] for call in self._calls]

    def _stopped(self, call: RequestedCall) -> bool:
        """Whether a call is not run at all; its result says why."""
        around = self._around
        if around.dry_run:
            around.emit(self._start_event(call))
            self._finished(refused(call, DRY_RUN, "dry_run"))
            return True
        used = sum(1 for one in self._calls[: self._calls.index(call)] if one.id not in self._results)
        if used >= around.calls_left:
            self.out_of_budget = True
            self._finished(refused(call, NO_BUDGET, "budget"))
            return True
        reason = around.guardrails.refusal(call)
        if reason:
            self._finished(refused(call, reason, "guardrail_block"))
        return bool(reason)

    def _started(self, call: ToolCall) -> None:
        requested = next(one for one in self._calls if one.id == call.id)
        self._around.emit(self._start_event(requested))

    def _start_event(self, call: RequestedCall) -> CallStarted:
        registry = self._around.runtime.registry
        # People are told of the tool that really runs.
        name, arguments = unwrap(call.arguments) if call.name == TOOL_CALL else (call.name, call.arguments)
        entry = registry.get_entry(name)
        title = entry.title if entry is not None and entry.title != call.name else ""
        return CallStarted(call=call, title=title, emoji=registry.get_emoji(name), summary=summary_of(arguments))

    def _progress(self, message: str) -> None:
        ctx = current_context.get()
        self._around.emit(CallProgressed(call_id=ctx.call_id if ctx is not None else "", message=message))

    def _finished(self, result: ToolResult) -> None:
        around = self._around
        self._results[result.call_id] = result
        call = next(one for one in self._calls if one.id == result.call_id)
        changes = around.runtime.may_change_things(call.name, call.arguments, around.ctx)
        warning = around.guardrails.note(call, result, may_change_things=changes)
        if warning:
            self._warnings[call.id] = warning
        around.emit(
            CallFinished(
                call_id=result.call_id,
                name=result.name,
                status=result.status,
                text=result.text,
                error_message=result.error_message,
                error_type=result.error_type,
                duration_ms=result.duration_ms,
                handle=result.handle,
            )
        )
        self._flush()

    def _flush(self) -> None:
        """Add the results that are there, as far as none before them is missing."""
        for call in self._calls:
            if call.id in self._added:
                continue
            result = self._results.get(call.id)
            if result is None:
                return
            self._added[call.id] = self._around.add(self._message(result))

    def _shorten(self, result: ToolResult) -> None:
        """All results together may be too long for one turn, which is only known at the end."""
        if result.content is not self._results[result.call_id].content:
            self._results[result.call_id] = result
            self._around.replace(self._added[result.call_id], self._message(result))

    def _message(self, result: ToolResult) -> Message:
        return as_message(result, self._warnings.get(result.call_id, ""))
