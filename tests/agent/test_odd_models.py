"""Models and providers that do what they should not, and stores that cannot be written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.agent.events import CallProgressed, RunEnded
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import SessionError, UsageError
from toolcrib.providers.scripted import ScriptedProvider, call, calls, says
from toolcrib.runtime import Runtime
from toolcrib.sessions.recovery import check_transcript
from toolcrib.sessions.store import SessionStore

AddTool = Callable[..., None]
MakeAgent = Callable[..., Any]


def stored(agent: Any) -> list[Any]:
    return [one.message for one in agent.host.store.messages(agent.session_id)]


async def test_calls_in_the_last_word_have_results_too(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool
) -> None:
    """A model that calls tools when none is offered any more leaves no call without a result."""
    ran: list[int] = []
    add_tool(runtime, "count", lambda args, **_: ran.append(args["n"]) or str(args["n"]))
    numbers = iter(range(100))
    provider = ScriptedProvider(otherwise=lambda _: says("On it.", call("count", {"n": next(numbers)})))
    agent = make_agent(model=provider, max_turns=2)

    result = await agent.run("go")

    assert (result.outcome, result.answer, ran) == ("budget", "On it.", [0, 1])
    assert check_transcript(agent.messages) == []
    assert stored(agent) == agent.messages


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("boom"), asyncio.CancelledError("boom")])
async def test_whatever_a_provider_raises_ends_the_run_in_words(make_agent: MakeAgent, error: BaseException) -> None:
    """A provider with a bug costs one answer: the run fails with a sentence, and the next one works."""
    agent = make_agent(error, "fine")
    events: list[Any] = []

    result = await agent.run("go", on_event=events.append)

    assert result.outcome == "failed"
    assert "provider 'scripted' failed" in result.problem
    assert isinstance(events[-1], RunEnded)
    assert (await agent.run("again")).answer == "fine"


async def test_a_provider_that_gives_no_response_is_named(make_agent: MakeAgent) -> None:
    """Something else than a response is a failure in words, not a crash."""

    class Silent(ScriptedProvider):
        async def complete(self, request: Any, emit: Any) -> Any:
            return None

    assert "instead of a response" in (await make_agent(model=Silent()).run("go")).problem


async def test_calls_of_every_odd_kind_have_one_result_each(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool
) -> None:
    """Names and ids that are empty, long, doubled or no characters, and arguments that are no JSON."""
    add_tool(runtime, "echo", lambda args, **_: "x")
    odd = [
        call("", {}), call("näm€ \n\x00", {}), call("x" * 5000, {}), call("echo", "{bad"), call("echo", "[1]"),
        call("echo", "["), call("echo", "[" * 100_000), call("echo", '{"text": "\ud800"}'),
        call("echo", {}, id="ü" * 3000), call("echo", {}, id="\ud800"), call("echo", {}, id="\udfff"),
        call("echo", {}, id="a"), call("echo", {}, id="a"),
    ]  # fmt: skip
    agent = make_agent(says("half \ud800 a character", *odd), "done \udfff")

    result = await agent.run("a question with half \udc00 a character")

    assert result.outcome == "answered"
    assert len([message for message in agent.messages if message.role == "tool"]) == len(odd)
    assert check_transcript(agent.messages) == []
    assert stored(agent) == agent.messages


async def test_an_answer_of_blanks_is_no_answer(make_agent: MakeAgent) -> None:
    """White space is as empty as nothing, and does not become part of the conversation."""
    agent = make_agent(says(" \n ", reasoning="hm"), "fine")

    assert (await agent.run("go")).outcome == "failed"
    assert [message.role for message in agent.messages] == ["user"]


async def test_a_loop_without_progress_ends(make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool) -> None:
    """The same call with the same result is warned about, then not run any more, and then the run ends."""
    ran: list[int] = []
    add_tool(runtime, "look", lambda args, **_: ran.append(1) or "nothing new")
    agent = make_agent(model=ScriptedProvider(otherwise=calls("look")), max_turns=50)

    result = await agent.run("go")

    assert (result.outcome, len(ran), result.turns) == ("failed", 5, 8)


async def test_asking_again_after_waiting_is_no_loop(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool
) -> None:
    """Whoever waits between two looks at the same thing may look as often as he likes."""

    async def wait(args: Any, **_: Any) -> str:
        await asyncio.sleep(1.0)
        return "waited"

    add_tool(runtime, "wait", wait, is_async=True, effects=())
    add_tool(runtime, "look", lambda args, **_: "still running", effects=())
    looks = says("", call("look"), call("look"), call("look"))
    agent = make_agent(looks, calls("wait"), looks, "done")

    await agent.run("go")

    assert not any("guardrail" in message.text for message in agent.messages)


async def test_a_store_that_cannot_be_written_fails_the_run_and_is_made_up_for(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool, tmp_path: Path
) -> None:
    """When the disk is full in the middle of a batch the run says so; with room again the session goes on whole."""
    store = SessionStore(tmp_path / "sessions.db")

    def fill_the_disk(args: Any, **_: Any) -> str:
        with store.database.read() as connection:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return "y" * 90_000

    add_tool(runtime, "fill", fill_the_disk)
    agent = make_agent(calls("fill"), "not asked", store=store)

    result = await agent.run("go")
    with store.database.read() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    again = await agent.run("Is there room?")

    assert result.outcome == "failed"
    assert "disk is full" in result.problem
    assert again.outcome == "answered"
    assert check_transcript(agent.messages) == []
    assert stored(agent) == agent.messages


async def test_an_agent_hears_what_another_one_said_in_its_session(make_agent: MakeAgent) -> None:
    """Two agents that take turns in one session see each other's questions and answers."""
    first = make_agent("one", "three")
    await first.run("1")
    second = make_agent("two", session_id=first.session_id, host=first.host)
    await second.run("2")

    await first.run("3")

    assert [message.text for message in first.messages] == ["1", "one", "2", "two", "3", "three"]


async def test_two_agents_do_not_work_on_one_session_at_once(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool
) -> None:
    """Neither by opening the session of an agent at work, nor by asking one that was opened before."""
    problems: list[str] = []
    other: Any = None

    async def intrude(args: Any, **_: Any) -> str:
        for attempt in (lambda: make_agent(session_id=agent.session_id, host=agent.host), None):
            try:
                await other.run("me too") if attempt is None else attempt()
            except (SessionError, UsageError) as error:
                problems.append(str(error))
        return "tried"

    add_tool(runtime, "intrude", intrude, is_async=True)
    agent = make_agent(calls("intrude"), "done")
    other = make_agent(session_id=agent.session_id, host=agent.host)

    await agent.run("go")

    assert len(problems) == 2
    assert all("another agent is working on session" in problem for problem in problems)


async def test_a_conversation_is_not_compressed_under_a_running_batch(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool
) -> None:
    """Positions must not move while results are on their way."""

    async def squeeze(args: Any, **_: Any) -> str:
        with pytest.raises(UsageError, match="is busy"):
            await agent.compress()
        return "refused"

    add_tool(runtime, "squeeze", squeeze, is_async=True)
    agent = make_agent(calls("squeeze"), "done")

    assert (await agent.run("go")).outcome == "answered"


async def test_what_a_tool_in_a_thread_says_is_streamed_while_it_works(
    make_agent: MakeAgent, runtime: Runtime, add_tool: AddTool
) -> None:
    """An event from another thread wakes the loop that reads the events."""
    seen = threading.Event()

    def slow(args: Any, *, ctx: ToolContext, **_: Any) -> str:
        ctx.progress("half way")
        return "seen" if seen.wait(10) else "not seen"

    add_tool(runtime, "slow", slow)
    agent = make_agent(calls("slow"), "done")
    async for event in agent.stream("go"):
        if isinstance(event, CallProgressed):
            seen.set()

    assert agent.messages[2].text == "seen"


@pytest.mark.parametrize("budget", [{"max_turns": 0}, {"max_turns": -1}, {"max_calls": -1}])
def test_a_budget_of_nothing_is_refused(make_agent: MakeAgent, budget: dict[str, int]) -> None:
    """Zero turns is a mistake, never the default."""
    with pytest.raises(UsageError, match="at least one turn"):
        make_agent("never", **budget)


async def test_steering_with_blanks_is_not_heard(make_agent: MakeAgent) -> None:
    """An empty line is no message."""
    agent = make_agent("fine")
    agent.steer("  \n")

    await agent.run("go")

    assert [message.text for message in agent.messages] == ["go", "fine"]
