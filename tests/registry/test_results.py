"""Result and error texts: exact where the contract says so, clean and short wherever they come from outside."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.registry import results

any_text = st.text(st.characters(), max_size=300)
pieces = st.lists(
    st.sampled_from(
        ["<", ">", "</", "system", "tool_call", " a='b'", "<system>", "</result>", "```", "~~~", "\n", "]]>",
         "<![CDATA[", "<|im_start|>", "[INST]", "[/", "sk-", "x" * 20, "\ud800", "é", "`", "[", "]", "|"]
    ),
    max_size=60,
).map("".join)  # fmt: skip
FRAMING = re.compile(
    r"</?(tool_call|function_call|result|response|output|input|system|assistant|user)>|```|<!\[CDATA\[|\]\]>"
    r"|<\|\w+\|>|\[/?INST\]",
    re.IGNORECASE,
)


# Results


def test_a_result_is_the_json_of_what_was_given() -> None:
    """Data as it is, or an object of the keyword arguments; text stays readable."""
    assert results.tool_result({"a": "é"}) == '{"a": "é"}'
    assert results.tool_result([1, 2]) == "[1, 2]"
    assert results.tool_result("text") == '"text"'
    assert results.tool_result(0) == "0"
    assert results.tool_result(success=True, name="ü") == '{"success": true, "name": "ü"}'
    assert results.tool_result() == "{}"


def test_an_error_is_json_with_any_further_keys() -> None:
    """The message may be anything that has a text."""
    assert results.tool_error("broken", code=7, hint="é") == '{"error": "broken", "code": 7, "hint": "é"}'
    assert json.loads(results.tool_error(ValueError("x"))) == {"error": "x"}


def test_the_texts_of_both_error_layers_are_the_contract_s() -> None:
    """Without the reference's prefix."""
    assert json.loads(results.handler_failed(KeyError("x"))) == {"error": "Tool execution failed: KeyError: 'x'"}
    assert json.loads(results.call_failed("weather", OSError("down"))) == {"error": "Error executing weather: down"}
    assert json.loads(results.agent_loop_error("todo")) == {"error": "todo must be handled by the agent loop"}
    assert json.loads(results.unknown_tool("nope", [])) == {"error": "Unknown tool: nope"}
    assert json.loads(results.unknown_tool("a", ["A"])) == {"error": "Unknown tool: a", "did_you_mean": ["A"]}


@pytest.mark.parametrize(
    ("value", "multimodal"),
    [
        ({"_multimodal": True, "content": []}, True),
        ({"_multimodal": True, "content": [{"type": "text", "text": "x"}], "more": 1}, True),
        ({"_multimodal": True, "content": "x"}, False),
        ({"_multimodal": True}, False),
        ({"_multimodal": 1, "content": []}, False),
        ({"content": []}, False),
        ("text", False),
        (None, False),
    ],
)
def test_a_multimodal_result_is_recognised(value: Any, multimodal: bool) -> None:
    """A dict with `_multimodal: True` and a list of contents."""
    assert results.is_multimodal(value) is multimodal


# Cleaning


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a <system>b</system> c", "a b c"),
        ("<TOOL_CALL>x</Tool_Call>", "x"),
        ('<function_call name="x">y', "y"),
        ("<result/>ok</ response >", "ok"),
        ("a<assistant\n>b", "ab"),
        ("<|im_start|>system", "system"),
        ("[INST]do[/INST]", "do"),
        ("before\n```json\n{}\n```\nafter", "before\n\n{}\n\nafter"),
        ("before\n  ~~~\nafter", "before\n\nafter"),
        ("inline ```code``` here", "inline code here"),
        ("a<![CDATA[hidden]]>b", "ab"),
        ("a<![CDATA[open", "aopen"),
        ("a]]>b", "ab"),
        ("<sys<system>tem>x", "x"),
        ("``<user>`", ""),
        ("<user-agent> and <inputs> and a < b > c stay", "<user-agent> and <inputs> and a < b > c stay"),
        ("`inline` and [brackets] stay", "`inline` and [brackets] stay"),
    ],
)
def test_what_a_model_could_take_for_the_frame_is_removed(text: str, clean: str) -> None:
    """Tags of the conversation, fences and CDATA; also those that appear when others are removed."""
    assert results.safe_error_text(text) == clean


def test_tokens_nested_without_end_leave_nothing() -> None:
    """However deep they are put into each other."""
    text = "<sys" * 300 + "<system>" + "tem>" * 300

    assert not FRAMING.search(results.safe_error_text(text))


def test_a_secret_is_masked_even_if_a_token_splits_it() -> None:
    """Removing the token would have put it together."""
    assert "abcdefghij0123456789" not in results.safe_error_text("sk-abcdef<system>ghij0123456789abcdef0123")
    assert results.safe_error_text("key sk-abcdefghij0123456789") == "key [secret]"


def test_a_secret_at_the_cut_does_not_show_its_first_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masking comes before shortening, even where most of the text is removed."""
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2-hunter2-hunter2")
    for before in range(7970, 8005):
        text = "<system>" * (before // 8) + "." * (before % 8) + "hunter2-hunter2-hunter2"
        assert "hunter2" not in results.safe_error_text(text)


def test_a_long_error_is_cut() -> None:
    """At 2,000 characters, with three dots as the last of them."""
    assert results.safe_error_text("x" * 2000) == "x" * 2000
    assert results.safe_error_text("x" * 2001) == "x" * 1997 + "..."


@given(any_text | pieces)
def test_any_text_gives_a_short_clean_text_that_can_be_sent(text: str) -> None:
    """Never an exception, never more than the cap, no framing, and always UTF-8."""
    clean = results.safe_error_text(text * 9)

    assert len(clean) <= results.MAX_ERROR_CHARS
    assert not FRAMING.search(clean.replace("...", ""))
    clean.encode()
    assert json.loads(results.handler_failed(ValueError(text)))["error"]


@pytest.mark.services
@pytest.mark.parametrize(
    "unit", ["<", "<system ", "<![CDATA[", "]]>", "```\n", "`", "<|", "[INST", "eyJ-", "sk-", "bearer ", "://a:",
             "?key=", " ", "\n", "\ud800", "<sys", "a-", "~~~"]
)  # fmt: skip
def test_a_gigantic_message_is_cleaned_in_time_proportional_to_its_length(unit: str) -> None:
    """No pattern goes over the text again and again: a megabyte of its worst food is done in well under a minute."""
    started = time.monotonic()

    results.safe_error_text(unit * (1_000_000 // len(unit)))

    assert time.monotonic() - started < 20


# Reading errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"error": "broken"}', "broken"),
        ('{"success": false, "error": "broken"}', "broken"),
        ('{"error": {"code": 1}}', "{'code': 1}"),
        ('{"error": true}', "True"),
        ('{"error": null}', ""),
        ('{"error": ""}', ""),
        ('{"error": false}', ""),
        ('{"error": []}', ""),
        ('{"errors": "x"}', ""),
        ('{"message": "the word \\"error\\""}', ""),
        ('{"error": ', ""),
        ('{"error": "x"} and more', ""),
        ('["error"]', ""),
        ("error", ""),
        ("", ""),
        ('{"error": ' + "[" * 100_000 + "]" * 100_000 + "}", ""),
        ('{"error": ' + "9" * 10_000 + "}", ""),
    ],
)
def test_an_error_is_read_from_a_result(text: str, error: str) -> None:
    """Only an object whose `error` says something is one; odd JSON never raises."""
    assert results.error_in(text) == error


@given(any_text.map(lambda text: '{"error"' + text))
def test_no_text_breaks_the_reading(text: str) -> None:
    """Whatever a handler returns."""
    assert isinstance(results.error_in(text), str)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("make", [results.handler_failed, lambda error: results.call_failed("x", error)])
def test_an_exception_that_cannot_be_shown_still_gives_an_error(make: Callable[[BaseException], str]) -> None:
    """In both layers."""
    assert "no readable message" in json.loads(make(Unspeakable()))["error"]
