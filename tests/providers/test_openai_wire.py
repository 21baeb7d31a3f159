"""Requests to a server with chat completions."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.messages import Image, Message, RequestedCall, Text, user_message
from toolcrib.core.models import ModelRequest
from toolcrib.providers.openai_request import UNSEEN_IMAGE, OpenAIOptions, OpenAIRequests
from toolcrib.providers.presets import PRESETS

PNG = Image(media_type="image/png", data="aGVsbG8=")
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
TOOL = {"type": "function", "function": {"name": "t", "description": "d", "parameters": {"type": "object"}}}


def body(request: ModelRequest, *, sees_images: bool = True, provider: str = "test", **options: Any) -> dict[str, Any]:
    requests = OpenAIRequests(provider, OpenAIOptions(**options))
    sent: dict[str, Any] = json.loads(requests.body(request, sees_images=sees_images))
    return sent


def sent(*messages: Message, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(ModelRequest(model="m", messages=messages), **options)["messages"]
    return found


def asks(*calls: RequestedCall, text: str = "", **more: Any) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls, **more)


def call(call_id: str = "c1", arguments: str = '{"a": 1}') -> RequestedCall:
    return RequestedCall(id=call_id, name="t", arguments=arguments)


def result(call_id: str, content: Any) -> Message:
    return Message(role="tool", call_id=call_id, name="t", content=content)


def test_a_conversation_with_a_call_and_its_result() -> None:
    """The system prompt is the first message, arguments are sent byte for byte, results by call id."""
    request = ModelRequest(
        model="m",
        system="Be brief.",
        messages=[user_message("Hi"), asks(call()), result("c1", "done"), Message(role="assistant", content="Yes.")],
        tools=[TOOL],
        tool_choice="required",
        max_output_tokens=50,
        temperature=0.0,
    )

    assert body(request) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {"role": "assistant", "content": "Yes."},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [TOOL],
        "tool_choice": "required",
        "max_tokens": 50,
        "temperature": 0.0,
    }


def test_images_of_a_person_are_parts_of_the_message() -> None:
    """Bytes become a data URL, an address stays one."""
    [message] = sent(user_message("Look", [PNG, Image(url="https://example.com/a.png")]))

    parts = [{"type": "text", "text": "Look"}, PNG_PART]
    assert message["content"] == [*parts, {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]


def test_images_of_results_follow_all_results_of_the_turn_in_one_message_that_names_the_calls() -> None:
    """A tool message contains no image, and nothing may come between the results of one turn."""
    messages = sent(
        asks(call("c1"), call("c2")),
        result("c1", (Text("a"), PNG)),
        result("c2", (PNG, PNG)),
        Message(role="assistant", content="Seen."),
    )

    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user", "assistant"]
    assert [message["content"] for message in messages[1:3]] == ["a\n[an image]", "[an image]\n[an image]"]
    texts = [part.get("text") for part in messages[3]["content"]]
    assert texts == ["The image of t (call c1):", None, "The 2 images of t (call c2):", None, None]
    assert messages[3]["content"][1] == PNG_PART


def test_a_model_without_eyes_is_told_that_there_was_an_image() -> None:
    """Servers refuse images for such a model, so it gets words instead."""
    messages = sent(
        user_message("Look", [PNG]), asks(call()), result("c1", (Text("a"), PNG)), user_message("And?"),
        sees_images=False,
    )  # fmt: skip

    assert messages[0]["content"][1] == {"type": "text", "text": UNSEEN_IMAGE}
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]


def test_images_that_the_model_made_come_back_as_a_message_of_the_user() -> None:
    """An assistant message contains no image; the model can still refer to what it drew."""
    messages = sent(user_message("Draw"), Message(role="assistant", content=(PNG,)), user_message("Larger"))

    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user"]
    assert messages[2]["content"] == [{"type": "text", "text": "The image of your answer:"}, PNG_PART]


def test_an_empty_answer_is_left_out() -> None:
    """Many servers refuse an assistant message without content and calls."""
    messages = sent(user_message("Hi"), Message(role="assistant", reasoning="hm"), user_message("Hello?"))

    assert [message["role"] for message in messages] == ["user", "user"]


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "null", '{"a":1}{"a":1}', "\ud800"])
def test_broken_arguments_do_not_poison_the_conversation(arguments: str) -> None:
    """Servers parse the arguments of earlier calls, and would refuse every later request."""
    [message] = sent(asks(call(arguments=arguments)))

    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


def test_what_a_provider_wants_to_see_again_goes_to_that_provider_alone() -> None:
    """One service would refuse another's signed reasoning."""
    details = [{"type": "reasoning.text", "text": "hm", "signature": "s"}]
    signature = {"google": {"thought_signature": "x"}}
    own = {"reasoning_details": details, "calls": {"c1": signature}}
    message = asks(call(), provider_data={"openrouter": own})

    [there] = sent(message, provider="openrouter")
    [elsewhere] = sent(message, provider="openai")

    assert there["reasoning_details"] == details
    assert there["tool_calls"][0]["extra_content"] == signature
    assert "reasoning_details" not in elsewhere
    assert "extra_content" not in elsewhere["tool_calls"][0]


def test_calls_of_another_model_get_the_signature_that_gemini_takes_for_them() -> None:
    """Without one, Gemini refuses the whole conversation; and it stalls on null."""
    [message] = sent(asks(call("c1"), call("c2")), signs_calls=True)

    assert "thought_signature" in message["tool_calls"][0]["extra_content"]["google"]
    assert "extra_content" not in message["tool_calls"][1]
    assert "content" not in message


def test_thoughts_before_calls_are_returned_where_the_server_wants_them() -> None:
    """DeepSeek refuses calls without their `reasoning_content`, even an empty one; others never get it."""
    thought, silent = asks(call("c1"), reasoning="hm"), asks(call("c2"))

    returned = sent(thought, silent, returns_reasoning=True)
    kept = sent(thought, silent)

    assert [message.get("reasoning_content") for message in returned] == ["hm", ""]
    assert [message.get("reasoning_content") for message in kept] == [None, None]


def test_mistral_gets_ids_of_nine_characters_that_still_match() -> None:
    """Ids of other services are shortened the same way for a call and its result; its own stay."""
    asked = asks(call("call_1234567890"), call("D681PevKs"))
    messages = sent(asked, result("call_1234567890", "x"), nine_character_ids=True)

    first, second = (one["id"] for one in messages[0]["tool_calls"])
    assert len(first) == 9
    assert first.isalnum()
    assert second == "D681PevKs"
    assert messages[1]["tool_call_id"] == first


def test_ids_that_openai_finds_too_long_are_shortened_alike_in_call_and_result() -> None:
    """Other servers use ids longer than the 40 characters that OpenAI accepts."""
    long = f"chatcmpl-tool-{'a' * 32}"

    asked, answered = sent(asks(call(long)), result(long, "x"))

    assert asked["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert len(answered["tool_call_id"]) <= 40
    assert sent(asks(call("c" * 40)))[0]["tool_calls"][0]["id"] == "c" * 40


@pytest.mark.parametrize("name", ["multi_tool_use.parallel", "no way", "", "ü" * 90])
def test_a_name_that_no_tool_can_have_does_not_poison_the_conversation(name: str) -> None:
    """OpenAI refuses a request whose history contains a name of another pattern, and would do so every time."""
    wrong = RequestedCall(id="c1", name=name, arguments="{}")

    found = sent(asks(wrong))[0]["tool_calls"][0]["function"]["name"]

    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", found)


def test_blank_texts_beside_images_are_left_out() -> None:
    """Servers refuse a text without words; an image may come without any."""
    assert sent(user_message(" ", [PNG]))[0]["content"] == [PNG_PART]
    assert sent(Message(role="user", content=(Text(""),)))[0]["content"] == ""


@pytest.mark.parametrize(
    ("model", "is_between"),
    [("mistral-medium-latest", True), ("mistralai/devstral-small", True), ("gpt-5", False)],
)
def test_mistral_s_models_get_an_answer_between_a_result_and_a_person(model: str, is_between: bool) -> None:
    """They refuse a user message right after a result: one sent while tools ran, or one with a result's images."""
    said = (asks(call()), result("c1", "x"), user_message("And?"))
    shown = (asks(call()), result("c1", (PNG,)))

    for messages in (said, shown):
        roles = [one["role"] for one in body(ModelRequest(model=model, messages=messages))["messages"]]

        assert roles == ["assistant", "tool", *(["assistant"] if is_between else []), "user"]


def test_half_a_character_in_a_program_s_output_does_not_stop_the_request() -> None:
    """What JSON cannot carry is replaced, wherever it occurs."""
    request = ModelRequest(
        model="m", system="s\ud800", messages=[user_message("u\udfff")],
        tools=[{"type": "function", "function": {"name": "t", "description": "\ud800"}}],
    )  # fmt: skip

    found = body(request)

    assert [message["content"] for message in found["messages"]] == ["s?", "u?"]
    assert found["tools"][0]["function"]["description"] == "?"


@pytest.mark.parametrize(
    ("how", "effort", "expected"),
    [
        ("effort", "", {}),
        ("effort", "low", {"reasoning_effort": "low"}),
        ("effort", "none", {"reasoning_effort": "none"}),
        ("openrouter", "high", {"reasoning": {"effort": "high"}}),
        ("openrouter", "none", {"reasoning": {"enabled": False}}),
        ("thinking", "high", {"thinking": {"type": "enabled"}}),
        ("thinking", "none", {"thinking": {"type": "disabled"}}),
        ("thinking_effort", "low", {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}),
        ("thinking_effort", "none", {"thinking": {"type": "disabled"}}),
    ],
)
def test_how_long_to_think_is_said_in_the_server_s_own_words(how: Any, effort: Any, expected: dict[str, Any]) -> None:
    """Each kind of server has its own field for it, and gets nothing if nothing was requested."""
    found = body(ModelRequest(model="m", messages=[], reasoning_effort=effort), reasoning=how)

    assert {key: found[key] for key in ("reasoning_effort", "reasoning", "thinking") if key in found} == expected


@pytest.mark.parametrize(
    ("model", "tools", "expected"),
    [
        ("gpt-5.6", [TOOL], "none"),
        ("gpt-5.4-mini", [TOOL], "none"),
        ("gpt-6", [TOOL], "none"),
        ("gpt-5.6", [], "high"),
        ("gpt-5.2-chat-latest", [TOOL], "high"),
        ("gpt-5.1", [TOOL], "high"),
        ("gpt-5", [TOOL], "high"),
        ("gpt-5-mini", [TOOL], "high"),
        ("gpt-4.1", [TOOL], "high"),
    ],
)
def test_openai_s_newer_models_use_tools_only_when_told_not_to_reason(
    model: str, tools: list[Any], expected: str
) -> None:
    """On this endpoint OpenAI refuses tools together with reasoning, even without an effort."""
    request = ModelRequest(model=model, messages=[], tools=tools, reasoning_effort="high")
    sent_body = OpenAIRequests("openai", PRESETS["openai"].options).body(request, sees_images=True)

    assert json.loads(sent_body)["reasoning_effort"] == expected


CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "is_strict"),
    [
        (CLOSED, True),
        (CLOSED | {"required": []}, False),
        (CLOSED | {"additionalProperties": True}, False),
        (CLOSED | {"properties": {"a": {"type": "object", "properties": {}}}}, False),
        (CLOSED | {"properties": {"a": {"type": "array", "items": {"type": "object"}}}}, False),
        (CLOSED | {"properties": {"a": {"anyOf": [CLOSED, {"type": "null"}]}}}, True),
    ],
)
def test_a_schema_for_the_answer_is_strict_where_openai_takes_it(schema: dict[str, Any], is_strict: bool) -> None:
    """Strict mode refuses an open or partly required object anywhere in the schema."""
    found = body(ModelRequest(model="m", messages=[], response_schema=schema))["response_format"]

    assert found == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": is_strict},
    }


def test_a_server_without_schemas_is_asked_for_json() -> None:
    """Less is guaranteed, and nothing is refused."""
    request = ModelRequest(model="m", messages=[], response_schema=CLOSED)

    assert body(request, json_schema=False)["response_format"] == {"type": "json_object"}


def test_fields_that_only_some_servers_know() -> None:
    """The maximum length of an answer has two names, and the cache key is sent only where it is known."""
    request = ModelRequest(model="m", messages=[], max_output_tokens=9, cache_key="session")

    plain = body(request)
    special = body(
        request, max_tokens_field="max_completion_tokens", cache_key=True, stream_usage=False, extra_body={"x": 1}
    )

    assert {key for key in plain if key not in special} == {"max_tokens", "stream_options"}
    assert {key: special[key] for key in special if key not in plain} == {
        "max_completion_tokens": 9,
        "prompt_cache_key": "session",
        "x": 1,
    }


messages = st.lists(
    st.builds(user_message, st.text(max_size=5))
    | st.builds(lambda text: Message(role="assistant", content=text), st.text(max_size=5))
    | st.just(asks(call()))
    | st.builds(lambda text: result("c1", text), st.text(max_size=5))
    | st.just(result("c1", (Text("a"), PNG))),
    max_size=8,
)


@given(st.lists(messages, min_size=1, max_size=5), st.booleans())
def test_what_is_remembered_of_earlier_requests_never_shows(turns: list[list[Message]], sees_images: bool) -> None:
    """A request has the same bytes whatever was sent before it."""
    requests = OpenAIRequests("test", OpenAIOptions())
    history: list[Message] = []
    for turn in turns:
        history = [*history, *turn]
        request = ModelRequest(model="m", messages=history, cache_key="s")
        fresh = OpenAIRequests("test", OpenAIOptions()).body(request, sees_images=sees_images)

        assert requests.body(request, sees_images=sees_images) == fresh
        assert requests.body(msgspec.structs.replace(request, messages=turn), sees_images=not sees_images)


def test_conversations_do_not_disturb_each_other_and_old_ones_are_forgotten() -> None:
    """Many sessions share a provider; what it keeps of them is bounded."""
    requests = OpenAIRequests("test", OpenAIOptions())
    for number in range(30):
        request = ModelRequest(model="m", messages=[user_message(f"{number}")], cache_key=f"s{number}")
        found = json.loads(requests.body(request, sees_images=True))
        assert found["messages"] == [{"role": "user", "content": f"{number}"}]

    assert len(requests._sent) <= 8
