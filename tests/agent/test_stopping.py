"""Stopping an agent: at any moment, with a whole conversation left behind."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted_requests import requests_of
from toolcrib.core.errors import UsageError
from toolcrib.core.models import ModelProfile, ModelRequest
from toolcrib.core.types import Effect
from toolcrib.providers.scripted import ScriptedProvider, call, calls, says
from toolcrib.runtime import Runtime
from toolcrib.sessions.recovery import check_transcript
from toolcrib.sessions.store import SessionStore

AddTool = Callable[..., None]
MakeAgent = Callable[..., Any]


async def test_an_interrupt_in_the_last_turn_is_no_empty_budget(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool
) -> None:
    """Stopped in the last call of its budget, a run is interrupted, and the model is not asked for a last word."""
    agent: Any = None

    async def stop(args: Any, **_: Any) -> str:
        agent.interrupt()
        return "stopped"

    add_tool(runtime, "stop", stop, is_async=True)
    agent = make_agent(calls("stop"), "never asked", max_turns=1)

    result = await agent.run("go")

    assert (result.outcome, len(requests_of(agent))) == ("interrupted", 1)


@pytest.mark.parametrize(
    "hook",
    ["pre_llm_call", "pre_api_request", "post_api_request", "pre_tool_call", "post_tool_call", "pre_verify",
     "transform_llm_output"],
)  # fmt: skip
async def test_a_hook_that_hangs_is_stopped_by_an_interrupt(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool, hook: str
) -> None:
    """Whatever hook the run waits for, an interrupt ends it, and the question and all results are kept."""
    waiting = asyncio.Event()

    async def hang(**_: Any) -> None:
        waiting.set()
        await asyncio.Event().wait()

    runtime.hooks.register(hook, hang)
    add_tool(runtime, "echo", lambda args, **_: "x")
    agent = make_agent(calls("echo"), "done")
    task = asyncio.ensure_future(agent.run("go"))
    await asyncio.wait_for(waiting.wait(), 10)

    agent.interrupt()
    result = await asyncio.wait_for(task, 20)

    assert result.outcome == "interrupted"
    assert agent.messages[0].text == "go"
    assert check_transcript(agent.messages) == []


@pytest.mark.parametrize("hook", ["post_llm_call", "on_session_end"])
async def test_a_hook_that_hangs_at_the_end_does_not_hold_up_the_answer_for_ever(
    make_agent: MakeAgent, runtime: Runtime, hook: str
) -> None:
    """An interrupt while the end is being told leaves the hook behind; the answer stands."""
    waiting = asyncio.Event()

    async def hang(**_: Any) -> None:
        waiting.set()
        await asyncio.Event().wait()

    runtime.hooks.register(hook, hang)
    agent = make_agent("Four.")
    task = asyncio.ensure_future(agent.run("2+2?"))
    await asyncio.wait_for(waiting.wait(), 10)

    agent.interrupt()

    assert (await asyncio.wait_for(task, 20)).answer == "Four."


async def test_an_interrupt_ends_a_request_that_plain_middleware_waits_for(
    make_agent: MakeAgent, runtime: Runtime
) -> None:
    """A request inside of a plain function is cancelled with the run, not paid for to its end."""
    sent, ended = asyncio.Event(), asyncio.Event()

    class Endless(ScriptedProvider):
        async def complete(self, request: Any, emit: Any) -> Any:
            sent.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    runtime.hooks.register_middleware("llm_execution", lambda next_call, request, **_: next_call(request))
    agent = make_agent(model=Endless())
    task = asyncio.ensure_future(agent.run("go"))
    await asyncio.wait_for(sent.wait(), 10)

    agent.interrupt()

    assert (await asyncio.wait_for(task, 10)).outcome == "interrupted"
    await asyncio.wait_for(ended.wait(), 10)


async def test_calls_that_were_stopped_are_no_failures_of_the_model(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool
) -> None:
    """The model is not told off for calls that a person stopped."""
    running = asyncio.Event()

    async def forever(args: Any, **_: Any) -> None:
        running.set()
        await asyncio.Event().wait()

    add_tool(runtime, "wait", forever, is_async=True)
    agent = make_agent(says("", call("wait"), call("wait"), call("wait")), "ok")
    task = asyncio.ensure_future(agent.run("go"))
    await asyncio.wait_for(running.wait(), 10)

    agent.interrupt()
    await asyncio.wait_for(task, 10)

    assert not any("failed" in message.text for message in agent.messages)


async def test_whenever_a_run_is_stopped_memory_and_disk_hold_the_same_whole_conversation(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool, store: SessionStore
) -> None:
    """Stopped at many moments, by token, by thread and by cancelling, with summaries in between: always one result."""
    chance = random.Random(7)

    async def quick(args: Any, **_: Any) -> str:
        await asyncio.sleep(0.001)
        return "a"

    add_tool(runtime, "loop", quick, is_async=True, effects=(Effect("read", "x"),))
    add_tool(runtime, "thread", lambda args, **_: "b", effects=())

    def answer(request: ModelRequest) -> Any:
        if "You write a summary" in request.messages[0].text:
            return "so far"
        wanted = [call(chance.choice(["loop", "thread"]), {"n": chance.randrange(99)}, id="same") for _ in range(3)]
        return says("word " * 50, *wanted[: chance.randrange(4)])

    provider = ScriptedProvider(otherwise=answer, delay_seconds=0.001, profile=ModelProfile(context_window=5_000))
    agent = make_agent(model=provider)
    for number in range(30):
        task = asyncio.ensure_future(agent.run(f"question {number}"))
        await asyncio.sleep(chance.random() * 0.02)
        stop = (task.cancel, agent.interrupt, threading.Thread(target=agent.interrupt).start)[number % 3]
        stop()
        await asyncio.wait([task], timeout=10)

        assert check_transcript(agent.messages) == []
        assert [one.message for one in store.messages(agent.session_id)] == agent.messages


def test_waiting_for_oneself_is_refused(make_agent: MakeAgent, runtime: Runtime) -> None:
    """run_sync inside of what run_sync waits for says so, instead of standing still for ever."""
    agent, inner = make_agent("outer"), None
    inner = make_agent("inner", host=agent.host)
    problems: list[Exception] = []

    def ask_again(**_: Any) -> None:
        try:
            inner.run_sync("inner")
        except UsageError as error:
            problems.append(error)

    runtime.hooks.register("pre_llm_call", ask_again)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(agent.run_sync("go").answer), daemon=True)
    thread.start()
    thread.join(10)

    assert answers == ["outer"]
    assert "await agent.run" in str(problems[0])


async def test_closing_the_workshop_waits_for_the_agents_at_work(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool, tmp_path: Path
) -> None:
    """What was asked for has its result on disk before the store is closed."""
    running = asyncio.Event()

    async def forever(args: Any, **_: Any) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)

    add_tool(runtime, "wait", forever, is_async=True)
    agent = make_agent(calls("wait"), store=SessionStore(tmp_path / "sessions.db"))
    task = asyncio.ensure_future(agent.run("go"))
    await asyncio.wait_for(running.wait(), 10)

    await agent.host.close()

    assert task.done()
    assert task.result().outcome == "interrupted"
    left = [one.message for one in SessionStore(tmp_path / "sessions.db").messages(agent.session_id)]
    assert (len(left), check_transcript(left)) == (3, [])
