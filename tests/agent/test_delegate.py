"""Helpers: agents that an agent sends out, that report back, and that end with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import SubagentProgressed
from toolcrib.agent.host import AgentHost
from toolcrib.core.models import ModelRequest
from toolcrib.core.types import Effect
from toolcrib.providers.scripted import ScriptedProvider, Step, calls
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.sessions.recovery import check_transcript
from toolcrib.sessions.store import SessionStore
from toolcrib.testing import ScriptedApprover

AddTool = Callable[..., None]


def is_helper(request: ModelRequest) -> bool:
    return request.messages[0].text.startswith("You are a helper")


class AgentAndHelperModel:
    """One model that plays the agent and its helpers: the agent by a list, helpers by what they are asked."""

    def __init__(self, agent: list[Step], helper: Callable[[ModelRequest], Any]) -> None:
        self._agent = list(agent)
        self._helper = helper
        self.provider = ScriptedProvider(otherwise=self._answer)

    def _answer(self, request: ModelRequest) -> Any:
        if is_helper(request):
            return self._helper(request)
        return self._agent.pop(0)


@pytest.fixture
def runtime(make_runtime: Callable[..., Runtime]) -> Runtime:
    return make_runtime(registry=ToolRegistry(parent=default_registry))


def make(runtime: Runtime, cast: AgentAndHelperModel, **options: Any) -> Agent:
    host = AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=cast.provider)
    return Agent(host=host, model=cast.provider, toolsets=["delegation", "memory", *_own(runtime)], **options)


def _own(runtime: Runtime) -> list[str]:
    return ["test"] if runtime.registry.get_tool_names_for_toolset("test") else []


def report(agent: Agent) -> Any:
    result = next(message for message in agent.messages if message.role == "tool")
    return json.loads(result.text)


async def test_helpers_work_side_by_side_and_report(runtime: Runtime, add_tool: AddTool) -> None:
    """Three tasks are worked on at the same time; each report stands at its task."""
    inside = 0
    all_inside = asyncio.Event()

    async def meet(args: Any, **_: Any) -> str:
        nonlocal inside
        inside += 1
        if inside == 3:
            all_inside.set()
        await asyncio.wait_for(all_inside.wait(), 10)
        return "met"

    add_tool(runtime, "meet", meet, is_async=True)

    def helper(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            return f"Report on {request.messages[0].text.split('What to do: ')[1].splitlines()[0]}"
        return calls("meet")

    tasks = [{"goal": f"part {n}"} for n in range(3)]
    agent = make(runtime, AgentAndHelperModel([calls("delegate_task", {"tasks": tasks}), "All done."], helper))
    events: list[Any] = []

    result = await agent.run("Do three things", on_event=events.append)

    assert result.answer == "All done."
    assert [(one["status"], one["summary"]) for one in report(agent)["results"]] == [
        ("completed", f"Report on part {n}") for n in range(3)
    ]
    states = [event.state for event in events if isinstance(event, SubagentProgressed)]
    assert (states.count("started"), states.count("completed")) == (3, 3)
    assert agent.host.delegation is not None
    assert agent.host.delegation.active() == []


async def test_helpers_have_fewer_tools_and_cannot_send_helpers(runtime: Runtime, add_tool: AddTool) -> None:
    """A helper sees neither memory nor delegation, and a call of them all the same is refused."""
    add_tool(runtime, "look", lambda args, **_: "seen")
    offered: list[str] = []

    def helper(request: ModelRequest) -> Any:
        offered[:] = [tool["function"]["name"] for tool in request.tools]
        if request.messages[-1].role == "tool":
            return request.messages[-1].text
        return calls("delegate_task", {"goal": "go deeper"})

    agent = make(runtime, AgentAndHelperModel([calls("delegate_task", {"goal": "try"}), "ok"], helper))

    await agent.run("go")

    assert offered == ["look"]
    assert "not part of this session" in report(agent)["results"][0]["summary"]


async def test_an_orchestrator_may_send_helpers_down_to_the_depth_limit(
    make_runtime: Callable[..., Runtime], add_tool: AddTool
) -> None:
    """With a depth of two, a helper of the role orchestrator sends helpers of its own, and those do not."""
    runtime = make_runtime("delegation: {max_spawn_depth: 2}", registry=ToolRegistry(parent=default_registry))
    add_tool(runtime, "look", lambda args, **_: "seen")
    levels: list[list[str]] = []

    def helper(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            return "passed on"
        levels.append([tool["function"]["name"] for tool in request.tools])
        return calls("delegate_task", {"goal": "deeper", "role": "orchestrator"}) if len(levels) == 1 else "at the end"

    agent = make(
        runtime, AgentAndHelperModel([calls("delegate_task", {"goal": "plan", "role": "orchestrator"}), "ok"], helper)
    )

    await agent.run("go")

    assert "delegate_task" in levels[0]
    assert "delegate_task" not in levels[1]


async def test_interrupting_the_agent_stops_its_helpers_and_keeps_what_they_found(
    runtime: Runtime, add_tool: AddTool
) -> None:
    """A helper ends with the agent that sent it, and both conversations stay whole."""
    running = asyncio.Event()

    async def forever(args: Any, **_: Any) -> str:
        running.set()
        await asyncio.Event().wait()
        return "never"

    add_tool(runtime, "wait", forever, is_async=True)
    agent = make(
        runtime, AgentAndHelperModel([calls("delegate_task", {"goal": "wait"}), "later"], lambda _: calls("wait"))
    )
    task = asyncio.ensure_future(agent.run("go"))
    await asyncio.wait_for(running.wait(), 10)
    delegation = agent.host.delegation
    assert delegation is not None
    child = delegation.active(agent.session_id)[0]

    agent.interrupt()
    result = await asyncio.wait_for(task, 15)

    assert result.outcome == "interrupted"
    assert delegation.active() == []
    assert check_transcript(agent.messages) == []
    helper_messages = [one.message for one in agent.host.store.messages(child.agent.session_id)]
    assert check_transcript(helper_messages) == []


async def test_a_helper_that_takes_too_long_reports_what_it_has(
    make_runtime: Callable[..., Runtime], add_tool: AddTool
) -> None:
    """At its time limit a helper is stopped; its report says so and holds what it said so far."""
    runtime = make_runtime("delegation: {child_timeout_seconds: 0.3}", registry=ToolRegistry(parent=default_registry))

    async def forever(args: Any, **_: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    add_tool(runtime, "wait", forever, is_async=True)
    add_tool(runtime, "look", lambda args, **_: "seen")

    def helper(request: ModelRequest) -> Any:
        return calls("wait") if request.messages[-1].role == "tool" else calls("look", {"text": "the cellar"})

    agent = make(runtime, AgentAndHelperModel([calls("delegate_task", {"goal": "search"}), "ok"], helper))

    await agent.run("go")

    found = report(agent)["results"][0]
    assert found["status"] == "timeout"
    assert "the cellar" in found["summary"]


async def test_what_a_helper_wants_approved_is_asked_through_the_channel_of_its_agent(
    make_runtime: Callable[..., Runtime], add_tool: AddTool
) -> None:
    """The person in front of the agent is asked about what its helper does, and his no holds."""
    approver = ScriptedApprover("deny")
    runtime = make_runtime(registry=ToolRegistry(parent=default_registry), approver=approver, entry_point="interactive")
    add_tool(runtime, "wipe", lambda args, **_: "gone", effects=(Effect("exec", "rm -rf build"),))

    def helper(request: ModelRequest) -> Any:
        return request.messages[-1].text if request.messages[-1].role == "tool" else calls("wipe")

    agent = make(runtime, AgentAndHelperModel([calls("delegate_task", {"goal": "clean"}), "ok"], helper))

    await agent.run("go")

    assert len(approver.asked) == 1
    assert "gone" not in report(agent)["results"][0]["summary"]


async def test_hooks_hear_helpers_start_and_stop(runtime: Runtime) -> None:
    """subagent_start and subagent_stop tell who was sent for what, and how it ended."""
    heard: list[dict[str, Any]] = []
    runtime.hooks.register("subagent_start", lambda **keywords: heard.append(keywords))
    runtime.hooks.register("subagent_stop", lambda **keywords: heard.append(keywords))
    agent = make(runtime, AgentAndHelperModel([calls("delegate_task", {"goal": "look"}), "ok"], lambda _: "Seen."))

    await agent.run("go")

    start, stop = heard
    assert (start["child_goal"], start["parent_session_id"]) == ("look", agent.session_id)
    assert (stop["child_status"], stop["child_summary"]) == ("completed", "Seen.")
    assert start["child_session_id"] == stop["child_session_id"]


async def test_a_call_without_a_goal_says_what_is_missing(runtime: Runtime) -> None:
    """The error tells the model how to write the call."""
    agent = make(runtime, AgentAndHelperModel([calls("delegate_task", {}), "ok"], lambda _: ""))

    await agent.run("go")

    assert "goal" in report(agent)["error"]


async def test_a_helper_that_cannot_be_made_costs_only_its_own_report(runtime: Runtime) -> None:
    """The others are reported as usual, and the call succeeds."""

    class Failing(ScriptedProvider):
        profiles = 0

        def profile(self, model: str) -> Any:
            if self.requests and len(self.requests) == 1:
                self.profiles += 1
                if self.profiles == 1:
                    raise RuntimeError("no profile")
            return super().profile(model)

    cast = AgentAndHelperModel(
        [calls("delegate_task", {"tasks": [{"goal": "one"}, {"goal": "two"}]}), "ok"], lambda _: "done"
    )
    cast.provider = Failing(otherwise=cast._answer)
    agent = make(runtime, cast)

    await agent.run("go")

    first, second = report(agent)["results"]
    assert (first["status"], first["error"]) == ("failed", "no profile")
    assert (second["status"], second["summary"]) == ("completed", "done")


async def test_an_interrupted_agent_tells_the_end_of_its_helpers(runtime: Runtime, add_tool: AddTool) -> None:
    """subagent_stop is heard for each helper that began, waiting ones do not begin, and all sessions are ended."""
    working = asyncio.Event()
    heard: list[tuple[str, Any]] = []
    runtime.hooks.register("subagent_start", lambda **keywords: heard.append(("start", keywords["child_goal"])))
    runtime.hooks.register("subagent_stop", lambda **keywords: heard.append(("stop", keywords["child_status"])))

    async def forever(args: Any, **_: Any) -> str:
        working.set()
        await asyncio.Event().wait()
        return "never"

    add_tool(runtime, "wait", forever, is_async=True)
    tasks = [{"goal": f"part {n}"} for n in range(5)]
    agent = make(runtime, AgentAndHelperModel([calls("delegate_task", {"tasks": tasks})], lambda _: calls("wait")))
    task = asyncio.ensure_future(agent.run("go"))
    await asyncio.wait_for(working.wait(), 10)

    agent.interrupt()
    result = await asyncio.wait_for(task, 20)
    assert agent.host.delegation is not None
    await agent.host.delegation.close()

    assert result.outcome == "interrupted"
    assert [what for what, _ in heard].count("start") == [what for what, _ in heard].count("stop") <= 3
    assert {status for what, status in heard if what == "stop"} == {"interrupted"}
    helpers = [one for one in agent.host.store.list(include_hidden=True) if one.source == "subagent"]
    assert all(one.end_reason == "interrupted" for one in helpers)
