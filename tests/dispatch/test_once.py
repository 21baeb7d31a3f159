"""Each thing that a call needs is found out once, and what planning found authorises nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from toolcrib.agent.host import AgentHost
from toolcrib.core.context import CallMemo, ToolContext
from toolcrib.core.lazy import lazy
from toolcrib.core.types import Effect, JsonObject, ToolCall
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover

Make = Callable[..., Runtime]


class CountingEffects:
    """Effects that count how often they are computed, and in which context."""

    def __init__(self) -> None:
        self.contexts: list[ToolContext] = []

    def __call__(self, _args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        self.contexts.append(ctx)
        return (Effect("read", "/x"),)


def a_call(number: int) -> ToolCall:
    return ToolCall(id=f"id-{number}", name="look", arguments={"text": "a"})


async def test_the_effects_of_a_single_call_are_computed_once(make_runtime: Make, add_tool: Any) -> None:
    """A call without company is not planned: admission alone asks for its effects, and its result carries them."""
    runtime, effects = make_runtime(), CountingEffects()
    add_tool(runtime, "look", lambda args, **_: "seen", effects=effects)

    (result,) = await runtime.call_many([a_call(0)])

    assert len(effects.contexts) == 1
    assert result.effects == (Effect("read", "/x"),)
    assert not runtime.may_have_side_effects(result)


async def test_planning_shares_nothing_with_admission(make_runtime: Make, add_tool: Any) -> None:
    """Calls in company are looked at once more beforehand, without the memo that admission fills."""
    runtime, effects = make_runtime(), CountingEffects()
    add_tool(runtime, "look", lambda args, **_: "seen", effects=effects)

    await runtime.call_many([a_call(0), a_call(1)])

    planned, admitted = effects.contexts[:2], effects.contexts[2:]
    assert [ctx.memo for ctx in planned] == [None, None]
    assert len(admitted) == 2
    assert all(isinstance(ctx.memo, CallMemo) for ctx in admitted)
    assert admitted[0].memo is not admitted[1].memo


async def test_arguments_are_checked_again_when_the_tool_was_replaced(make_runtime: Make, add_tool: Any) -> None:
    """A call that was prepared for a tool which is gone by then is checked against the new one."""
    runtime = make_runtime()
    add_tool(runtime, "look", lambda args, **_: "old")
    pipeline = runtime._pipeline
    prepared = pipeline.prepare("look", {"text": "a"})
    runtime.registry.deregister("look")
    number = {"type": "object", "properties": {"text": {"type": "integer"}}, "required": ["text"]}
    add_tool(runtime, "look", lambda args, **_: "new", schema={"description": "d", "parameters": number})

    result = await pipeline.run_prepared(prepared, runtime.context(), runtime._async_executor)

    assert result.error_type == "invalid_arguments"


async def test_a_command_runs_in_the_environment_and_as_the_gate_read_it(make_runtime: Make, tmp_path: Path) -> None:
    """The handler is given what admission found: the environment, and the command as the gate read it."""
    seen: list[CallMemo | None] = []
    runtime = make_runtime(
        registry=ToolRegistry(parent=default_registry), approver=ScriptedApprover("once"), workspace=tmp_path
    )
    runtime.load()
    handle = runtime.terminal.handle

    async def watched(args: JsonObject, ctx: ToolContext) -> str:
        seen.append(ctx.memo)
        return await handle(args, ctx)

    runtime.terminal.handle = watched  # type: ignore[method-assign]
    await runtime.call("terminal", {"command": "echo hello"})

    (memo,) = seen
    assert memo is not None
    assert [call.program for call in memo.readings["echo hello"].calls] == ["echo"]
    assert memo.target is not None
    assert memo.target is runtime.terminal.execution_target(runtime.context(memo=memo))


def test_a_lazy_attribute_is_built_once_for_all_threads() -> None:
    """Threads that ask at the same time get the same object."""
    built: list[object] = []
    start = threading.Barrier(4)

    class Owner:
        @lazy
        def part(self) -> object:
            built.append(object())
            return built[-1]

    owner, found = Owner(), []
    assert not Owner.part.is_built(owner)

    def ask() -> None:
        start.wait()
        found.append(owner.part)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(built) == 1
    assert found == built * 4
    assert Owner.part.is_built(owner)


def test_the_old_name_of_the_agent_host_still_works() -> None:
    """`toolcrib.Workshop` is the AgentHost, with a notice."""
    with pytest.warns(DeprecationWarning, match="AgentHost"):
        assert toolcrib.Workshop is AgentHost
