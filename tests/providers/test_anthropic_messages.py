"""The Anthropic provider through the real SDK, against a loopback server that plays recorded streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from toolcrib.core.messages import Message, user_message
from toolcrib.core.models import (
    CallDelta,
    Delta,
    ModelError,
    ModelProfile,
    ModelRequest,
    Notice,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolcrib.providers.anthropic import AnthropicMessages
from toolcrib.providers.retrying import RetryingProvider, ToolRejectionFilter
from toolcrib.testing.model_server import ErrorResponse, ScriptedModelServer

MODEL = "claude-sonnet-5-5"
LIMIT_SECONDS = 20
Respond = Callable[[asyncio.StreamWriter], Any]


class ReplayServer:
    """A server that answers each request with the next response, and records the requests."""

    def __init__(self, responses: Sequence[bytes | Respond]) -> None:
        self._responses = list(responses)
        self.bodies: list[Any] = []
        self.heads: list[str] = []
        self.gone = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            self.heads.append(head)
            self.bodies.append(json.loads(await reader.readexactly(length)))
            response = self._responses.pop(0)
            if callable(response):
                await response(writer)
                await reader.read()
                self.gone.set()
            else:
                writer.write(response)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def playing(*responses: bytes | Respond) -> AsyncIterator[tuple[AnthropicMessages, ReplayServer]]:
    played = ReplayServer(responses)
    server = await asyncio.start_server(played.serve, "127.0.0.1", 0)
    played.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    provider = AnthropicMessages(
        base_url=f"{played.url}/v1", api_key="sk-test", profile=lambda model: ModelProfile(), key_variable="MY_KEY"
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            yield provider, played
    finally:
        await provider.close()
        server.close()
        await server.wait_closed()


def http(status: str, content_type: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def sse(*events: dict[str, Any]) -> bytes:
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return http("200 OK", "text/event-stream; charset=utf-8", text.encode())


def start(**usage: int) -> dict[str, Any]:
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5-20260901", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 25, "output_tokens": 1, **usage},
    }  # fmt: skip
    return {"type": "message_start", "message": message}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_block(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def call_block(index: int, id: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
    return block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, *deltas)


def end(reason: str, output_tokens: int = 15, **more: Any) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None, **more}
    usage = {"output_tokens": output_tokens}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


PING = {"type": "ping"}


def asking(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(**{"model": MODEL, "messages": messages or (user_message("Hi"),), **fields})


async def test_a_text_is_streamed_piece_by_piece() -> None:
    """Pieces are emitted as they arrive, pings are ignored, and the response is the sum of the pieces."""
    pieces: list[Delta] = []
    async with playing(sse(start(), PING, *text_block(0, "Hel", "lo"), PING, *end("end_turn"))) as (provider, played):
        response = await provider.complete(asking(), pieces.append)

    assert pieces == [TextDelta("Hel"), TextDelta("lo")]
    assert response.message == Message(role="assistant", content="Hello")
    assert (response.stop, response.model, response.provider) == ("end", "claude-sonnet-5-5-20260901", "anthropic")
    assert response.usage == Usage(input_tokens=25, output_tokens=15)
    assert played.heads[0].startswith("POST /v1/messages ")
    assert "anthropic-version:" in played.heads[0].lower()
    assert "sk-test" in played.heads[0]
    assert played.bodies[0]["stream"] is True


async def test_parallel_calls_are_put_together() -> None:
    """Pieces of JSON belong to the call of their block; a call without input has an empty object."""
    pieces: list[Delta] = []
    stream = sse(
        start(),
        *text_block(0, "I look."),
        *call_block(1, "toolu_1", "weather", "", '{"loc', 'ation": "Paris"}'),
        *call_block(2, "toolu_2", "time"),
        *end("tool_use"),
    )
    async with playing(stream) as (provider, _):
        response = await provider.complete(asking(), pieces.append)

    assert [(call.id, call.name, call.arguments) for call in response.message.tool_calls] == [
        ("toolu_1", "weather", '{"location": "Paris"}'),
        ("toolu_2", "time", "{}"),
    ]
    assert response.stop == "tool_calls"
    assert response.message.provider_data is None
    assert pieces[1:] == [
        CallDelta(index=0, id="toolu_1", name="weather"),
        CallDelta(index=0, arguments='{"loc'),
        CallDelta(index=0, arguments='ation": "Paris"}'),
        CallDelta(index=1, id="toolu_2", name="time"),
    ]


THOUGHTFUL = [
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see."},
        {"type": "signature_delta", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"},
    ),
    *block(1, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"}),
    *text_block(2, "First."),
    *block(
        3, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "signature_delta", "signature": "second"}
    ),
    *text_block(4, "Then."),
    *call_block(5, "toolu_1", "weather", '{"location": "Paris"}'),
]


async def test_thoughts_come_back_signed_and_in_their_places() -> None:
    """Thinking is kept apart from the text, and the next request contains every block as received."""
    pieces: list[Delta] = []
    first = sse(start(), *THOUGHTFUL, *end("tool_use"))
    async with playing(first, sse(start(), *text_block(0, "Sunny."), *end("end_turn"))) as (provider, played):
        response = await provider.complete(asking(), pieces.append)
        # As the session store would keep and read it.
        kept = msgspec.json.decode(msgspec.json.encode(response.message), type=Message)
        result = Message(role="tool", call_id="toolu_1", name="weather", content="20 degrees")
        await provider.complete(asking(user_message("Hi"), kept, result), pieces.append)

    assert response.message.reasoning == "Let me see."
    assert response.message.content == "First.\n\nThen."
    assert [piece.text for piece in pieces if isinstance(piece, ReasoningDelta)] == ["Let me ", "see."]
    assert played.bodies[1]["messages"][1] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Let me see.", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"},
            {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"},
            {"type": "text", "text": "First."},
            {"type": "thinking", "thinking": "", "signature": "second"},
            {"type": "text", "text": "Then."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"location": "Paris"}},
        ],
    }


async def test_usage_counts_the_whole_prompt() -> None:
    """Tokens read from or written to the cache are input too; thinking is part of the output."""
    finish = end("end_turn", 40)
    finish[0]["usage"] |= {"output_tokens_details": {"thinking_tokens": 30}, "cache_read_input_tokens": None}
    opening = start(cache_read_input_tokens=1000, cache_creation_input_tokens=200)
    async with playing(sse(opening, *text_block(0, "Hi"), *finish)) as (provider, _):
        response = await provider.complete(asking(), lambda _: None)

    assert response.usage == Usage(
        input_tokens=1225, output_tokens=40, cached_tokens=1000, cache_write_tokens=200, reasoning_tokens=30
    )


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("pause_turn", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
        ("something_new", "end"),
    ],
)
async def test_stop_reasons(reason: str, stop: str) -> None:
    """Each stop reason of the API maps to one of ours; an unknown one counts as an end."""
    async with playing(sse(start(), *text_block(0, "Hi"), *end(reason))) as (provider, _):
        response = await provider.complete(asking(), lambda _: None)

    assert response.stop == stop


async def test_a_refusal_without_words_says_why() -> None:
    """The explanation replaces the answer."""
    details = {"type": "refusal", "category": "cyber", "explanation": "This could do harm."}
    async with playing(sse(start(), *end("refusal", stop_details=details))) as (provider, _):
        response = await provider.complete(asking(), lambda _: None)

    assert (response.stop, response.message.text) == ("refused", "This could do harm.")


async def test_an_error_within_the_stream_may_be_retried() -> None:
    """An overload after the first words is a server failure, not a short answer."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with playing(sse(start(), *text_block(0, "Hel"), error)) as (provider, _):
        with pytest.raises(ModelError) as caught:
            await provider.complete(asking(), lambda _: None)

    assert (caught.value.kind, caught.value.may_retry) == ("server", True)
    assert "Overloaded" in str(caught.value)


async def test_a_stream_that_breaks_off_is_no_answer() -> None:
    """Without a stop reason nothing is complete."""
    async with playing(sse(start(), *text_block(0, "Hel"))) as (provider, _):
        with pytest.raises(ModelError) as caught:
            await provider.complete(asking(), lambda _: None)

    assert (caught.value.kind, caught.value.may_retry) == ("server", True)


async def test_a_refused_request_is_told_with_its_tool() -> None:
    """Status, text and the position of the tool come through the SDK."""
    problem = {"type": "invalid_request_error", "message": "tools.1.custom.input_schema: JSON schema is invalid"}
    body = json.dumps({"type": "error", "error": problem}).encode()
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("alpha", "beta")]
    async with playing(http("400 Bad Request", "application/json", body)) as (provider, _):
        with pytest.raises(ModelError) as caught:
            await provider.complete(asking(tools=tools), lambda _: None)

    assert (caught.value.kind, caught.value.refused_tools, caught.value.status) == ("refused_tool", ("beta",), 400)


async def test_a_wrong_key_names_its_variable_and_nothing_is_retried_here() -> None:
    """The SDK's own retries are off: one request, one sentence."""
    body = json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}).encode()
    denied = json.dumps({"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}})
    async with playing(
        http("429 Too Many Requests", "application/json", body, "retry-after: 3"),
        http("401 Unauthorized", "application/json", denied.encode()),
    ) as (provider, played):
        with pytest.raises(ModelError) as limited:
            await provider.complete(asking(), lambda _: None)
        with pytest.raises(ModelError) as refused:
            await provider.complete(asking(), lambda _: None)

    assert (limited.value.kind, limited.value.retry_after_seconds) == ("rate_limit", 3.0)
    assert refused.value.kind == "key"
    assert "MY_KEY" in str(refused.value)
    assert len(played.bodies) == 2


async def test_an_answer_in_one_piece_is_taken_too() -> None:
    """Some servers do not stream even if asked to."""
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
    ]
    message = {"type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": "tool_use",
               "usage": {"input_tokens": 3, "output_tokens": 4}}  # fmt: skip
    async with playing(http("200 OK", "application/json", json.dumps(message).encode())) as (provider, _):
        response = await provider.complete(asking(), lambda _: None)

    assert response.message.text == "Hi"
    assert response.message.reasoning == "hm"
    assert response.message.tool_calls[0].arguments == '{"a": 1}'
    assert response.usage.output_tokens == 4


async def test_a_call_id_that_was_there_before_gets_another() -> None:
    """Results refer to calls by id, so no two calls of a conversation share one."""
    stream = sse(start(), *call_block(0, "call_0", "f"), *end("tool_use"))
    async with playing(stream, stream) as (provider, _):
        first = await provider.complete(asking(), lambda _: None)
        done = Message(role="tool", call_id="call_0", content="x")
        second = await provider.complete(asking(user_message("a"), first.message, done), lambda _: None)

    assert second.message.tool_calls[0].id != "call_0"


async def test_cancelling_closes_the_connection_at_once() -> None:
    """Cancelling stops the model: the server sees the connection end while it is still writing."""
    begun = asyncio.Event()

    async def forever(writer: asyncio.StreamWriter) -> None:
        writer.write(sse(start(), *text_block(0, "Hel")))
        await writer.drain()

    async with playing(forever) as (provider, played):
        task = asyncio.create_task(provider.complete(asking(), lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await played.gone.wait()


async def test_a_request_that_takes_too_long_is_given_up() -> None:
    """The timeout applies to the whole answer, however slowly it arrives."""

    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(sse(start()))
        await writer.drain()

    async with playing(silent) as (provider, played):
        with pytest.raises(ModelError) as caught:
            await provider.complete(asking(timeout_seconds=0.2), lambda _: None)
        await played.gone.wait()

    assert (caught.value.kind, caught.value.may_retry) == ("timeout", True)


async def test_a_server_that_is_not_there_is_asked_about() -> None:
    """A refused connection to this machine is reported at once."""
    async with playing() as (_, played):
        url = played.url
    provider = AnthropicMessages(base_url=url, api_key="", profile=lambda model: ModelProfile())

    with pytest.raises(ModelError) as caught:
        await provider.complete(asking(), lambda _: None)
    await provider.close()

    assert (caught.value.kind, caught.value.may_retry) == ("network", False)
    assert "is the server running?" in str(caught.value)


async def test_a_schema_for_the_answer_is_brought_into_the_api_s_form() -> None:
    """Objects are closed, as structured output demands."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}
    async with playing(sse(start(), *text_block(0, '{"a": 3}'), *end("end_turn"))) as (provider, played):
        await provider.complete(asking(response_schema=schema), lambda _: None)

    sent = played.bodies[0]["output_config"]["format"]
    assert sent["type"] == "json_schema"
    assert sent["schema"]["additionalProperties"] is False
    assert "minimum" not in sent["schema"]["properties"]["a"]


async def test_a_request_gets_through_an_overload_and_a_refused_tool(
    serve: Callable[..., ScriptedModelServer],
) -> None:
    """Around the real SDK: one retry, one tool left out, and the answer with the other tools."""
    waits, seen = list[float](), list[Delta]()

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    server = serve(
        ErrorResponse(529, "Overloaded", "overloaded_error", retry_after=2),
        ErrorResponse(400, "tools.0.custom.input_schema: JSON schema is invalid", "invalid_request_error"),
        "Hello.",
    )
    inner = AnthropicMessages(base_url=server.origin, api_key="k", profile=lambda model: ModelProfile())
    provider = ToolRejectionFilter(RetryingProvider(inner, max_retries=3, sleep=wait))
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("alpha", "beta")]

    response = await provider.complete(asking(tools=tools), seen.append)
    await provider.close()

    assert response.message.text == "Hello."
    assert waits == [2.0]
    assert [one.kind for one in seen if isinstance(one, Notice)] == ["retry", "tool_set_aside"]
    assert [[tool["name"] for tool in request.body["tools"]] for request in server.requests] == [
        ["alpha", "beta"],
        ["alpha", "beta"],
        ["beta"],
    ]


def test_the_sdk_is_imported_on_first_use_and_missed_with_a_sentence() -> None:
    """Creating a provider imports nothing heavy; if the package is missing, the error says what to install."""
    program = """
import asyncio, sys
from toolcrib.core.messages import user_message
from toolcrib.core.models import ModelError, ModelProfile, ModelRequest
from toolcrib.providers.anthropic import AnthropicMessages
provider = AnthropicMessages(api_key="k", profile=lambda model: ModelProfile())
assert "anthropic" not in sys.modules and "httpx2" not in sys.modules
sys.modules["anthropic"] = None
try:
    asyncio.run(provider.complete(ModelRequest(model="m", messages=(user_message("x"),)), print))
except ModelError as error:
    print(error.kind, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.startswith("missing_package "), done.stderr
    assert "pip install 'toolcrib[anthropic]'" in done.stdout
