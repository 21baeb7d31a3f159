"""Runs the calls of one model response: together or in order, by declared effects, with results in call order."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from toolcrib.core.attempt import attempt
from toolcrib.core.context import ToolContext
from toolcrib.core.lazy import asyncio
from toolcrib.core.types import ToolCall, ToolResult
from toolcrib.dispatch.edges import Edge
from toolcrib.dispatch.effects import Group, reach_of
from toolcrib.dispatch.pipeline import Pipeline

logger = logging.getLogger(__name__)

OnStart = Callable[[ToolCall], None]
OnResult = Callable[[ToolResult], None]


async def run_batch(
    pipeline: Pipeline,
    calls: Sequence[ToolCall],
    ctx: ToolContext,
    edge: Edge,
    *,
    limit: int,
    on_start: OnStart | None = None,
    on_result: OnResult | None = None,
) -> list[ToolResult]:
    """One result for each call, in call order. `on_result` sees each as it comes, also when the batch is cancelled."""
    results: list[ToolResult | None] = [None] * len(calls)

    def begin(call: ToolCall) -> None:
        if on_start is None:
            return
        _, error = attempt(on_start, call)
        if error is not None:
            logger.error("the receiver of call %r of %s failed", call.id, call.name, exc_info=error)

    def keep(index: int, result: ToolResult) -> None:
        results[index] = result
        if on_result is None:
            return
        _, error = attempt(on_result, result)
        if error is not None:
            logger.error("the receiver of call %r of %s failed", result.call_id, result.name, exc_info=error)

    async def run_one(index: int) -> None:
        call = calls[index]
        begin(call)
        own = msgspec.structs.replace(ctx, call_id=call.id, tool_name=call.name)
        keep(index, await pipeline.run(call.name, call.arguments, own, edge))

    try:
        for group in plan(pipeline, calls, ctx):
            await _run_group(run_one, group, limit)
    finally:
        # Whatever ends the batch, a call without a result would make the transcript unusable.
        for index, call in enumerate(calls):
            if results[index] is None:
                keep(index, pipeline.stopped(call, ctx))
    return [result for result in results if result is not None]


def plan(pipeline: Pipeline, calls: Sequence[ToolCall], ctx: ToolContext) -> list[list[int]]:
    """The positions of the calls in groups: the calls of a group run together, the groups one after the other."""
    groups: list[list[int]] = []
    current = Group()
    for index, call in enumerate(calls):
        reach = reach_of(pipeline.footprint(call.name, call.arguments, ctx), ctx.cwd)
        if not groups or not current.admits(reach):
            groups.append([])
            current = Group()
        current.add(reach)
        groups[-1].append(index)
    return groups


async def _run_group(run_one: Callable[[int], Awaitable[None]], group: list[int], limit: int) -> None:
    if len(group) == 1:
        await run_one(group[0])
        return
    waiting = iter(group)

    async def work() -> None:
        for index in waiting:
            await run_one(index)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(limit, len(group))):
            tasks.create_task(work())
