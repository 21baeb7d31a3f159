"""The scripted server for tests of programs: it works with the official SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable

import anthropic
import openai
import pytest

from toolcrib.core.models import Usage
from toolcrib.providers.scripted import call, says
from toolcrib.testing.model_server import ErrorResponse, ScriptedModelServer, Stream

Serve = Callable[..., ScriptedModelServer]

HI = [{"role": "user", "content": "Hi"}]
ANSWER = says("Hello there.", call("t", {"a": "b" * 30}, id="c1"), usage=Usage(input_tokens=5, output_tokens=2))


def ask_openai(server: ScriptedModelServer, *, stream: bool) -> openai.types.chat.ChatCompletion:
    with openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        if not stream:
            return client.chat.completions.create(model="m", messages=HI)  # type: ignore[arg-type]
        with client.chat.completions.stream(model="m", messages=HI) as events:  # type: ignore[arg-type]
            return events.until_done().get_final_completion()


@pytest.mark.parametrize("stream", [True, False])
def test_the_sdk_of_openai_understands_it(serve: Serve, stream: bool) -> None:
    """Text, calls, usage and the stop reason arrive, streamed or not, even in code without an event loop."""
    server = serve(ANSWER)

    answer = ask_openai(server, stream=stream)

    [choice] = answer.choices
    assert choice.message.content == "Hello there."
    assert [json.loads(one.function.arguments) for one in choice.message.tool_calls or ()] == [{"a": "b" * 30}]
    assert choice.finish_reason == "tool_calls"
    assert server.requests[0].body["messages"] == HI


@pytest.mark.parametrize("stream", [True, False])
async def test_the_sdk_of_anthropic_understands_it(stream: bool) -> None:
    """The same steps work in the other protocol, with thinking and its signature."""
    answer = says("Hello there.", call("t", {"a": 1}, id="c1"), reasoning="hm", usage=Usage(input_tokens=5))
    async with (
        ScriptedModelServer([answer]) as server,
        anthropic.AsyncAnthropic(base_url=server.origin, api_key="any", max_retries=0) as client,
    ):
        if stream:
            async with client.messages.stream(model="m", max_tokens=9, messages=HI) as events:  # type: ignore[arg-type]
                message = await events.get_final_message()
        else:
            message = await client.messages.create(model="m", max_tokens=9, messages=HI)  # type: ignore[arg-type]

    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[-1].input == {"a": 1}  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (ErrorResponse(401, "no"), openai.AuthenticationError),
        (ErrorResponse(429, "slow", retry_after=3), openai.RateLimitError),
        (ErrorResponse(500, "oops"), openai.InternalServerError),
        (Stream("x", drop_after=0), openai.APIConnectionError),
    ],
)
def test_it_fails_as_told(serve: Serve, step: ErrorResponse | Stream, expected: type[Exception]) -> None:
    """Errors arrive as the SDK's own, and a refusal carries its `Retry-After`."""
    with pytest.raises(expected) as caught:
        ask_openai(serve(step), stream=True)

    if isinstance(caught.value, openai.RateLimitError):
        assert caught.value.response.headers["retry-after"] == "3"


def test_when_the_script_is_over_it_says_so(serve: Serve) -> None:
    """One request too many is an error of the test, and reported as such."""
    with pytest.raises(openai.InternalServerError, match="the script is over: request 1"):
        ask_openai(serve(), stream=True)


def test_steps_can_be_added_and_decided_by_the_request(serve: Serve) -> None:
    """A function as a step sees the request; a step for further requests can be set."""
    server = serve("One.", otherwise="More.")
    server.add(lambda seen: f"You use {seen.body['model']}.")

    said = [ask_openai(server, stream=True).choices[0].message.content for _ in range(4)]

    assert said == ["One.", "You use m.", "More.", "More."]
    arrivals = [seen.at for seen in server.requests]
    assert arrivals == sorted(arrivals)


def test_it_ends_while_a_client_waits(serve: Serve) -> None:
    """A stalled answer does not keep the server from closing."""
    with ScriptedModelServer([Stream("a b", stall_after=1)]) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        stream = client.chat.completions.create(model="m", messages=HI, stream=True)  # type: ignore[call-overload]
        next(iter(stream))

    with client, pytest.raises(openai.APIConnectionError):
        list(stream)
