"""What agents of one home share, and what an agent can do beside answering."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted_requests import requests_of
from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.agent.tool_selection import default_toolsets
from toolcrib.core.errors import UnknownToolset, UsageError
from toolcrib.core.messages import Message, RequestedCall, user_message
from toolcrib.core.models import ModelRequest
from toolcrib.core.types import Effect, ToolEntry, ToolResult
from toolcrib.providers.scripted import ScriptedProvider, calls
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.sessions.recovery import check_transcript
from toolcrib.sessions.store import SessionStore
from toolcrib.testing import ScriptedApprover

MakeAgent = Callable[..., Any]
PLUGIN = """
def register(ctx):
    def speak(args, **_):
        ctx.inject_message("The printer is out of paper.")
        return "spoken"

    async def think(args, **_):
        return await ctx.llm.complete("What is the capital of France?")

    schema = {"description": "x", "parameters": {"type": "object", "properties": {}}}
    ctx.register_tool("speak", "talk", schema, speak)
    ctx.register_tool("think", "talk", schema, think, is_async=True)
"""


def judged(verdict: str, *steps: Any) -> ScriptedProvider:
    """A model that works by steps, and judges commands by one word."""
    waiting = list(steps)

    def answer(request: ModelRequest) -> Any:
        if "You review one command" in request.messages[0].text:
            return json.dumps({"answer": verdict})
        return waiting.pop(0)

    return ScriptedProvider(otherwise=answer)


@pytest.mark.parametrize(("verdict", "asked", "outcome"), [("allow", 0, "answered"), ("unsure", 1, "denied")])
async def test_in_smart_mode_the_model_is_asked_before_the_person(
    tmp_path: Path, verdict: str, asked: int, outcome: str
) -> None:
    """What the model agrees to runs without a question; what it does not is asked about."""
    home = tmp_path / "smart"
    home.mkdir()
    (home / "config.yaml").write_text("approvals: {mode: smart}\n")
    registry = ToolRegistry()
    registry.register(
        name="clean",
        toolset="test",
        schema={"description": "x", "parameters": {"type": "object", "properties": {}}},
        handler=lambda args, **_: "cleaned",
        effects=(Effect("exec", "rm -rf node_modules/"),),
    )
    approver = ScriptedApprover("deny")
    host = AgentHost(
        home=home,
        registry=registry,
        approver=approver,
        entry_point="interactive",
        workspace=tmp_path,
        store=SessionStore.in_memory(),
        model=judged(verdict, calls("clean"), "done"),
    )
    agent = Agent(host=host, toolsets=["test"])

    result = await agent.run("Clean up")
    await host.close()

    assert (len(approver.asked), result.outcome) == (asked, outcome)


async def test_in_smart_mode_without_an_approver_the_model_alone_decides_nothing(tmp_path: Path) -> None:
    """A program that brings nobody to ask is denied, whatever a model thinks of the command."""
    home = tmp_path / "smart"
    home.mkdir()
    (home / "config.yaml").write_text("approvals: {mode: smart}\n")
    registry = ToolRegistry()
    registry.register(
        name="clean",
        toolset="test",
        schema={"description": "x", "parameters": {"type": "object", "properties": {}}},
        handler=lambda args, **_: "cleaned",
        effects=(Effect("exec", "rm -rf node_modules/"),),
    )
    model = judged("allow", calls("clean"), "done")
    host = AgentHost(home=home, registry=registry, workspace=tmp_path, store=SessionStore.in_memory(), model=model)

    result = await Agent(host=host, toolsets=["test"]).run("Clean up")
    await host.close()

    assert result.outcome == "denied"


async def test_plugins_speak_into_the_conversation_and_use_the_model(tmp_path: Path) -> None:
    """ctx.inject_message is heard before the next request; ctx.llm answers with the model of the agent."""
    home = tmp_path / "home-of-plugin"
    folder = home / "plugins" / "talker"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: talker\nversion: 1.0.0\ndescription: talks\n")
    (folder / "__init__.py").write_text(PLUGIN)
    (home / "config.yaml").write_text("plugins: {enabled: [talker]}\n")
    provider = ScriptedProvider([calls("speak"), calls("think"), "Paris.", "I see."])
    host = AgentHost(home=home, store=SessionStore.in_memory(), model=provider)
    agent = Agent(host=host, toolsets=["talk"])

    await agent.run("Talk")
    await host.close()

    assert provider.requests[1].messages[-1].text == "The printer is out of paper."
    assert agent.messages[-2].text == "Paris."


def test_an_unknown_toolset_is_refused_with_the_nearest_name(runtime: Runtime, make_agent: MakeAgent) -> None:
    """A misspelt toolset is an error when the agent is made, never a session with other tools."""
    with pytest.raises(UnknownToolset, match="did you mean 'web'"):
        make_agent("x", toolsets=["wep"])


def test_the_default_toolsets_are_those_of_the_config_and_of_the_users_tools(
    make_runtime: Callable[..., Runtime], add_tool: Callable[..., None]
) -> None:
    """Tools that somebody declared belong to every agent; an empty list in the config means none at all."""
    runtime = make_runtime("toolsets: [web]")
    add_tool(runtime, "mine", lambda args, **_: "x", toolset="own")
    none = make_runtime("toolsets: []")
    add_tool(none, "mine", lambda args, **_: "x", toolset="own")

    assert default_toolsets(runtime) == ["web", "own"]
    assert default_toolsets(none) == []


async def test_undo_takes_back_the_last_exchange(
    make_agent: MakeAgent, runtime: Runtime, add_tool: Callable[..., None]
) -> None:
    """The question, its calls and its answer are gone for the model; what came before stays."""
    add_tool(runtime, "echo", lambda args, **_: "x")
    agent = make_agent("one", calls("echo"), "two", "three")
    await agent.run("first")
    await agent.run("second")

    taken_back = agent.undo()
    await agent.run("third")

    assert taken_back == 4
    assert [message.text for message in requests_of(agent)[-1].messages] == ["first", "one", "third"]


async def test_a_branch_goes_on_by_itself(make_agent: MakeAgent) -> None:
    """What is said in a branch is not said in the session that it comes from."""
    agent = make_agent("one", "two")
    await agent.run("first")

    branch = agent.branch()
    await branch.run("second")

    assert [message.text for message in branch.messages] == ["first", "one", "second", "two"]
    assert len(agent.messages) == 2
    assert branch.session.parent_id == agent.session_id


async def test_one_question_at_a_time(make_agent: MakeAgent, runtime: Runtime, add_tool: Callable[..., None]) -> None:
    """A second question to an agent at work is refused with what to do instead."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def wait(args: Any, **_: Any) -> str:
        started.set()
        await go_on.wait()
        return "x"

    add_tool(runtime, "wait", wait, is_async=True)
    agent = make_agent(calls("wait"), "done")
    task = asyncio.ensure_future(agent.run("first"))
    await asyncio.wait_for(started.wait(), 10)

    with pytest.raises(UsageError, match="steer it"):
        await agent.run("second")
    go_on.set()

    assert (await task).answer == "done"


async def test_notices_of_background_processes_reach_the_model(tmp_path: Path) -> None:
    """What a background command did since the last request stands before the next question's answer."""
    provider = ScriptedProvider(
        [calls("terminal", {"command": "echo built", "background": True, "notify_on_complete": True}), "started", "ok"]
    )
    host = AgentHost(
        home=tmp_path / "crib", store=SessionStore.in_memory(), model=provider, workspace=tmp_path, yolo=True
    )
    agent = Agent(host=host, toolsets=["terminal"])
    await agent.run("Build it")
    await host.runtime.terminal.processes.next_events(agent.session_id, "test", 20)

    await agent.run("And?")
    await host.close()

    said = [message.text for message in provider.requests[-1].messages if message.role == "user"]
    assert any("echo built" in text for text in said[1:])
    assert check_transcript(agent.messages) == []


async def test_files_that_calls_changed_can_be_taken_back(
    make_agent: MakeAgent, make_runtime: Callable[..., Runtime], add_tool: Callable[..., None], tmp_path: Path
) -> None:
    """A declared write is remembered with what the file was before."""
    target = tmp_path / "note.txt"
    target.write_text("before")
    runtime = make_runtime(workspace=tmp_path)
    add_tool(
        runtime,
        "write",
        lambda args, **_: str(target.write_text("after")),
        effects=(Effect("write", str(target)),),
    )
    agent = make_agent(calls("write"), "done", runtime=runtime)
    await agent.run("Write")
    history = agent.host.file_history

    changed = [(one.path, one.kind) for one in history.changed(agent.session_id)]
    history.undo_turn(agent.session_id)

    assert changed == [(str(target), "changed")]
    assert target.read_text() == "before"


def test_an_agent_of_synchronous_code_closes_behind_itself(tmp_path: Path) -> None:
    """`with Agent(…)` answers and leaves no thread and no open file of its own."""
    before = set(threading.enumerate())
    with Agent(model=ScriptedProvider(["yes"]), home=tmp_path / "crib", toolsets=[]) as agent:
        answer = agent.run_sync("Are you there?").answer

    assert answer == "yes"
    left = [thread for thread in threading.enumerate() if thread not in before and "toolcrib" in thread.name]
    assert [thread for thread in left if thread.is_alive() and not thread.daemon] == []
    assert not any(thread.name == "toolcrib-agents" for thread in left)


async def test_undo_takes_the_plan_back_too(make_runtime: Callable[..., Runtime]) -> None:
    """After an undo the plan is what the conversation that is left says."""
    runtime = make_runtime(registry=ToolRegistry(parent=default_registry))

    def plan(status: str) -> Any:
        return calls("todo", {"todos": [{"id": "1", "content": "paint", "status": status}]})

    provider = ScriptedProvider([plan("pending"), "planned", plan("completed"), "painted"])
    host = AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=provider)
    agent = Agent(host=host, toolsets=["todo"])
    await agent.run("Plan it")
    await agent.run("Do it")

    agent.undo()

    assert host.todo.store(agent.session_id).read()[0]["status"] == "pending"


async def test_only_an_unknown_outcome_is_told_as_one(make_agent: MakeAgent, store: SessionStore) -> None:
    """A result that was recorded before a crash, though it is a failure, is known; the person is not alarmed."""
    agent = make_agent()
    asked = RequestedCall(id="c", name="print", arguments="{}")
    store.append(agent.session_id, user_message("Print it"))
    store.append(agent.session_id, Message(role="assistant", tool_calls=(asked,)))
    entry = ToolEntry(name="print", toolset="test", schema={}, handler=lambda args: "x")
    ctx = agent.host.runtime.context(session_id=agent.session_id, call_id="c")
    store.recorder().started(entry, {}, (), ctx)
    failure = ToolResult(content='{"error": "no paper"}', status="error", call_id="c", name="print")
    store.recorder().finished(entry, failure, ctx)

    resumed = make_agent(session_id=agent.session_id)

    assert [message.text for message in resumed.repaired] == ['{"error": "no paper"}']
    assert resumed.warnings == []


async def test_a_plan_that_is_too_long_is_cut_and_says_so(make_runtime: Callable[..., Runtime]) -> None:
    """256 items of 4,000 characters are kept; the model hears how many were left out."""
    runtime = make_runtime(registry=ToolRegistry(parent=default_registry))
    items = [{"id": str(n), "content": "x" * (5_000 if n == 0 else 1), "status": "pending"} for n in range(300)]
    provider = ScriptedProvider([calls("todo", {"todos": items}), "ok"])
    host = AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=provider)
    agent = Agent(host=host, toolsets=["todo"])

    await agent.run("Plan it")

    answer = json.loads(agent.messages[2].text)
    assert (answer["summary"]["total"], len(answer["todos"][0]["content"])) == (256, 4_000)
    assert "44 were left out" in answer["note"]
