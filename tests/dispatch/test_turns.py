"""Calls that come one by one take turns by the same rule as the calls of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from toolcrib.core.types import Effect
from toolcrib.dispatch.effects import Effects
from toolcrib.dispatch.parallel import CallQueue
from toolcrib.runtime import Runtime

EFFECTS: dict[str, Effects] = {
    "free": (),
    "read a": (Effect("read", "/w/a"),),
    "write a": (Effect("write", "/w/a"),),
    "write b": (Effect("write", "/w/b"),),
    "write above": (Effect("write", "/w"),),
    "command": (Effect("exec", "true"),),
    "unknown": None,
}


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("free", "free", True),
        ("read a", "read a", True),
        ("write a", "write b", True),
        ("read a", "write a", False),
        ("write a", "write a", False),
        ("write above", "read a", False),
        ("command", "free", False),
        ("free", "unknown", False),
    ],
)
async def test_two_calls_run_together_exactly_where_their_effects_allow_it(
    runtime: Runtime, first: str, second: str, together: bool
) -> None:
    """The second begins while the first still runs, or after it."""
    turns = CallQueue(lambda name, _arguments, _ctx: EFFECTS[name], limit=8)

    order = await _run(turns, runtime, first, second)

    begins_early = order.index(f"begin 1 {second}") < order.index(f"end 0 {first}")
    assert begins_early is together


async def test_a_call_that_waits_is_not_overtaken_by_one_that_stands_against_it(runtime: Runtime) -> None:
    """Else a stream of readers could keep a writer waiting for ever."""
    turns = CallQueue(lambda name, _arguments, _ctx: EFFECTS[name], limit=8)

    order = await _run(turns, runtime, "read a", "write a", "read a")

    assert order.index("end 1 write a") < order.index("begin 2 read a")


async def test_no_more_calls_than_the_limit_run_together(runtime: Runtime) -> None:
    """Those beyond it wait."""
    turns = CallQueue(lambda name, _arguments, _ctx: EFFECTS[name], limit=2)

    order = await _run(turns, runtime, "free", "free", "free")

    assert order.index("begin 2 free") > min(order.index("end 0 free"), order.index("end 1 free"))


async def test_a_call_that_is_given_up_while_it_waits_holds_nobody_up(runtime: Runtime) -> None:
    """Its place is free at once."""
    turns = CallQueue(lambda name, _arguments, _ctx: EFFECTS[name], limit=8)
    ctx = runtime.context()
    async with turns.turn("write a", {}, ctx):
        waiting = asyncio.ensure_future(_enter(turns, "write a", ctx))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    await asyncio.wait_for(_enter(turns, "write a", ctx), 60)


async def _enter(turns: CallQueue, name: str, ctx: Any) -> None:
    async with turns.turn(name, {}, ctx):
        pass


async def _run(turns: CallQueue, runtime: Runtime, *names: str) -> list[str]:
    """What began and ended when all are called at once; each takes a few turns of the loop."""
    order: list[str] = []
    ctx = runtime.context()

    async def call(index: int, name: str, note: Callable[[str], None] = order.append) -> None:
        async with turns.turn(name, {}, ctx):
            note(f"begin {index} {name}")
            for _ in range(5):
                await asyncio.sleep(0)
            note(f"end {index} {name}")

    await asyncio.wait_for(asyncio.gather(*(call(index, name) for index, name in enumerate(names))), 10)
    return order
