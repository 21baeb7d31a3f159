"""Streams as different servers send them, through the real SDK."""

from __future__ import annotations

from collections.abc import Callable

from toolcrib.core.messages import Image, Text, user_message
from toolcrib.core.models import (
    CallDelta,
    Delta,
    ModelRequest,
    ModelResponse,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolcrib.providers.openai import OpenAIChat
from toolcrib.testing.model_server import RawResponse, ScriptedModelServer

Serve = Callable[..., ScriptedModelServer]
Chat = Callable[..., OpenAIChat]
Bytes = Callable[[str], bytes]


async def play(serve: Serve, chat: Chat, stream: bytes, **options: object) -> tuple[ModelResponse, list[Delta]]:
    server = serve(RawResponse(stream))
    deltas: list[Delta] = []
    request = ModelRequest(model="any", messages=[user_message("Hello")])
    return await chat(server.base_url, **options).complete(request, deltas.append), deltas


def called(response: ModelResponse) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in response.message.tool_calls]


async def test_parallel_calls_of_openai_with_cached_and_reasoning_tokens(
    serve: Serve, chat: Chat, recorded: Bytes
) -> None:
    """Each call is assembled from its pieces, and the chunk with the usage counts."""
    response, deltas = await play(serve, chat, recorded("openai_parallel_calls"))

    assert called(response) == [("get_weather", '{"city":"Paris"}'), ("get_time", '{"zone":"CET"}')]
    assert [call.id for call in response.message.tool_calls] == ["call_aaaa", "call_bbbb"]
    assert response.stop == "tool_calls"
    assert response.model == "gpt-5.6"
    assert response.usage == Usage(input_tokens=1200, output_tokens=90, cached_tokens=1024, reasoning_tokens=40)
    assert deltas[0] == CallDelta(index=0, id="call_aaaa", name="get_weather")
    assert "".join(d.arguments for d in deltas if isinstance(d, CallDelta) and d.index == 1) == '{"zone":"CET"}'


async def test_openrouter_sends_thoughts_twice_and_says_what_it_cost(serve: Serve, chat: Chat, recorded: Bytes) -> None:
    """Reasoning arrives once, its signed form is kept for the next request, and the cost is the provider's."""
    response, deltas = await play(serve, chat, recorded("openrouter_reasoning"), name="openrouter")

    assert response.message.reasoning == "The user wants files."
    assert response.message.text == "I look."
    assert called(response) == [("list_files", '{"path": "."}')]
    assert response.usage.cost_usd == 0.00123
    assert response.usage.cache_write_tokens == 80
    assert response.message.provider_data == {
        "openrouter": {
            "reasoning_details": [
                {
                    "type": "reasoning.text",
                    "format": "anthropic-claude-v1",
                    "index": 0,
                    "text": "The user wants files.",
                    "signature": "c2lnbmF0dXJl",
                }
            ]
        }
    }
    assert [d.text for d in deltas if isinstance(d, ReasoningDelta)] == ["The user ", "wants files."]


async def test_images_that_a_model_makes_are_parts_of_its_message(serve: Serve, chat: Chat, recorded: Bytes) -> None:
    """An image that is sent twice appears once."""
    response, _ = await play(serve, chat, recorded("openrouter_image"))

    assert response.message.content == (Text("Here it is."), Image(media_type="image/png", data="aGVsbG8="))
    assert response.stop == "end"


async def test_gemini_gives_every_call_the_same_index_and_signs_the_first(
    serve: Serve, chat: Chat, recorded: Bytes
) -> None:
    """Ids distinguish the calls, `stop` with calls means calls, and reasoning counts as output."""
    response, _ = await play(serve, chat, recorded("gemini_calls"), name="gemini")

    assert called(response) == [("get_weather", '{"city":"Paris"}'), ("get_weather", '{"city":"Rome"}')]
    assert response.stop == "tool_calls"
    assert response.usage.output_tokens == 70
    signature = {"google": {"thought_signature": "U0lHTkFUVVJF"}}
    assert response.message.provider_data == {"gemini": {"calls": {"function-call-1": signature}}}


async def test_deepseek_thinks_in_a_field_of_its_own(serve: Serve, chat: Chat, recorded: Bytes) -> None:
    """`reasoning_content` is kept apart from the answer."""
    response, deltas = await play(serve, chat, recorded("deepseek_reasoning"))

    assert (response.message.reasoning, response.message.text) == ("Let me think.", "42")
    assert response.usage == Usage(input_tokens=30, output_tokens=12, cached_tokens=16, reasoning_tokens=9)
    assert deltas == [ReasoningDelta("Let me "), ReasoningDelta("think."), TextDelta("42")]


async def test_ollama_sends_whole_calls_and_says_stop(serve: Serve, chat: Chat, recorded: Bytes) -> None:
    """Calls that arrive in one piece each, all with index 0, are different calls."""
    response, _ = await play(serve, chat, recorded("ollama_calls"))

    assert called(response) == [("now", "{}"), ("add", '{"a":1,"b":2}')]
    assert response.message.reasoning == "Hmm."
    assert response.stop == "tool_calls"
    assert response.usage.output_tokens == 5


async def test_llamacpp_thinks_in_tags_and_leaves_ids_out(serve: Serve, chat: Chat, recorded: Bytes) -> None:
    """Tags split over pieces are found, and a call without an id gets one that the deltas name too."""
    response, deltas = await play(serve, chat, recorded("llamacpp_think"))

    assert response.message.reasoning == "I need the time."
    assert response.message.text == "One moment."
    assert called(response) == [("now", '{"zone":"UTC"}')]
    [call] = response.message.tool_calls
    assert call.id.startswith("call_")
    assert [d.id for d in deltas if isinstance(d, CallDelta) and d.id] == [call.id]


async def test_mistral_thinks_in_parts_of_the_content(serve: Serve, chat: Chat, recorded: Bytes) -> None:
    """A list of parts is read like a text."""
    response, _ = await play(serve, chat, recorded("mistral_thinking"))

    assert (response.message.reasoning, response.message.text) == ("First this.", "Done.")
    assert called(response) == [("now", '{"zone": "UTC"}')]
