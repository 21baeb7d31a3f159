"""Requests to Anthropic's messages API, byte for byte, and the rules that every conversation must follow there."""

from __future__ import annotations

import cProfile
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.core.messages import Image, Message, Part, RequestedCall, Text, user_message
from toolcrib.core.models import ModelProfile, ModelRequest
from toolcrib.core.types import JsonObject
from toolcrib.providers.anthropic_request import AnthropicRequests, family_of

MARK = {"type": "ephemeral"}
MODEL = "claude-sonnet-5-5"
TOOLS = [
    {"name": "alpha", "description": "A.", "input_schema": {"type": "object", "properties": {}}},
    {"name": "beta", "description": "B.", "input_schema": {"type": "object", "properties": {}}},
]


def body_of(wire: AnthropicRequests | None = None, profile: ModelProfile = ModelProfile(), **fields: Any) -> Any:  # noqa: B008
    request = ModelRequest(**{"model": MODEL, "messages": (user_message("Hi"),), **fields})
    return json.loads((wire or AnthropicRequests("anthropic")).body(request, profile, lambda schema: schema))


def call(id: str, name: str = "alpha", arguments: str = "{}") -> RequestedCall:
    return RequestedCall(id=id, name=name, arguments=arguments)


def answer(text: str, *calls: RequestedCall, **fields: Any) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls, **fields)


def result(call_id: str, text: str = "done", **fields: Any) -> Message:
    return Message(role="tool", call_id=call_id, name="alpha", content=text, **fields)


def test_the_whole_body_of_a_turn_with_tools() -> None:
    """System prompt, tools and the last two user turns end in a cache mark; results come first, in call order."""
    body = body_of(
        system="You help.",
        tools=TOOLS,
        messages=(
            user_message("Look at this", [Image(media_type="image/png", data="aGk=")]),
            answer("I look.", call("t1", arguments='{"path": "a", "n": 1.0}'), call("t2", "beta", "")),
            result("t2", "second", status="error"),
            result("t1", "first"),
            user_message("And hurry."),
        ),
    )

    assert body == {
        "model": MODEL,
        "max_tokens": 64_000,
        "stream": True,
        "tools": [TOOLS[0], {**TOOLS[1], "cache_control": MARK}],
        "system": [{"type": "text", "text": "You help.", "cache_control": MARK}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look at this"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
                        "cache_control": MARK,
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "alpha", "input": {"path": "a", "n": 1.0}},
                    {"type": "tool_use", "id": "t2", "name": "beta", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "first"},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "second", "is_error": True},
                    {"type": "text", "text": "And hurry.", "cache_control": MARK},
                ],
            },
        ],
    }


def test_arguments_go_back_byte_for_byte() -> None:
    """The model's own spelling of its arguments is kept, so that the cache hits."""
    arguments = '{ "b":1.50 ,"a": "\\u00e9" }'
    request = ModelRequest(model=MODEL, messages=(user_message("x"), answer("", call("t1", arguments=arguments))))

    sent = AnthropicRequests("anthropic").body(request, ModelProfile(), lambda schema: schema)

    assert arguments.encode() in sent


def test_only_the_marks_change_from_turn_to_turn() -> None:
    """A longer conversation starts with the same bytes, apart from the cache marks."""
    wire, mark = AnthropicRequests("anthropic"), b',"cache_control":{"type":"ephemeral"}'
    short = [user_message("one"), answer("two"), user_message("three")]
    longer = [*short, answer("", call("t1")), result("t1")]

    bodies = [
        wire.body(
            ModelRequest(model=MODEL, messages=messages, system="S", tools=TOOLS), ModelProfile(), lambda one: one
        )
        for messages in (short, longer)
    ]

    first, second = (body.replace(mark, b"") for body in bodies)
    assert second.startswith(first[: -len(b"]}")])


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("claude-sonnet-5-5", "", {}),
        ("claude-sonnet-5-5", "high", {"thinking": {"type": "adaptive", "display": "summarized"},
                                       "output_config": {"effort": "high"}}),
        ("claude-sonnet-5-5", "none", {"thinking": {"type": "disabled"}}),
        ("claude-opus-5-5", "none", {"output_config": {"effort": "low"}}),
        ("claude-mythos-preview", "none", {"output_config": {"effort": "low"}}),
        ("claude-opus-4-6", "low", {"thinking": {"type": "adaptive", "display": "summarized"},
                                    "output_config": {"effort": "low"}}),
        ("claude-haiku-4-5-20251001", "medium", {"thinking": {"type": "enabled", "budget_tokens": 8192}}),
        ("claude-haiku-4-5", "none", {}),
        ("claude-3-7-sonnet-20250219", "high", {"thinking": {"type": "enabled", "budget_tokens": 16000}}),
        ("claude-3-5-sonnet-20241022", "high", {}),
        ("us.anthropic.claude-opus-4-20250514-v1:0", "low", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("glm-5", "none", {"thinking": {"type": "disabled"}}),
    ],
)  # fmt: skip
def test_effort_is_asked_for_as_the_model_takes_it(model: str, effort: Any, expected: JsonObject) -> None:
    """New models get an effort, older ones a budget below the answer's length, the oldest nothing."""
    body = body_of(model=model, reasoning_effort=effort)

    assert {key: body[key] for key in ("thinking", "output_config") if key in body} == expected


@pytest.mark.parametrize(
    ("model", "version", "max_tokens"),
    [
        ("claude-opus-5", (5, 0), 64_000),
        ("claude-sonnet-4-6", (4, 6), 64_000),
        ("claude-opus-4@20250514", (4, 0), 32_000),
        ("claude-3-5-haiku-latest", (3, 5), 8_192),
        ("claude-3-opus-20240229", (3, 0), 4_096),
        ("kimi-k3", None, 8_192),
    ],
)
def test_the_family_is_read_from_the_name(model: str, version: Any, max_tokens: int) -> None:
    """A date is not a version, and the answer's length follows from the generation."""
    assert family_of(model).version == version
    assert family_of(model).max_tokens == max_tokens


def test_a_small_window_limits_the_answer() -> None:
    """Half of the window stays for the prompt."""
    assert body_of(profile=ModelProfile(context_window=8_000))["max_tokens"] == 4_000
    assert body_of(max_output_tokens=77)["max_tokens"] == 77


def test_temperature_goes_only_where_it_is_taken() -> None:
    """Models from 4.7 on refuse a temperature, and older ones refuse it while they think."""
    assert "temperature" not in body_of(temperature=0.2)
    assert body_of(model="claude-haiku-4-5", temperature=0.2)["temperature"] == 0.2
    assert "temperature" not in body_of(model="claude-haiku-4-5", temperature=0.2, reasoning_effort="low")


@pytest.mark.parametrize(
    ("choice", "expected"), [("auto", None), ("none", {"type": "none"}), ("required", {"type": "any"})]
)
def test_the_choice_of_tools(choice: Any, expected: Any) -> None:
    """Auto is the API's own default; the others have their own names there."""
    assert body_of(tools=TOOLS, tool_choice=choice).get("tool_choice") == expected


def test_a_schema_for_the_answer_stands_beside_the_effort() -> None:
    """Structured output and effort share one field."""
    body = body_of(response_schema={"type": "object"}, reasoning_effort="low")

    assert body["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
    }
    assert "output_config" not in body_of(model="claude-3-7-sonnet", response_schema={"type": "object"})


def test_images_of_results_stay_in_their_results() -> None:
    """A tool result may contain texts and images, by content or by address."""
    content = (Text("see"), Image(url="https://x.test/a.png"), Image(media_type="image/jpg", data="aGk="), Text(" "))
    messages = (user_message("x"), answer("", call("t1")), Message(role="tool", call_id="t1", content=content))

    block = body_of(messages=messages)["messages"][2]["content"][0]

    assert block["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "aGk="}},
    ]


def test_a_failure_without_words_says_so() -> None:
    """The API refuses an error without content."""
    for content in (" ", (Text(""),)):
        failed = Message(role="tool", call_id="t1", name="alpha", content=content, status="error")

        sent = body_of(messages=(answer("", call("t1")), failed))["messages"][-1]["content"][0]

        assert (sent["content"], sent["is_error"]) == ("(no output)", True)


def test_a_failure_with_an_image_is_not_marked_as_one() -> None:
    """The API accepts only text in an error; the image is worth more than the error mark."""
    parts = (Text("it broke"), Image(media_type="image/png", data="aGk="))
    failed = Message(role="tool", call_id="t1", name="alpha", content=parts, status="error")

    sent = body_of(messages=(answer("", call("t1")), failed))["messages"][-1]["content"][0]

    assert [part["type"] for part in sent["content"]] == ["text", "image"]
    assert "is_error" not in sent


def test_only_safe_addresses_of_images_are_sent() -> None:
    """The API fetches images only over https, and refuses a request with another address."""
    images = [Image(url="https://example.com/a.png"), Image(url="http://example.com/b.png")]

    sent = body_of(messages=(user_message("See", images),))["messages"][0]["content"]

    assert [part["type"] for part in sent] == ["text", "image", "text"]


def test_an_image_that_cannot_be_seen_is_mentioned() -> None:
    """A model without vision, or a format that the API refuses, gets a text instead."""
    shown = user_message("x", [Image(media_type="image/png", data="aGk=")])
    drawn = user_message("x", [Image(media_type="image/svg+xml", data="aGk=")])

    blind = body_of(messages=(shown,), profile=ModelProfile(sees_images=False))["messages"][0]["content"][1]
    odd = body_of(messages=(drawn,))["messages"][0]["content"][1]

    assert blind["type"] == odd["type"] == "text"
    assert "image/svg+xml" in odd["text"]


def test_foreign_call_ids_are_rewritten_alike_in_call_and_result() -> None:
    """An id with characters that the API refuses becomes the same new id in both places and in every request."""
    messages = (user_message("x"), answer("", call("functions.alpha:0")), result("functions.alpha:0"))

    first, second = body_of(messages=messages)["messages"], body_of(messages=messages)["messages"]

    assert first[1]["content"][0]["id"] == first[2]["content"][0]["tool_use_id"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", first[1]["content"][0]["id"])
    assert first == second


def test_repeated_call_ids_become_different_ones() -> None:
    """If a server numbers each answer's calls from 0, each id in the history still belongs to one call."""
    turn = (answer("", call("call_0")), result("call_0", "r"))

    sent = body_of(messages=(user_message("x"), *turn, user_message("y"), *turn))["messages"]

    ids = [block["id"] for message in sent for block in message["content"] if block["type"] == "tool_use"]
    answered = [block["tool_use_id"] for message in sent for block in message["content"] if "tool_use_id" in block]
    assert len(set(ids)) == 2
    assert ids == answered


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    """A conversation that was cut within a turn is still accepted."""
    sent = body_of(messages=(user_message("x"), answer("", call("t1"), call("t2")), result("t2")))["messages"]

    assert [block["tool_use_id"] for block in sent[2]["content"]] == ["t1", "t2"]
    assert sent[2]["content"][0]["is_error"]


def test_a_history_with_calls_but_no_tools_declares_them() -> None:
    """The API refuses calls in the history unless tools are declared; they are declared and forbidden."""
    body = body_of(messages=(user_message("x"), answer("", call("t1", "old")), result("t1")))

    assert [tool["name"] for tool in body["tools"]] == ["old"]
    assert body["tool_choice"] == {"type": "none"}


ORDER = [
    {"type": "thinking", "thinking": "hm", "signature": "sig1"},
    {"text": [0, 5]},
    {"type": "redacted_thinking", "data": "secret"},
    {"call": 0},
]


def test_signed_thoughts_go_back_in_their_places() -> None:
    """Thinking and redacted thinking go back unchanged, in their places between texts and calls."""
    kept = {"anthropic": {"model": MODEL, "order": ORDER}}
    messages = (user_message("x"), answer("Hello", call("t1"), provider_data=kept), result("t1"))

    content = body_of(messages=messages)["messages"][1]["content"]

    assert content == [
        ORDER[0],
        {"type": "text", "text": "Hello"},
        ORDER[2],
        {"type": "tool_use", "id": "t1", "name": "alpha", "input": {}},
    ]


def test_thoughts_go_first_when_the_message_was_changed() -> None:
    """A stored order that no longer fits is ignored: nothing of the new text is lost."""
    kept = {"anthropic": {"model": MODEL, "order": ORDER}}
    messages = (user_message("x"), answer("Hello there", call("t1"), call("t2"), provider_data=kept))

    content = body_of(messages=messages)["messages"][1]["content"]

    assert [block["type"] for block in content] == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]
    assert content[2]["text"] == "Hello there"


def test_thoughts_of_another_model_are_not_sent() -> None:
    """Signatures are valid only for the model that made them; with a budget, that turn ends without thinking."""
    kept = {"anthropic": {"model": "claude-opus-5-5", "order": ORDER}}
    messages = (user_message("x"), answer("Hello", call("t1"), provider_data=kept), result("t1"))

    body = body_of(model="claude-haiku-4-5", messages=messages, reasoning_effort="high")

    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use"]
    assert "thinking" not in body


def test_half_a_surrogate_does_not_stop_a_request() -> None:
    """Program output that JSON cannot carry is sent with a replacement."""
    body = body_of(messages=(user_message("a\ud800b"),), system="c\udfffd")

    assert body["messages"][0]["content"][0]["text"] == "a?b"
    assert body["system"][0]["text"] == "c?d"


TEXTS = st.text(max_size=20)
IDS = st.sampled_from(["a", "b", "c", "call:1", "é", ""]) | st.text(max_size=6)
PARTS: st.SearchStrategy[Part] = st.builds(Text, TEXTS) | st.builds(
    Image, media_type=st.sampled_from(["image/png", "image/tiff", ""]), data=st.just("aGk="), url=st.just("")
)
CONTENT = TEXTS | st.lists(PARTS, max_size=3).map(tuple)
CALLS = st.lists(
    st.builds(
        RequestedCall,
        id=IDS,
        name=st.sampled_from(["alpha", "beta", "no way", ""]),
        arguments=st.sampled_from(["{}", "", '{"a": [1]}', "[1]", '{"a":', "null"]),
    ),
    max_size=3,
    unique_by=lambda one: one.id,
)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """One exchange: a user message, an answer, and its results in any order."""
    calls = draw(CALLS)
    said = draw(st.lists(st.builds(Message, role=st.sampled_from(["user", "system"]), content=CONTENT), max_size=2))
    status = draw(st.sampled_from(["ok", "error"]))
    results = [
        Message(role="tool", call_id=one.id, name=one.name, content=draw(CONTENT), status=status)
        for one in draw(st.permutations(calls))
    ]
    return [*said, Message(role="assistant", content=draw(TEXTS), tool_calls=tuple(calls)), *results]


CONVERSATIONS = st.tuples(
    st.lists(turns(), max_size=4), st.lists(st.builds(Message, role=st.just("user"), content=CONTENT))
)


@settings(max_examples=200, deadline=None)
@given(CONVERSATIONS.map(lambda drawn: [message for turn in drawn[0] for message in turn] + drawn[1]))
def test_any_conversation_keeps_the_rules_of_the_api(messages: list[Message]) -> None:
    """Turns alternate and start and end with the user; each call is answered once, at once, first and in order."""
    sent = body_of(messages=messages)["messages"]

    assert [message["role"] for message in sent] == [("user", "assistant")[at % 2] for at in range(len(sent))]
    assert len(sent) % 2 == 1
    seen: set[str] = set()
    for at, message in enumerate(sent):
        content = message["content"]
        assert content
        assert all(block["text"].strip() for block in content if block["type"] == "text")
        expected = [block["id"] for block in sent[at - 1]["content"] if block["type"] == "tool_use"] if at else []
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        assert results == expected
        assert [block["type"] for block in content[: len(results)]] == ["tool_result"] * len(results)
        assert not seen & set(expected)
        seen |= set(expected)
        for block in content:
            if block["type"] == "tool_use":
                assert message["role"] == "assistant"
                assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["id"])
                assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["name"])
                assert isinstance(block["input"], dict)
    calls = sum(len(message.tool_calls) for message in messages)
    assert len(seen) == calls
    assert json.dumps(sent).count("cache_control") <= 2


@settings(max_examples=60, deadline=None)
@given(CONVERSATIONS.map(lambda drawn: [message for turn in drawn[0] for message in turn] + drawn[1]))
def test_remembered_conversions_change_nothing(messages: list[Message]) -> None:
    """The bytes of a request do not depend on earlier requests."""
    wire = AnthropicRequests("anthropic")
    for upto in range(len(messages) + 1):
        remembered = body_of(wire, messages=messages[:upto])

        assert remembered == body_of(messages=messages[:upto])


def test_a_long_history_costs_little_on_each_turn() -> None:
    """Messages sent before are not converted again: the second body costs a fraction of the first."""
    history: list[Message] = [user_message("start")]
    for at in range(100):
        history += [
            answer(f"step {at} " * 20, call(f"t{at}", arguments='{"path": "a"}')),
            result(f"t{at}", "out " * 200),
        ]
    tools = [{**TOOLS[0], "name": f"tool{at}", "description": "words " * 60} for at in range(60)]
    request = ModelRequest(model=MODEL, messages=history, tools=tools)

    def calls(wire: AnthropicRequests) -> int:
        """How many functions are called for a body, which no other work on the machine changes."""
        profile = cProfile.Profile()
        profile.runcall(wire.body, request, ModelProfile(), lambda schema: schema)
        return sum(entry.callcount for entry in profile.getstats())

    kept = AnthropicRequests("anthropic")
    first = calls(kept)
    assert calls(kept) < 0.7 * first
