"""Runs the calls of one model response in parallel or in order, by declared effects; results keep the call order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from toolcrib.core.attempt import notify
from toolcrib.core.context import ToolContext
from toolcrib.core.lazy import asyncio
from toolcrib.core.types import ToolCall, ToolResult
from toolcrib.dispatch.effects import AccessSet, CallGroup, Effects, access_set
from toolcrib.dispatch.executors import Executor
from toolcrib.dispatch.pipeline import Pipeline, PreparedCall

OnStart = Callable[[ToolCall], None]
OnResult = Callable[[ToolResult], None]


async def run_batch(
    pipeline: Pipeline,
    calls: Sequence[ToolCall],
    ctx: ToolContext,
    executor: Executor,
    *,
    limit: int,
    on_start: OnStart | None = None,
    on_result: OnResult | None = None,
) -> list[ToolResult]:
    """One result for each call, in call order. `on_result` gets each as it arrives, even if the batch is cancelled."""
    results: list[ToolResult | None] = [None] * len(calls)
    prepared = [pipeline.prepare(call.name, call.arguments) for call in calls]

    def begin(call: ToolCall) -> None:
        if on_start is not None:
            notify(on_start, call, name=f"the receiver of call {call.id!r} of {call.name}")

    def keep(index: int, result: ToolResult) -> None:
        results[index] = result
        if on_result is not None:
            notify(on_result, result, name=f"the receiver of call {result.call_id!r} of {result.name}")

    async def run_one(index: int) -> None:
        call = calls[index]
        begin(call)
        own = msgspec.structs.replace(ctx, call_id=call.id, tool_name=call.name)
        keep(index, await pipeline.run_prepared(prepared[index], own, executor))

    try:
        for group in plan(pipeline, prepared, ctx):
            await _run_group(run_one, group, limit)
    finally:
        # However the batch ends, every call needs a result, or the transcript is unusable.
        for index, call in enumerate(calls):
            if results[index] is None:
                keep(index, pipeline.stopped(call, ctx))
    return [result for result in results if result is not None]


def plan(pipeline: Pipeline, calls: Sequence[PreparedCall], ctx: ToolContext) -> list[list[int]]:
    """The positions of the calls in groups: the calls of a group run in parallel, the groups one after the other."""
    if len(calls) == 1:
        return [[0]]
    groups: list[list[int]] = []
    current = CallGroup()
    for index, call in enumerate(calls):
        access = access_set(pipeline.planned_effects(call, ctx), ctx.cwd)
        if not groups or not current.admits(access):
            groups.append([])
            current = CallGroup()
        current.add(access)
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


PlannedEffects = Callable[[str, Mapping[str, Any] | str, ToolContext], Effects]


class _QueuedCall:
    def __init__(self, find_access: Callable[[], AccessSet]) -> None:
        self._find_access = find_access
        self._access: AccessSet | None = None
        self.begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def access(self) -> AccessSet:
        """Computed only if there is another call in the batch."""
        if self._access is None:
            self._access = self._find_access()
        return self._access

    @property
    def has_begun(self) -> bool:
        return self.begins.done()

    def can_run_with(self, other: _QueuedCall) -> bool:
        group = CallGroup()
        group.add(other.access)
        return group.admits(self.access)


class CallQueue:
    """Runs calls that arrive one by one, such as those of a multithreaded script: in parallel if their effects allow
    it, otherwise in order of arrival. Used on one event loop."""

    def __init__(self, planned_effects: PlannedEffects, limit: int) -> None:
        self._planned_effects = planned_effects
        self._limit = limit
        self._turns: list[_QueuedCall] = []

    @asynccontextmanager
    async def turn(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> AsyncIterator[None]:
        """Waits until no earlier call blocks this one."""
        one = _QueuedCall(lambda: access_set(self._planned_effects(name, arguments, ctx), ctx.cwd))
        self._turns.append(one)
        try:
            self._let_begin()
            await one.begins
            yield
        finally:
            self._turns.remove(one)
            self._let_begin()

    def _let_begin(self) -> None:
        running = sum(turn.has_begun for turn in self._turns)
        for index, turn in enumerate(self._turns):
            if turn.has_begun:
                continue
            if running < self._limit and all(turn.can_run_with(earlier) for earlier in self._turns[:index]):
                turn.begins.set_result(None)
                running += 1
