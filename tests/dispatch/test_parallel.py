"""The calls of one turn: together or in order, one result for each, in call order."""

import asyncio
import json

import pytest

from toolcrib.core.approvals import ApprovalAnswer
from toolcrib.core.cancel import CancelToken
from toolcrib.core.types import Effect, ToolCall


class AllowingApprover:
    async def ask(self, request):
        return ApprovalAnswer(choice="once")


class Watch:
    """Handlers that say when they begin and end, and know how many run at once."""

    def __init__(self):
        self.events = []
        self.running = 0
        self.most = 0

    async def handler(self, args, **kwargs):
        name = args.get("text", "")
        self.events.append(f"{name} begins")
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(5):
            await asyncio.sleep(0)
        self.running -= 1
        self.events.append(f"{name} ends")
        return name


def calls_of(*names, **arguments):
    return [
        ToolCall(id=f"id-{index}", name=name, arguments={"text": f"{name}{index}", **arguments})
        for index, name in enumerate(names)
    ]


@pytest.fixture
def watched(make_runtime, add_tool):
    """A runtime with a tool `free` without effects, `plain` that declares nothing, and `file` that writes to `text`."""
    runtime, watch = make_runtime(approver=AllowingApprover()), Watch()
    add_tool(runtime, "free", watch.handler, is_async=True, effects=())
    add_tool(runtime, "plain", watch.handler, is_async=True)
    add_tool(runtime, "runs", watch.handler, is_async=True, effects=(Effect("exec", "make"),))
    return runtime, watch


async def test_results_come_in_call_order(make_runtime, add_tool):
    """The slowest first call does not change the order of the results."""
    runtime = make_runtime()
    first_may_end = asyncio.Event()

    async def slow(args, **kwargs):
        await first_may_end.wait()
        return "slow"

    async def quick(args, **kwargs):
        first_may_end.set()
        return "quick"

    add_tool(runtime, "slow", slow, is_async=True, effects=())
    add_tool(runtime, "quick", quick, is_async=True, effects=())
    seen = []
    results = await runtime.call_many(calls_of("slow", "quick"), on_result=lambda result: seen.append(result.call_id))
    assert [(result.call_id, result.content) for result in results] == [("id-0", "slow"), ("id-1", "quick")]
    assert seen == ["id-1", "id-0"]


async def test_calls_without_effects_run_together_up_to_the_limit(watched):
    """No more than the set number run at once, and that many do."""
    runtime, watch = watched
    await runtime.call_many(calls_of(*["free"] * 20), limit=4)
    assert watch.most == 4


async def test_the_config_bounds_how_many_run_at_once(make_runtime, add_tool):
    """tools.max_parallel is the limit where the caller names none."""
    runtime, watch = make_runtime("tools:\n  max_parallel: 3\n"), Watch()
    add_tool(runtime, "free", watch.handler, is_async=True, effects=())
    await runtime.call_many(calls_of(*["free"] * 10))
    assert watch.most == 3


@pytest.mark.parametrize("name", ["plain", "runs"])
async def test_calls_that_must_be_alone_are_barriers_on_both_sides(watched, name):
    """A tool that declares nothing, or runs a command, keeps its place: all before it end, none after it begins."""
    runtime, watch = watched
    await runtime.call_many(calls_of("free", "free", name, "free", "free"))
    barrier = watch.events.index(f"{name}2 begins")
    assert watch.events[barrier : barrier + 2] == [f"{name}2 begins", f"{name}2 ends"]
    assert {event[:5] for event in watch.events[:barrier]} == {"free0", "free1"}
    assert {event[:5] for event in watch.events[barrier + 2 :]} == {"free3", "free4"}
    assert watch.events[:2] == ["free0 begins", "free1 begins"]


async def test_writes_to_one_file_are_in_order_and_to_others_together(make_runtime, add_tool, tmp_path):
    """The paths that effects name decide who waits for whom."""
    runtime, watch, both = make_runtime(approver=AllowingApprover()), Watch(), asyncio.Barrier(2)

    async def handler(args, **kwargs):
        if args["text"] in ("a", "b"):
            # Neither gets past this unless the other one has begun, too.
            await asyncio.wait_for(both.wait(), 30)
        return await watch.handler(args, **kwargs)

    add_tool(runtime, "file", handler, is_async=True, effects=lambda args, ctx: [Effect("write", args["text"].strip())])
    paths = ["a", "b", "./a"]
    calls = [ToolCall(id=path, name="file", arguments={"text": path}) for path in paths]
    results = await runtime.call_many(calls, ctx=runtime.context(cwd=str(tmp_path)))
    assert [result.status for result in results] == ["ok"] * 3
    assert watch.events[4:] == ["./a begins", "./a ends"]


async def test_one_failure_touches_no_other_call(watched, add_tool):
    """An exception, an unknown name and bad arguments each cost their own call."""
    runtime, _ = watched

    async def broken(args, **kwargs):
        raise ValueError("no")

    async def leaves(args, **kwargs):
        raise SystemExit(1)

    add_tool(runtime, "broken", broken, is_async=True, effects=())
    add_tool(runtime, "leaves", leaves, is_async=True, effects=())
    calls = calls_of("free", "broken", "leaves", "missing", "free")
    calls.append(ToolCall(id="bad", name="free", arguments="{not json"))
    calls.append(ToolCall(id="none", name=None, arguments={}))
    results = await runtime.call_many(calls)
    assert [result.call_id for result in results] == [call.id for call in calls]
    assert [result.is_error for result in results] == [False, True, True, True, False, True, True]


@pytest.mark.parametrize(
    "effects", [lambda args, ctx: 1 / 0, lambda args, ctx: [Effect("read", "a\0b")], lambda args, ctx: None]
)
async def test_effects_that_cannot_be_told_keep_a_call_in_order(watched, add_tool, effects):
    """Planning survives a broken effects function, and the call runs by itself or not at all."""
    runtime, watch = watched
    add_tool(runtime, "odd", watch.handler, is_async=True, effects=effects)
    results = await runtime.call_many(calls_of("free", "odd", "free"))
    assert [result.call_id for result in results] == ["id-0", "id-1", "id-2"]
    assert watch.events.index("free0 ends") < watch.events.index("free2 begins")


async def test_a_receiver_of_results_that_fails_costs_nothing(watched):
    """on_result is told about each; its own failures are logged."""
    runtime, _ = watched

    def receiver(result):
        raise RuntimeError("the screen is gone")

    results = await runtime.call_many(calls_of("free", "plain"), on_result=receiver)
    assert [result.status for result in results] == ["ok", "ok"]


async def test_a_cancelled_batch_tells_each_id_exactly_once(watched, add_tool):
    """Ended, running and waiting calls: every id gets one result on the way out."""
    runtime, _ = watched
    running = asyncio.Event()

    async def waits(args, **kwargs):
        running.set()
        await asyncio.Event().wait()

    add_tool(runtime, "waits", waits, is_async=True, effects=())
    calls = calls_of("plain", "waits", "waits", "free", "plain", "tool_call")
    seen = []
    batch = asyncio.create_task(runtime.call_many(calls, limit=2, on_result=seen.append))
    await running.wait()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    assert sorted(result.call_id for result in seen) == [call.id for call in calls]
    by_id = {result.call_id: result for result in seen}
    assert by_id["id-0"].status == "ok"
    assert {by_id[f"id-{index}"].status for index in (1, 2, 3, 4, 5)} == {"cancelled"}
    assert all("error" in json.loads(by_id[f"id-{index}"].content) for index in (1, 2, 3, 4, 5))


async def test_a_batch_cancelled_before_it_began_tells_each_id(watched):
    """A task that never ran tells nobody; one that was just entered tells all."""
    runtime, _ = watched
    seen = []

    async def cancelled_at_once():
        asyncio.current_task().cancel()
        await runtime.call_many(calls_of("free", "free"), on_result=seen.append)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancelled_at_once())
    assert sorted(result.call_id for result in seen) == ["id-0", "id-1"]


async def test_a_cancel_token_stops_a_batch_with_results_for_all(watched, add_tool):
    """Stop gives a result for every call, without an exception."""
    runtime, _ = watched
    token = CancelToken()

    async def stops(args, **kwargs):
        token.cancel("stop")
        await asyncio.Event().wait()

    add_tool(runtime, "stops", stops, is_async=True, effects=())
    results = await runtime.call_many(calls_of("plain", "stops", "plain"), ctx=runtime.context(cancel=token))
    assert [result.status for result in results] == ["ok", "cancelled", "cancelled"]


async def test_the_config_s_deadlines_hold_in_batches(make_runtime, add_tool):
    """tools.timeouts bounds the calls of a batch one by one."""
    runtime = make_runtime("tools:\n  timeouts:\n    sleeps: 0.01\n")

    async def sleeps(args, **kwargs):
        await asyncio.Event().wait()

    add_tool(runtime, "sleeps", sleeps, is_async=True, effects=())
    results = await runtime.call_many(calls_of("sleeps", "sleeps"))
    assert [result.status for result in results] == ["timeout", "timeout"]


async def test_an_empty_batch_has_no_results(runtime):
    """No calls, no results."""
    assert await runtime.call_many([]) == []
