"""The tools that a script calls, run on the caller's side through the whole pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from toolcrib.code.channel import CallFrame, result_frame
from toolcrib.core.context import CancelToken, ToolContext
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.registry.results import tool_error

LONGEST_RESULT_BYTES = 16 * 1024 * 1024
LONGEST_NAME = 100
CALLS_BEYOND_THE_LIMIT = 1_000
"""A script that goes on calling after that many refusals does nothing else."""


class ScriptCalls:
    """Runs calls of one script, as many at a time as their effects allow, and answers each."""

    def __init__(self, ctx: ToolContext, tools: frozenset[str], limit: int, answer: Callable[[bytes], None]) -> None:
        self._cancel = CancelToken(ctx.cancel)
        self._ctx = replace(ctx, cancel=self._cancel, handler_kwargs=None, effects=None, memo=None)
        self._tools = tools
        self._limit = limit
        self._answer = answer
        self._turns = ctx.services.call_queue()
        self._running: set[asyncio.Task[None]] = set()
        self.asked = 0
        self.made = 0

    @property
    def is_flood(self) -> bool:
        return self.asked > self._limit + CALLS_BEYOND_THE_LIMIT

    def begin(self, call: CallFrame) -> None:
        """Run a call; its answer is sent when it is there."""
        self.asked += 1
        refusal = self._refusal(call)
        if refusal:
            self._answer(result_frame(call.id, tool_error(refusal)))
            return
        self.made += 1
        task = asyncio.ensure_future(self._run(call, f"{self._ctx.call_id or 'script'}/{self.made}"))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Stop what still runs; the script is not there any more to hear of it."""
        self._cancel.cancel("the script has ended")
        if self._running:
            await asyncio.wait(self._running)

    def _refusal(self, call: CallFrame) -> str:
        if call.name not in self._tools:
            offered = ", ".join(sorted(self._tools)) or "no tool"
            return f"a script of this session cannot call {call.name[:LONGEST_NAME]!r}; it can call: {offered}"
        if self.made >= self._limit:
            return (
                f"a script may call {self._limit} tools and has done so; print what you have and go on in a new script"
            )
        return ""

    async def _run(self, call: CallFrame, call_id: str) -> None:
        ctx = replace(self._ctx, call_id=call_id, tool_name=call.name)
        async with self._turns.turn(call.name, call.arguments, ctx):
            result: ToolResult = await ctx.services.call(ctx, call.name, call.arguments)
        self._answer(result_frame(call.id, _whole(result)))


def _whole(result: ToolResult) -> str | JsonObject:
    """The result as the tool gave it: a script can work with what is too long for a model."""
    if not result.handle:
        return result.content
    try:
        kept = Path(result.handle)
        return (
            kept.read_text(encoding="utf-8", errors="replace")
            if kept.stat().st_size <= LONGEST_RESULT_BYTES
            else result.content
        )
    except OSError:
        return result.content
