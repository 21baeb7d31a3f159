"""Audio in tool results and messages: sent to models that accept it, described in text to all others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from toolcrib.core.messages import Audio, Image, Message, RequestedCall, Text, parts_of, tool_message
from toolcrib.core.models import ModelProfile, ModelRequest
from toolcrib.core.types import ToolResult
from toolcrib.providers import anthropic_request
from toolcrib.providers.openai_request import OpenAIOptions, OpenAIRequests
from toolcrib.providers.presets import known_profile

WAV = Audio(media_type="audio/wav", data="aGVsbG8=")
PNG = Image(media_type="image/png", data="aGVsbG8=")
CALL = Message(role="assistant", tool_calls=(RequestedCall(id="c1", name="t", arguments="{}"),))


def result(*parts: Any) -> Message:
    return Message(role="tool", call_id="c1", name="t", content=parts)


def sent(*messages: Message, hears_audio: bool = True) -> list[dict[str, Any]]:
    request = ModelRequest(model="m", messages=messages)
    body = OpenAIRequests("test", OpenAIOptions()).body(request, sees_images=True, hears_audio=hears_audio)
    found: list[dict[str, Any]] = json.loads(body)["messages"]
    return found


@pytest.mark.parametrize(
    "block",
    [
        {"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}},
        {"type": "audio", "data": "aGVsbG8=", "mimeType": "audio/wav"},
    ],
)
def test_a_recording_of_a_result_is_a_part(block: dict[str, Any]) -> None:
    """OpenAI's and MCP's audio blocks are kept, and survive storage."""
    content = {"_multimodal": True, "content": [{"type": "text", "text": "listen"}, block]}

    message = tool_message(ToolResult(content=content, call_id="c1", name="t"))

    assert message.content == (Text("listen"), WAV)
    assert message.recordings == (WAV,)
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    assert list(parts_of([block])) == [WAV]


def test_a_model_that_hears_gets_recordings_after_the_results() -> None:
    """Only a user message may contain audio, so that of results follows in one message, beside images."""
    _, tool, user = sent(CALL, result(Text("listen"), WAV, PNG))

    assert tool["content"] == "listen\n[a recording]\n[an image]"
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "input_audio"]
    assert user["content"][0]["text"] == "The image and recording of t (call c1):"
    assert user["content"][2]["input_audio"] == {"data": "aGVsbG8=", "format": "wav"}


def test_a_model_that_does_not_hear_is_told_so() -> None:
    """Nothing is dropped silently, and nothing is sent that would be refused."""
    asked = Message(role="user", content=(Text("What is this?"), WAV))

    user, _, tool = sent(asked, CALL, result(Text("listen"), WAV), hears_audio=False)

    unheard = "[a recording (audio/wav), which this model cannot hear]"
    assert user["content"][1] == {"type": "text", "text": unheard}
    assert tool["content"] == f"listen\n{unheard}"


@pytest.mark.parametrize(("kind", "form"), [("audio/mpeg", "mp3"), ("audio/x-wav", "wav"), ("audio/ogg", None)])
def test_only_forms_that_the_api_takes_are_sent(kind: str, form: str | None) -> None:
    """A format that would make the server refuse the conversation is described in text."""
    [user] = sent(Message(role="user", content=(Audio(media_type=kind, data="aGVsbG8="),)))

    [part] = user["content"]
    assert part.get("input_audio", {}).get("format") == form
    assert (form is None) == ("cannot hear" in part.get("text", ""))


def test_anthropic_is_told_in_words() -> None:
    """The API accepts no audio: the model reads that there was some."""
    request = ModelRequest(
        model="claude-sonnet-5-5", messages=(Message(role="user", content="x"), CALL, result(Text("listen"), WAV))
    )

    body = json.loads(anthropic_request.AnthropicRequests("a").body(request, ModelProfile(), lambda schema: schema))

    content = body["messages"][2]["content"][0]["content"]
    assert [part["text"] for part in content] == ["listen", "[a recording (audio/wav), which this model cannot hear]"]


@pytest.mark.parametrize(
    ("name", "hears"),
    [("gpt-4o-audio-preview", True), ("google/gemini-3.8-flash", True), ("gpt-5", False), ("claude-sonnet-5-5", False)],
)
def test_who_hears_is_known_by_name(name: str, hears: bool) -> None:
    """A model that is not known to accept audio gets none."""
    assert known_profile(name).hears_audio == hears
