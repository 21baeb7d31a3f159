"""Events of a streamed answer, wherever the bytes are cut and whatever comes between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.messages import user_message
from toolcrib.core.models import ModelError, ModelProfile, ModelRequest
from toolcrib.providers.anthropic import AnthropicMessages
from toolcrib.providers.openai import OpenAIChat
from toolcrib.providers.streaming import EventReader, ServerEvent, read_events
from toolcrib.testing.model_server import RawResponse, ScriptedModelServer, Stream

Serve = Callable[..., ScriptedModelServer]
Chat = Callable[..., OpenAIChat]

LIMIT_SECONDS = 20
SAID = "héllo 日本 🙂"


def read(*pieces: bytes) -> tuple[list[ServerEvent], str]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)] + list(reader.end())
    return events, reader.stray


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(body) + 1) for place in places})
    return [body[start:end] for start, end in zip([0, *ends], [*ends, len(body)], strict=True)]


@given(
    data=st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1), max_size=4),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    places=st.lists(st.integers(0, 500), max_size=8),
)
def test_events_are_the_same_however_the_body_is_cut(data: list[str], line_end: str, places: list[int]) -> None:
    """Pieces end in the middle of lines, of line ends and of characters."""
    body = "".join(f"event: e{line_end}data: {one}{line_end}{line_end}" for one in data).encode()

    events, _ = read(*cut(body, places))

    assert events == [ServerEvent("e", one) for one in data if one.strip()]


@pytest.mark.parametrize(
    "noise",
    [b": ping\n\n", b"event: ping\n\n", b"id: 7\n\n", b"retry: 3000\n\n", b"data:\n\n", b"data: \n\n", b"\xef\xbb\xbf"],
    ids=["comment", "name alone", "id", "retry", "no data", "blank data", "byte order mark"],
)
def test_what_is_no_event_is_passed_over(noise: bytes) -> None:
    """By the specification, an event without data is not an event; a byte order mark belongs to no line."""
    assert read(noise + b"data: x\n\n") == ([ServerEvent("", "x")], "")


def test_the_last_event_counts_without_a_blank_line_after_it() -> None:
    """The last event counts even if the server closes right after it."""
    assert read(b"data: a\n\ndata: b\ndata: c") == ([ServerEvent("", "a"), ServerEvent("", "b\nc")], "")


def test_a_body_that_is_no_stream_is_kept() -> None:
    """Text outside any event can be read as one answer."""
    assert read(b'{\n "choices": []\n}') == ([], '{\n "choices": []\n}')


async def test_what_comes_after_the_answer_is_waited_for_within_a_limit() -> None:
    """A server that leaves the connection open after its last event does not block the caller."""
    closed = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: last\n\n"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with asyncio.timeout(LIMIT_SECONDS):
        with pytest.raises(TimeoutError):
            await read_events(pieces(), lambda event: 0.01)

    assert closed.is_set()


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}, ensure_ascii=False).encode() + b"\n\n"


ANSWER = chunk({"content": SAID}) + chunk({}, "stop", usage={"prompt_tokens": 3, "completion_tokens": 4})


@pytest.mark.parametrize(
    "recorded",
    [
        RawResponse(b"event: ping\n\n" + ANSWER + b"data: [DONE]\n\n"),
        RawResponse(b"data: \n\n" + ANSWER),
        RawResponse(b"\xef\xbb\xbf" + ANSWER),
        RawResponse(ANSWER[:-2]),
        RawResponse(ANSWER, "application/json"),
        RawResponse(ANSWER, "text/plain"),
    ],
    ids=["ping", "blank data", "byte order mark", "no blank line", "called json", "called text"],
)
async def test_chat_completions_survive_what_servers_put_around_them(
    serve: Serve, chat: Chat, recorded: RawResponse
) -> None:
    """The text and the usage are there, whatever surrounds the chunks."""
    server = serve(recorded)

    response = await chat(server.base_url).complete(asking(), lambda _: None)

    assert response.message.text == SAID
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 4)


def asking() -> ModelRequest:
    return ModelRequest(model="m", messages=[user_message("Hi")])


@pytest.mark.parametrize(
    ("recorded", "kind", "words"),
    [
        (RawResponse(b'data: {"object": "error", "message": "maximum context length is 9 tokens", "code": 400}\n\n'),
         "too_long", "9 tokens"),
        (RawResponse(b'event: error\ndata: {"message": "the engine died", "code": 500}\n\n'), "server", "engine died"),
        (RawResponse(b"event: error\ndata: upstream is gone\n\n"), "server", "upstream is gone"),
        (RawResponse(b'{"error": {"message": "Rate limit reached", "code": 429}}', "text/event-stream"),
         "rate_limit", "Rate limit"),
        (RawResponse(b'{"error": {"message": "Incorrect API key provided: sk-0123456789abcdefghij"}}',
                  "application/json"), "key", "[secret]"),
    ],
)  # fmt: skip
async def test_an_error_in_place_of_an_answer_keeps_its_words(
    serve: Serve, chat: Chat, recorded: RawResponse, kind: str, words: str
) -> None:
    """An error with status 200 is recognised, and its text reaches the person without secrets."""
    server = serve(recorded)

    with pytest.raises(ModelError) as caught:
        await chat(server.base_url).complete(asking(), lambda _: None)

    assert caught.value.kind == kind
    assert words in str(caught.value)
    assert "sk-0123" not in str(caught.value)


@pytest.mark.parametrize(
    ("stream", "is_answer"),
    [
        (Stream("One.", drop_after=1), False),
        (Stream("One.", drop_after=2), False),
        (Stream("One.", drop_after=3), True),
        (Stream("One.", drop_after=4), True),
        (Stream("One.", stall_after=5), True),
    ],
)
async def test_a_connection_that_breaks_after_the_end_costs_nothing(
    serve: Serve, chat: Chat, stream: Stream, is_answer: bool
) -> None:
    """Once the server has marked the end of its answer, nothing on the connection changes it."""
    server = serve(stream)
    provider = chat(server.base_url)

    async with asyncio.timeout(LIMIT_SECONDS):
        if is_answer:
            assert (await provider.complete(asking(), lambda _: None)).message.text == "One."
        else:
            with pytest.raises(ModelError) as caught:
                await provider.complete(asking(), lambda _: None)
            assert (caught.value.kind, caught.value.may_retry) == ("network", True)


async def test_messages_without_event_names_and_with_arguments_twice_are_understood(serve: Serve) -> None:
    """Servers that imitate Anthropic's protocol leave out event names and reasons, and send arguments both ways."""
    events = [
        {"type": "message_start", "message": {"model": "m1", "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0,
         "content_block": {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"at":1}'}},
        {"type": "content_block_start", "index": 1,
         "content_block": {"type": "tool_use", "id": "t2", "name": "look", "input": {"at": 2}}},
        {"type": "message_stop"},
    ]  # fmt: skip
    server = serve(RawResponse(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)))
    provider = AnthropicMessages(base_url=server.origin, api_key="", profile=lambda _: ModelProfile())

    response = await provider.complete(asking(), lambda _: None)
    await provider.close()

    assert [call.arguments for call in response.message.tool_calls] == ['{"at":1}', '{"at": 2}']
    assert response.stop == "tool_calls"


@pytest.mark.parametrize(
    ("recorded", "kind"),
    [
        (RawResponse(b"<html>Welcome</html>", "text/html"), "bad_request"),
        (RawResponse(b'{"error": {"message": "The model `m` does not exist"}}', "application/json"), "unknown_model"),
    ],
)
async def test_a_server_without_messages_is_told(serve: Serve, recorded: RawResponse, kind: str) -> None:
    """A web page, or another protocol's error, at the address of an Anthropic server gives one sentence."""
    server = serve(recorded)
    provider = AnthropicMessages(base_url=server.origin, api_key="", profile=lambda _: ModelProfile())

    with pytest.raises(ModelError) as caught:
        await provider.complete(asking(), lambda _: None)
    await provider.close()

    assert (caught.value.kind, caught.value.may_retry) == (kind, False)
