"""Room in a long conversation: summaries that keep pairs, the task and the latest messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.agent.scripted_requests import requests_of
from toolcrib.agent.compress import fit_messages, foldable
from toolcrib.agent.conversation import estimate_message_tokens
from toolcrib.agent.events import Compressed
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.models import ModelError, ModelProfile, ModelRequest
from toolcrib.providers.scripted import ScriptedProvider, calls
from toolcrib.runtime import Runtime
from toolcrib.sessions.recovery import check_transcript
from toolcrib.sessions.store import SessionStore

MakeAgent = Callable[..., Any]
SMALL_WINDOW = ModelProfile(context_window=4_000)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages = [Message(role="user", content="the task")]
    for turn in range(draw(st.integers(0, 25))):
        if draw(st.booleans()) or messages[-1].role == "assistant":
            messages.append(Message(role="user", content=f"question {turn}"))
        count = draw(st.integers(0, 3))
        ids = [f"c{turn}_{n}" for n in range(count)]
        asked = tuple(RequestedCall(id=id, name="t", arguments="{}") for id in ids)
        messages.append(Message(role="assistant", content="x", tool_calls=asked))
        messages += [Message(role="tool", call_id=id, name="t", content="y" * draw(st.integers(1, 3000))) for id in ids]
    return messages


@given(conversations(), st.integers(1, 30))
def test_folding_never_parts_a_call_from_its_result(messages: list[Message], keep: int) -> None:
    """What is left after folding is a conversation that every provider accepts, with the task and the latest part."""
    folded = set(foldable(messages, keep))

    kept = [message for at, message in enumerate(messages) if at not in folded]
    if folded:
        kept.insert(min(folded), Message(role="user", content="summary"))
    assert kept[0].content == "the task"
    assert kept[-min(keep, len(messages)) :] == messages[-min(keep, len(messages)) :]
    assert check_transcript(kept) == []


@given(conversations(), st.integers(50, 2_000))
def test_what_fits_a_small_model_is_a_whole_conversation(messages: list[Message], budget: int) -> None:
    """Cut down to a budget, a conversation still has a result for each call and holds the newest question."""
    kept = fit_messages(messages, budget)

    newest = [message for message in messages if message.role == "user"][-1]
    assert newest in kept
    assert check_transcript(kept) == []
    assert sum(estimate_message_tokens(message) for message in kept) <= budget + estimate_message_tokens(newest) + 300


def scripted(summaries: list[str], steps: list[Any]) -> ScriptedProvider:
    """A model that also writes the summaries: requests that ask for one are told by their text."""

    def answer(request: ModelRequest) -> Any:
        if "You write a summary" in request.messages[0].text:
            return summaries.pop(0)
        return steps.pop(0)

    return ScriptedProvider(otherwise=answer, profile=SMALL_WINDOW)


async def test_a_conversation_is_compressed_before_the_window_is_full(
    make_agent: MakeAgent, runtime: Runtime, add_tool: Callable[..., None]
) -> None:
    """The older part becomes a summary; the question stays, and the run goes on to its answer."""
    add_tool(runtime, "read", lambda args, **_: f"page {args['n']} " + "words " * 150)
    steps: list[Any] = [calls("read", {"n": n}) for n in range(20)]
    agent = make_agent(model=scripted(["Pages 0 to 8 were read."] * 5, [*steps, "All read."]))
    events: list[Any] = []

    result = await agent.run("Read all twenty pages", on_event=events.append)

    assert result.answer == "All read."
    compressed = [event for event in events if isinstance(event, Compressed)]
    assert compressed
    assert all(event.tokens_after < event.tokens_before for event in compressed)
    assert agent.messages[0].text == "Read all twenty pages"
    assert "Pages 0 to 8 were read." in agent.messages[1].text
    assert check_transcript(agent.messages) == []


async def test_a_request_that_was_too_long_is_sent_again_with_less(
    make_agent: MakeAgent, runtime: Runtime, add_tool: Callable[..., None]
) -> None:
    """Where our estimate was wrong, the provider's refusal makes room, once."""
    add_tool(runtime, "read", lambda args, **_: "words " * 30)
    long = ModelError("too long", kind="too_long")
    steps: list[Any] = [*(calls("read", {"n": n}) for n in range(12)), lambda request: _raise(long), "Done."]
    profile = ModelProfile(context_window=100_000)

    def answer(request: ModelRequest) -> Any:
        if "You write a summary" in request.messages[0].text:
            return "Twelve pages."
        step = steps.pop(0)
        return step(request) if callable(step) else step

    agent = make_agent(model=ScriptedProvider(otherwise=answer, profile=profile))

    result = await agent.run("Read")

    assert result.answer == "Done."
    assert any("Twelve pages." in message.text for message in agent.messages)


def _raise(error: Exception) -> Any:
    raise error


async def test_without_a_summary_the_work_goes_on(
    make_agent: MakeAgent, runtime: Runtime, add_tool: Callable[..., None]
) -> None:
    """A model that cannot summarise costs the wording, not the work: what was asked and called is listed."""
    add_tool(runtime, "read", lambda args, **_: "words " * 150)
    steps: list[Any] = [*(calls("read", {"n": n}) for n in range(20)), "Done."]

    def answer(request: ModelRequest) -> Any:
        if "You write a summary" in request.messages[0].text:
            raise ModelError("overloaded")
        return steps.pop(0)

    agent = make_agent(model=ScriptedProvider(otherwise=answer, profile=SMALL_WINDOW))

    assert (await agent.run("Read all")).answer == "Done."
    assert "read(" in agent.messages[1].text


async def test_compress_by_hand_takes_a_topic_and_puts_the_plan_back(
    make_agent: MakeAgent, runtime: Runtime, add_tool: Callable[..., None], store: SessionStore
) -> None:
    """The topic reaches the one who summarises, and the plan stands behind the summary word for word."""
    steps: list[Any] = [f"answer {n}" for n in range(15)]
    provider = scripted(["Talked about tea."], steps)
    agent = make_agent(model=provider)
    agent.host.todo.store(agent.session_id).write([{"id": "1", "content": "Buy tea", "status": "pending"}])
    for number in range(15):
        await agent.run(f"question {number}")

    event = await agent.compress("the price of tea")

    assert event is not None
    assert "the price of tea" in requests_of(agent)[-1].messages[0].text
    assert "Talked about tea." in agent.messages[1].text
    assert "Buy tea" in agent.messages[1].text
    assert len(store.messages(agent.session_id, states=("live", "folded"))) > len(agent.messages)


async def test_the_task_that_is_worked_on_is_never_folded(
    make_agent: MakeAgent, runtime: Runtime, add_tool: Callable[..., None]
) -> None:
    """What is said while the agent works does not push its task into the summary."""
    add_tool(runtime, "read", lambda args, **_: f"page {args['n']} " + "words " * 100)
    numbers = iter(range(100))

    def answer(request: ModelRequest) -> Any:
        if "You write a summary" in request.messages[0].text:
            return "so far"
        number = next(numbers)
        if number == 3:
            agent.steer("Quickly, please.")
        return calls("read", {"n": number}) if 0 < number < 40 else "done"

    agent = make_agent(model=ScriptedProvider(otherwise=answer, profile=ModelProfile(context_window=6_000)))
    await agent.run("The first question")
    await agent.run("The task")

    texts = [message.text for message in agent.messages]
    assert any("so far" in text for text in texts)
    assert {"The first question", "The task", "Quickly, please."} <= set(texts)
    assert check_transcript(agent.messages) == []
