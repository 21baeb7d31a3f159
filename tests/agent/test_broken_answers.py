"""Answers that break off, from real servers: they are retried, and what cannot be completed is told as incomplete."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import pytest

from tests.agent.conftest import MakeAgent
from toolcrib.agent.events import AnyEvent, Notified, RunResult, TextStreamed
from toolcrib.core.models import ModelProfile, ModelResponse, Provider
from toolcrib.providers.anthropic import AnthropicMessages
from toolcrib.providers.openai import OpenAIChat
from toolcrib.providers.retrying import RetryingProvider
from toolcrib.providers.scripted import call, says
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore
from toolcrib.testing.model_server import (
    RawResponse,
    ScriptedModelServer,
    ServerStep,
    Stream,
    anthropic_events,
    anthropic_whole,
    openai_events,
    openai_whole,
)

Serve = Callable[..., ScriptedModelServer]
OpenModel = Callable[..., Provider]
MARK = "[incomplete: the answer broke off here]"
TEXT = says("One two three four.")
CALL = says("I look.", call("note", {"text": "once"}, id="c1"))
EVENTS = {"openai": openai_events, "anthropic": anthropic_events}
WHOLE = {"openai": openai_whole, "anthropic": anthropic_whole}
# What tells that an answer has ended, for each protocol: the reason, and the end mark.
ENDS = {
    "openai": (b'"finish_reason": "', b"data: [DONE]"),
    "anthropic": (b'"stop_reason": "', b'"type": "message_stop"'),
}


async def no_sleep(_: float) -> None:
    """Retries need not wait here."""


@pytest.fixture
async def open_model() -> AsyncIterator[OpenModel]:
    """Opens a model of a server, with retries."""
    opened: list[Provider] = []

    def opens(protocol: str, server: ScriptedModelServer, max_retries: int = 2) -> Provider:
        options: dict[str, Any] = {"name": "attic", "api_key": "k", "profile": lambda _: ModelProfile()}
        inner: Provider = (
            OpenAIChat(base_url=server.base_url, **options)
            if protocol == "openai"
            else AnthropicMessages(base_url=server.origin, **options)
        )
        opened.append(inner)
        return RetryingProvider(inner, max_retries=max_retries, sleep=no_sleep)

    yield opens
    for provider in opened:
        await provider.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as opened:
        yield lambda *steps, **options: opened.enter_context(ScriptedModelServer(steps, **options))


@pytest.fixture
def notes(runtime: Runtime) -> list[str]:
    """What the tool `note` was given."""
    taken: list[str] = []

    def note(args: dict[str, Any], **_: Any) -> str:
        taken.append(args.get("text", ""))
        return json.dumps({"noted": len(taken)})

    schema = {"description": "x", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
    runtime.registry.register(name="note", toolset="test", schema=schema, handler=note)
    return taken


def cuts(protocol: str, response: ModelResponse) -> list[bytes]:
    """The stream, cut after every event and in the middle of every event, as far as it has no end."""
    events = list(EVENTS[protocol](response, 1))
    whole = b"".join(events)
    ends = list(accumulate(map(len, events)))
    middles = [end - len(event) // 2 for end, event in zip(ends, events, strict=True)]
    parts = [whole[:at] for at in sorted({*ends, *middles, 0})]
    return [part for part in parts if not any(end in part for end in ENDS[protocol])]


def without_line(body: bytes, mark: bytes) -> bytes:
    return b"\n\n".join(event for event in body.split(b"\n\n") if mark not in event)


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("response", [TEXT, CALL], ids=["text", "call"])
@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_a_stream_that_ends_anywhere_before_its_end_is_retried(
    make_agent: MakeAgent, serve: Serve, open_model: OpenModel, notes: list[str], protocol: str, response: ModelResponse
) -> None:
    """Wherever the stream stops, even in order, nothing of it counts: the next attempt gives the answer, once."""
    parts = cuts(protocol, response)
    assert len(parts) > 6
    for part in parts:
        notes.clear()
        whole: ServerStep = response
        server = serve(RawResponse(part), whole, "Done.")
        agent = make_agent(model=open_model(protocol, server))

        result = await agent.run("Go.")

        assert result.outcome == "answered", (part, result.problem)
        assert not result.is_incomplete
        assert result.answer == ("Done." if response.message.tool_calls else response.message.text)
        assert notes == (["once"] if response.message.tool_calls else [])
        await agent.close()


@pytest.mark.parametrize("cut", [{"end_after": 4}, {"drop_after": 4}], ids=["ended", "dropped"])
@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_an_answer_that_always_breaks_off_is_kept_and_called_incomplete(
    make_agent: MakeAgent, serve: Serve, open_model: OpenModel, store: SessionStore, protocol: str, cut: dict[str, int]
) -> None:
    """The result fails and says so; the text so far is in the result, on the screen and in the session, marked."""
    server = serve(otherwise=Stream(TEXT, **cut))
    agent = make_agent(model=open_model(protocol, server))
    events: list[AnyEvent] = []

    result = await agent.run("Go.", on_event=events.append)

    assert len(server.requests) == 3
    assert (result.outcome, result.exit_code, result.is_incomplete) == ("failed", 1, True)
    assert result.answer.startswith("One two")
    assert result.answer.endswith(MARK)
    assert "the answer is incomplete" in result.problem
    assert "attic" in result.problem
    assert streamed_at_the_end(events) == result.answer
    assert [one.kind for one in events if isinstance(one, Notified)] == ["restart", "retry"] * 2
    assert store.messages(agent.session_id)[-1].message.text == result.answer
    await agent.close()


def streamed_at_the_end(events: list[AnyEvent]) -> str:
    """What a front end shows that discards the partial answer when it is told to."""
    text = ""
    for event in events:
        if isinstance(event, Notified) and event.kind == "restart":
            text = ""
        elif isinstance(event, TextStreamed):
            text += event.text
    return text


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_a_call_that_always_breaks_off_never_runs(
    make_agent: MakeAgent, serve: Serve, open_model: OpenModel, notes: list[str], protocol: str
) -> None:
    """Even if its arguments happen to be complete: more may have followed."""
    for part in cuts(protocol, CALL):
        server = serve(otherwise=RawResponse(part))
        agent = make_agent(model=open_model(protocol, server))

        result = await agent.run("Go.")

        assert result.outcome == "failed"
        assert result.is_incomplete is bool(result.answer)
        assert notes == []
        assert not any(message.tool_calls for message in agent.messages)
        await agent.close()


async def test_the_text_survives_a_server_that_goes_away(
    make_agent: MakeAgent, serve: Serve, open_model: OpenModel
) -> None:
    """If no later attempt brings anything, the text of an earlier one is kept, though it was discarded before."""
    server = serve(Stream(TEXT, end_after=3), otherwise=Stream(TEXT, drop_after=0))
    agent = make_agent(model=open_model("openai", server))
    events: list[AnyEvent] = []

    result = await agent.run("Go.", on_event=events.append)

    assert result.is_incomplete
    assert result.answer == f"One two \n\n{MARK}"
    assert streamed_at_the_end(events) == result.answer
    await agent.close()


async def test_the_conversation_goes_on_after_an_incomplete_answer(
    make_agent: MakeAgent, serve: Serve, open_model: OpenModel
) -> None:
    """The model reads what it said, and that it broke off."""
    server = serve(Stream(TEXT, end_after=3), "The rest.")
    agent = make_agent(model=open_model("openai", server, max_retries=0))

    first: RunResult = await agent.run("Go.")
    second = await agent.run("Continue.")

    assert first.is_incomplete
    assert second.answer == "The rest."
    told = [message["content"] for message in server.requests[-1].body["messages"] if message["role"] == "assistant"]
    assert told == [f"One two \n\n{MARK}"]
    await agent.close()


@pytest.mark.parametrize("response", [TEXT, CALL], ids=["text", "call"])
@pytest.mark.parametrize("left_out", [0, 1], ids=["no reason", "no end mark"])
@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_a_server_that_tells_the_end_in_one_way_is_fine(
    make_agent: MakeAgent,
    serve: Serve,
    open_model: OpenModel,
    notes: list[str],
    protocol: str,
    left_out: int,
    response: ModelResponse,
) -> None:
    """Some never give a finish reason, some never send the end mark; either is enough."""
    body = without_line(b"".join(EVENTS[protocol](response, 1)), ENDS[protocol][left_out])
    server = serve(RawResponse(body), "Done.")
    agent = make_agent(model=open_model(protocol, server))

    result = await agent.run("Go.")

    assert (result.outcome, result.is_incomplete) == ("answered", False)
    assert len(server.requests) == 1 + len(response.message.tool_calls)
    assert notes == (["once"] if response.message.tool_calls else [])
    await agent.close()


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_an_answer_without_streaming_counts_if_its_body_is_whole(
    make_agent: MakeAgent, serve: Serve, open_model: OpenModel, notes: list[str], protocol: str
) -> None:
    """A truncated body is retried; a whole one needs no finish reason."""
    body = WHOLE[protocol](CALL, 1)
    for holder in (body, *body.get("choices", ())):
        holder |= {name: None for name in ("finish_reason", "stop_reason") if name in holder}
    text = json.dumps(body).encode()
    parts = [RawResponse(text[:size], "application/json") for size in (1, len(text) // 2, len(text) - 1)]
    for part in parts:
        notes.clear()
        server = serve(part, RawResponse(text, "application/json"), "Done.")
        agent = make_agent(model=open_model(protocol, server))

        result = await agent.run("Go.")

        assert (result.outcome, result.answer) == ("answered", "Done.")
        assert notes == ["once"]
        await agent.close()


@pytest.mark.parametrize("arguments", ["", '{"text": "on'])
@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_a_call_cut_by_the_output_limit_never_runs(
    make_agent: MakeAgent, serve: Serve, open_model: OpenModel, notes: list[str], protocol: str, arguments: str
) -> None:
    """Also if the limit came before its first argument, and the tool needs none: the model is told to call again."""
    cut = ModelResponse(message=says("", call("note", arguments, id="c1")).message, stop="length")
    server = serve(cut, "Done.")
    agent = make_agent(model=open_model(protocol, server))

    result = await agent.run("Go.")

    assert result.answer == "Done."
    assert notes == []
    await agent.close()


async def test_an_answer_cut_by_the_output_limit_is_called_incomplete(
    make_agent: MakeAgent, serve: Serve, open_model: OpenModel
) -> None:
    """It is an answer, but the result and a notice say that something is missing."""
    server = serve(ModelResponse(message=TEXT.message, stop="length"))
    agent = make_agent(model=open_model("openai", server))
    events: list[AnyEvent] = []

    result = await agent.run("Go.", on_event=events.append)

    assert (result.outcome, result.is_incomplete) == ("answered", True)
    [notice] = [one for one in events if isinstance(one, Notified)]
    assert "output limit" in notice.message
    await agent.close()
