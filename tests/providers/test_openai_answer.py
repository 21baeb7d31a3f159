"""Whatever a server sends becomes one answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.models import CallDelta, Delta, ModelResponse, ReasoningDelta, TextDelta
from toolcrib.providers.openai import OpenAIAnswer, ThinkingTags, read_usage


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(name: Any = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A chunk with a piece of a call, without the fields that are not given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return calling({"function": function, **more})


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return chunk({"tool_calls": list(calls)})


def put_together(*chunks: Any, taken_ids: tuple[str, ...] = ()) -> tuple[ModelResponse, list[Delta]]:
    deltas: list[Delta] = []
    answer = OpenAIAnswer(deltas.append, taken_ids=taken_ids)
    for one in chunks:
        answer.add(one)
    return answer.response("test"), deltas


def called(response: ModelResponse) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in response.message.tool_calls]


QUIRKS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "no index, no ids, two calls in one chunk": (
        [calling({"function": {"name": "a", "arguments": "{}"}}, {"function": {"name": "b", "arguments": '{"x":1}'}})],
        [("a", "{}"), ("b", '{"x":1}')],
    ),
    "no index and no ids, the same tool twice": (
        [calling({"function": {"name": "a"}}, {"function": {"name": "a"}})],
        [("a", "{}"), ("a", "{}")],
    ),
    "no index, pieces follow their beginning": (
        [piece("a", id="1"), piece(arguments='{"x":'), piece(arguments="1}"), piece("b", id="2")],
        [("a", '{"x":1}'), ("b", "{}")],
    ),
    "the id on every piece": (
        [piece("a", '{"x"', index=0, id="1"), piece("a", ":1}", index=0, id="1")],
        [("a", '{"x":1}')],
    ),
    "the name on every piece, and no id": (
        [piece("a", '{"x"', index=0), piece("a", ":1", index=0), piece("a", "}", index=0)],
        [("a", '{"x":1}')],
    ),
    "the name on every piece, no id and no index": (
        [piece("a", '{"x"'), piece("a", ":1"), piece("a", "}")],
        [("a", '{"x":1}')],
    ),
    "one index and one id for different calls": (
        [piece("a", '{"x":1}', index=0, id="c"), piece("a", '{"x":2}', index=0, id="c")],
        [("a", '{"x":1}'), ("a", '{"x":2}')],
    ),
    "one index, no ids": (
        [piece("a", '{"x":1}', index=0), piece("b", '{"y":1}', index=0)],
        [("a", '{"x":1}'), ("b", '{"y":1}')],
    ),
    "one index, no ids, the same arguments for two tools": (
        [piece("a", '{"x":1}', index=0), piece("b", '{"x":1}', index=0)],
        [("a", '{"x":1}'), ("b", '{"x":1}')],
    ),
    "the whole call once more at the end": (
        [piece("a", '{"x":1}', index=0, id="1"), piece("a", '{"x":1}', index=0, id="1")],
        [("a", '{"x":1}')],
    ),
    "the index counts pieces, the id says which call": (
        [piece("a", '{"x"', index=0, id="1"), piece(None, ":1}", index=1, id="1")],
        [("a", '{"x":1}')],
    ),
    "the name in pieces": ([piece("get_", index=0, id="1"), piece("x", index=0)], [("get_x", "{}")]),
    "arguments as an object": ([piece("a", {"x": "ü"}, index=0, id="1")], [("a", '{"x": "ü"}')]),
    "null everywhere": (
        [
            calling({"index": 0, "id": "1", "type": None, "function": {"name": "a", "arguments": None}}),
            calling({"index": 0, "id": None, "function": {"name": None, "arguments": "{}"}}),
            chunk({"tool_calls": None, "content": None, "reasoning": None, "images": None}),
        ],
        [("a", "{}")],
    ),
    "the name after the arguments": (
        [piece(None, '{"x":1}', index=0, id="1"), piece("a", index=0)],
        [("a", '{"x":1}')],
    ),
    "null as arguments": ([piece("a", "null", index=0, id="1")], [("a", "{}")]),
    "blank arguments": ([piece("a", "  ", index=0, id="1")], [("a", "{}")]),
    "a call that never gets a name": ([piece(None, "{}", index=0, id="1")], []),
}


@pytest.mark.parametrize("quirk", QUIRKS)
def test_calls_survive_the_habits_of_servers(quirk: str) -> None:
    """However a server numbers, names and cuts its calls, each appears once and complete, with its own id."""
    chunks, expected = QUIRKS[quirk]

    response, deltas = put_together(*chunks, chunk({}, "stop"))

    assert called(response) == expected
    ids = [call.id for call in response.message.tool_calls]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    assert response.stop == ("tool_calls" if expected else "end")
    streamed = {d.index: d.id for d in deltas if isinstance(d, CallDelta) and d.id}
    assert set(ids) <= set(streamed.values())


def test_an_id_that_the_conversation_has_already_is_replaced() -> None:
    """Servers that count their calls from zero in every answer would mix up results."""
    response, deltas = put_together(
        calling({"index": 0, "id": "call_0", "function": {"name": "a", "arguments": "{}"}}), taken_ids=("call_0",)
    )

    [call] = response.message.tool_calls
    assert call.id != "call_0"
    assert deltas == [CallDelta(index=0, id=call.id, name="a", arguments="{}")]


@given(
    st.lists(
        st.tuples(st.sampled_from(["read", "write"]), st.dictionaries(st.text(max_size=5), st.text(max_size=8))),
        min_size=1,
        max_size=3,
    ),
    st.data(),
)
def test_arguments_are_the_same_however_they_are_cut(calls: list[tuple[str, dict[str, str]]], data: Any) -> None:
    """Pieces of several calls, cut anywhere, give the arguments byte for byte."""
    chunks = []
    for index, (name, arguments) in enumerate(calls):
        text = json.dumps(arguments, ensure_ascii=False)
        chunks.append(calling({"index": index, "id": f"id{index}", "function": {"name": name, "arguments": ""}}))
        while text:
            size = data.draw(st.integers(1, len(text)))
            chunks.append(calling({"index": index, "function": {"arguments": text[:size]}}))
            text = text[size:]

    response, _ = put_together(*chunks, chunk({}, "tool_calls"))

    assert called(response) == [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]


@given(st.sampled_from(["think", "thinking", "thought"]), st.text(alphabet="ab</think> \n"), st.data())
def test_tags_are_found_wherever_the_stream_is_cut(tag: str, thought: str, data: Any) -> None:
    """Text between the tags at the start is reasoning, the rest is the answer, whatever the pieces."""
    thought = thought.replace(f"</{tag}>", "")
    text = f"\n<{tag}>{thought}</{tag}>\n\nThe answer <{tag}> is 4."
    tags = ThinkingTags()
    found: list[tuple[str, str]] = []
    while text:
        size = data.draw(st.integers(1, len(text)))
        found += tags.feed(text[:size])
        text = text[size:]
    found += tags.end()

    assert "".join(text for kind, text in found if kind == "text") == f"The answer <{tag}> is 4."
    assert "".join(text for kind, text in found if kind == "reasoning").strip() == thought.strip()


@given(st.text(alphabet="ab<thinkoug>/ \n", max_size=30), st.data())
def test_a_text_without_tags_at_its_start_is_left_alone(text: str, data: Any) -> None:
    """Nothing of an ordinary answer is lost or moved, even if it looks like the beginning of a tag."""
    text = text.replace("<think>", "").replace("<thinking>", "").replace("<thought>", "")
    rest, chunks = text, []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        chunks.append(chunk({"content": rest[:size]}))
        rest = rest[size:]

    response, deltas = put_together(*chunks)

    assert response.message.text == text
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == text


def test_thoughts_that_never_end_are_no_answer() -> None:
    """A model that was cut off while thinking has said nothing yet."""
    response, deltas = put_together(chunk({"content": "<think>hmm</th"}), chunk({}, "length"))

    assert response.message.text == ""
    assert response.message.reasoning == "hmm</th"
    assert deltas == [ReasoningDelta("hmm"), ReasoningDelta("</th")]


@pytest.mark.parametrize(
    ("finish", "delta", "expected"),
    [
        ("stop", {"content": "a"}, "end"),
        ("length", {"content": "a"}, "length"),
        ("content_filter", {"content": ""}, "refused"),
        ("SAFETY", {"content": ""}, "refused"),
        ("stop", {"refusal": "No."}, "refused"),
        ("length", {"tool_calls": [{"index": 0, "function": {"name": "a", "arguments": "{}"}}]}, "tool_calls"),
        ("length", {"tool_calls": [{"index": 0, "function": {"name": "a", "arguments": '{"'}}]}, "length"),
        ("length", {"tool_calls": [{"index": 0, "function": {"name": "a", "arguments": ""}}]}, "length"),
        ("eos", {"content": "a"}, "end"),
    ],
)
def test_the_reason_for_the_end(finish: str, delta: dict[str, Any], expected: str) -> None:
    """The servers' names map to our four reasons; a complete call counts even if the answer was cut."""
    assert put_together(chunk(delta), chunk({}, finish))[0].stop == expected


@pytest.mark.parametrize(
    ("chunks", "is_usable"),
    [
        ([], False),
        ([chunk({"reasoning": "hm"})], False),
        ([chunk({"content": "Hello"})], False),
        ([chunk({"content": "Hello"}), None], True),
        ([None], False),
        ([chunk({"content": ""}, "stop")], True),
        ([chunk({"content": "Hello"}, "error")], False),
        ([calling({"index": 0, "id": "1", "function": {"name": "a", "arguments": '{"x": '}})], False),
        ([calling({"index": 0, "id": "1", "function": {"name": "a", "arguments": '{"x": 1}'}})], False),
        ([calling({"index": 0, "id": "1", "function": {"name": "a", "arguments": '{"x": 1}'}}), None], True),
        ([calling({"index": 0, "id": "1", "function": {"name": "a", "arguments": '{"x": '}}), None], False),
    ],
)
def test_an_answer_counts_only_if_the_server_ended_it(chunks: list[Any], is_usable: bool) -> None:
    """A finish reason or the end mark (here None) ends an answer; nothing, or half a call, is not one even then."""
    answer = OpenAIAnswer(lambda _: None)
    for one in chunks:
        answer.end() if one is None else answer.add(one)

    assert answer.is_usable is is_usable


KEYS = st.sampled_from(
    [
        *("choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "id", "index"),
        *("reasoning", "reasoning_details", "images", "image_url", "url", "text", "finish_reason", "model", "x_groq"),
        *("usage", "prompt_tokens", "total_tokens", "prompt_tokens_details", "cost", "extra_content", "thinking"),
        *("refusal", "type", "summary", "completion_tokens"),
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(json_values, max_size=4), st.lists(st.dictionaries(KEYS, json_values, max_size=4), max_size=3))
def test_nothing_that_is_json_breaks_it(chunks: list[Any], deltas: list[Any]) -> None:
    """Invalid parts of a server's answer are dropped, and the program goes on."""
    response, _ = put_together(*chunks, *(chunk(delta) for delta in deltas))

    assert response.message.role == "assistant"


@pytest.mark.parametrize(
    ("usage", "cost"),
    [({"cost": 0.5}, 0.5), ({"cost": {"total_cost": 0.25}}, 0.25), ({"cost": True}, None), ({}, None)],
)
def test_the_cost_that_the_provider_says(usage: dict[str, Any], cost: float | None) -> None:
    """A number, or an object with the total; nothing else is a cost."""
    assert read_usage(usage).cost_usd == cost


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk({}, "stop") | {"x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}}],
        [{"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}]}],
        [
            chunk({}) | {"usage": {"prompt_tokens": 3, "completion_tokens": 1}},
            chunk({}, "stop") | {"usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            chunk({}) | {"usage": None},
        ],
    ],
)
def test_usage_is_found_where_servers_put_it(chunks: list[Any]) -> None:
    """In the chunk, in the choice, or under Groq's own name; the last one counts."""
    usage = put_together(*chunks)[0].usage

    assert (usage.input_tokens, usage.output_tokens) == (3, 4)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text", "thinking"])
def test_thoughts_are_found_under_each_of_their_names(field: str) -> None:
    """Servers have several names for a model's reasoning."""
    response, _ = put_together(chunk({field: "hm"}), chunk({"content": "Yes."}, "stop"))

    assert (response.message.reasoning, response.message.text) == ("hm", "Yes.")


@pytest.mark.parametrize("count", [float("inf"), float("nan"), -1, 10**30])
def test_a_number_of_tokens_that_cannot_be_is_none(count: float) -> None:
    """A server's accounting error does not cost the answer."""
    usage = read_usage({"prompt_tokens": count, "input_tokens": 7, "completion_tokens": 2, "cost": count})

    assert (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (7, 2, None)
