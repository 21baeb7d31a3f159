"""The provider for chat completions against a real server, through the real SDK."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from toolcrib.core.messages import user_message
from toolcrib.core.models import Delta, ModelError, ModelProfile, ModelRequest, TextDelta, Usage
from toolcrib.providers.openai import OpenAIChat
from toolcrib.providers.scripted import call, says
from toolcrib.testing.model_server import ErrorResponse, RawResponse, ScriptedModelServer, Stream

Serve = Callable[..., ScriptedModelServer]
Chat = Callable[..., OpenAIChat]

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("good", "bad_tool")]


def ask(**more: Any) -> ModelRequest:
    return ModelRequest(model="m", messages=[user_message("Hi")], **more)


async def failure(provider: OpenAIChat, **more: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await provider.complete(ask(**more), lambda _: None)
    return caught.value


async def test_an_answer_is_streamed_and_whole(serve: Serve, chat: Chat) -> None:
    """The pieces arrive in order, and the response contains them all, with the usage."""
    server = serve(says("Hello there.", reasoning="hm", usage=Usage(input_tokens=7, output_tokens=3, cost_usd=0.5)))
    deltas: list[Delta] = []

    response = await chat(server.base_url).complete(ask(), deltas.append)

    assert [d.text for d in deltas if isinstance(d, TextDelta)] == ["Hello ", "there."]
    assert (response.message.text, response.message.reasoning) == ("Hello there.", "hm")
    assert response.usage == Usage(input_tokens=7, output_tokens=3, cost_usd=0.5)
    assert (response.stop, response.provider, response.model) == ("end", "test", "scripted")


async def test_the_key_and_the_headers_reach_the_server(serve: Serve, chat: Chat) -> None:
    """The key is sent as a bearer token, along with the preset's headers."""
    server = serve("Hi.")

    await chat(server.base_url, default_headers={"X-Title": "toolcrib"}).complete(ask(), lambda _: None)

    [seen] = server.requests
    assert seen.headers["authorization"] == "Bearer sk-test"
    assert seen.headers["x-title"] == "toolcrib"
    assert seen.headers["content-type"] == "application/json"
    assert seen.path == "/v1/chat/completions"


async def test_calls_in_parallel(serve: Serve, chat: Chat) -> None:
    """Several calls of one answer arrive with their ids and arguments."""
    server = serve(says("I look.", call("a", {"x": "y" * 40}, id="1"), call("b", {"z": [1, 2]}, id="2")))

    response = await chat(server.base_url).complete(ask(), lambda _: None)

    made = [(one.id, one.name, json.loads(one.arguments)) for one in response.message.tool_calls]
    assert made == [("1", "a", {"x": "y" * 40}), ("2", "b", {"z": [1, 2]})]
    assert response.stop == "tool_calls"


async def test_a_server_that_does_not_stream_is_understood(serve: Serve, chat: Chat) -> None:
    """Some servers answer a streaming request with one JSON object."""
    whole = {"model": "m1", "choices": [{"message": {"role": "assistant", "content": "All."}, "finish_reason": "stop"}]}
    server = serve(RawResponse(json.dumps(whole).encode(), "application/json"))

    response = await chat(server.base_url).complete(ask(), lambda _: None)

    assert (response.message.text, response.model) == ("All.", "m1")


@pytest.mark.parametrize(
    ("step", "kind", "may_retry"),
    [
        (ErrorResponse(401, "Incorrect API key provided"), "key", False),
        (ErrorResponse(404, "The model `m` does not exist", "model_not_found"), "unknown_model", False),
        (ErrorResponse(429, "Rate limit reached"), "rate_limit", True),
        (ErrorResponse(429, "You exceeded your current quota", "insufficient_quota"), "quota", False),
        (ErrorResponse(500, "oops"), "server", True),
        (ErrorResponse(503, body="<html>down</html>"), "server", True),
        (ErrorResponse(400, "This model's maximum context length is 4096 tokens"), "too_long", False),
        (RawResponse(b"data: {broken\n\n"), "server", True),
        (RawResponse(b"data: [DONE]\n\n"), "server", True),
        (RawResponse(b""), "server", True),
        (RawResponse(b'data: {"error": {"message": "overloaded", "code": 503}}\n\n'), "server", True),
        (RawResponse(b'{"error": {"message": "no"}}', "application/json"), "server", True),
        (RawResponse(b"<html>Welcome</html>", "text/html"), "bad_request", False),
        (Stream("a b c", drop_after=0), "network", True),
        (Stream("a b c", drop_after=2), "network", True),
    ],
)
async def test_failures_become_one_sentence(serve: Serve, chat: Chat, step: Any, kind: str, may_retry: bool) -> None:
    """Every failure is a ModelError that says what it is and whether to retry."""
    server = serve(step)

    error = await failure(chat(server.base_url, key_variable="TEST_KEY"))

    assert (error.kind, error.may_retry) == (kind, may_retry)
    assert "test" in str(error)
    assert "\n" not in str(error)
    assert len(server.requests) == 1, "retries are somebody else's job"


async def test_the_server_says_how_long_to_wait(serve: Serve, chat: Chat) -> None:
    """`Retry-After` reaches the caller that retries."""
    server = serve(ErrorResponse(429, "slow down", retry_after=7))

    assert (await failure(chat(server.base_url))).retry_after_seconds == 7


async def test_a_refused_tool_is_named(serve: Serve, chat: Chat) -> None:
    """A request rejected because of one tool says which."""
    server = serve(ErrorResponse(400, "Invalid schema for function 'bad_tool': None is not of type 'object'"))

    error = await failure(chat(server.base_url), tools=TOOLS)

    assert (error.kind, error.refused_tools) == ("refused_tool", ("bad_tool",))


async def test_nobody_listens(chat: Chat) -> None:
    """A refused connection names the address."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"

    error = await failure(chat(address))

    assert error.kind == "network"
    assert address in str(error)


async def test_a_server_that_falls_silent_is_given_up(serve: Serve, chat: Chat) -> None:
    """The time limit applies to the whole answer, and the connection is closed."""
    server = serve(Stream("a b c", stall_after=2))

    error = await failure(chat(server.base_url), timeout_seconds=0.3)

    assert (error.kind, error.may_retry) == ("timeout", True)
    assert await server.until(lambda seen: seen.hang_ups == 1)


async def test_cancelling_closes_the_stream_at_once(serve: Serve, chat: Chat) -> None:
    """Cancelling a request closes its connection."""
    server = serve(Stream("a b c", stall_after=2))
    heard = asyncio.Event()
    provider = chat(server.base_url)
    running = asyncio.create_task(provider.complete(ask(), lambda _: heard.set()))
    await asyncio.wait_for(heard.wait(), 10)

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert await server.until(lambda seen: seen.hang_ups == 1)


async def test_a_cancelled_request_does_not_spoil_the_next(serve: Serve, chat: Chat) -> None:
    """The provider keeps working after an interrupt."""
    server = serve(Stream("a b c", stall_after=1), "Still here.")
    provider = chat(server.base_url)
    running = asyncio.create_task(provider.complete(ask(), lambda _: None))
    assert await server.until(lambda seen: len(seen.requests) == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert (await provider.complete(ask(), lambda _: None)).message.text == "Still here."


async def test_connections_are_used_again(serve: Serve, chat: Chat) -> None:
    """A second request needs no new connection."""
    server = serve("One.", "Two.")
    provider = chat(server.base_url)

    for _ in range(2):
        await provider.complete(ask(), lambda _: None)

    assert [seen.connection for seen in server.requests] == [1, 1]


async def test_a_kept_connection_that_was_dropped_may_be_tried_again(serve: Serve, chat: Chat) -> None:
    """A server that closes an idle connection just as it is reused is no reason to give up."""
    server = serve("One.", Stream("lost", drop_after=0), "Three.")
    provider = chat(server.base_url)
    await provider.complete(ask(), lambda _: None)

    error = await failure(provider)
    response = await provider.complete(ask(), lambda _: None)

    assert (error.kind, error.may_retry) == ("network", True)
    assert response.message.text == "Three."
    assert [seen.connection for seen in server.requests] == [1, 1, 2]


@pytest.mark.parametrize("ending", ["", "/", "/chat/completions", "/chat/completions/"])
async def test_the_address_may_end_as_people_paste_it(serve: Serve, chat: Chat, ending: str) -> None:
    """A trailing slash, or the full path, leads to the same address."""
    server = serve("Hi.")

    await chat(server.base_url + ending).complete(ask(), lambda _: None)

    assert server.requests[0].path == "/v1/chat/completions"


async def test_requests_at_once(serve: Serve, chat: Chat) -> None:
    """Answers of concurrent requests are not mixed up."""
    server = serve(otherwise=lambda seen: f"You said {seen.body['messages'][0]['content']}.")
    provider = chat(server.base_url)
    requests = [ModelRequest(model="m", messages=[user_message(f"word{n}")], cache_key=f"{n}") for n in range(20)]

    responses = await asyncio.gather(*(provider.complete(request, lambda _: None) for request in requests))

    assert [response.message.text for response in responses] == [f"You said word{n}." for n in range(20)]


def test_a_provider_serves_one_event_loop_after_the_other(serve: Serve) -> None:
    """Code without its own loop runs each request on a new one."""
    server = serve("One.", "Two.")
    provider = OpenAIChat(name="t", base_url=server.base_url, api_key="", profile=lambda _: ModelProfile())

    async def once() -> str:
        text = (await provider.complete(ask(), lambda _: None)).message.text
        await provider.close()
        return text

    assert [asyncio.run(once()), asyncio.run(once())] == ["One.", "Two."]


async def test_loops_side_by_side_have_connections_of_their_own(serve: Serve) -> None:
    """A loop in another thread uses its own connections, and closing reaches those too."""
    server = serve(otherwise="Hi.")
    provider = OpenAIChat(name="t", base_url=server.base_url, api_key="", profile=lambda _: ModelProfile())
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()

    for _ in range(2):
        await provider.complete(ask(), lambda _: None)
        there = asyncio.run_coroutine_threadsafe(provider.complete(ask(), lambda _: None), other)
        await asyncio.wrap_future(there)
    await provider.close()
    other.call_soon_threadsafe(other.stop)
    await asyncio.to_thread(thread.join)
    other.close()

    assert [seen.connection for seen in server.requests] == [1, 2, 1, 2]


@pytest.mark.parametrize("address", ["http://[::1", "http://127.0.0.1:99999/v1", "127.0.0.1:8000/v1", "not a url"])
async def test_an_address_that_is_none_is_told(chat: Chat, address: str) -> None:
    """A mistake in the address is reported as such, and not retried."""
    error = await failure(chat(address))

    assert (error.kind, error.may_retry) == ("bad_request", False)
    assert "model.base_url" in str(error)


async def test_a_proxy_for_the_world_does_not_stand_before_this_machine(
    serve: Serve, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local server is reached directly, whatever proxy is set."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = serve("Hi.")

    assert (await chat(server.base_url).complete(ask(), lambda _: None)).message.text == "Hi."


PROGRAM = """
import asyncio, sys
sys.modules["openai"] = None
from toolcrib.core.models import ModelError, ModelProfile, ModelRequest
from toolcrib.providers.openai import OpenAIChat
chat = OpenAIChat(name="groq", base_url="http://127.0.0.1:9/v1", api_key="", profile=lambda _: ModelProfile())
try:
    asyncio.run(chat.complete(ModelRequest(model="m", messages=[]), print))
except ModelError as error:
    print(error.kind, error)
"""


def test_a_missing_package_is_told_with_the_command_that_brings_it() -> None:
    """The SDK is optional, and importing the provider does not need it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.startswith("missing_package ")
    assert "pip install 'toolcrib[openai]'" in done.stdout
