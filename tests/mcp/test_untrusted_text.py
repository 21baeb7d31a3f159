"""What is hidden in texts of servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.mcp.client.untrusted_text import one_line, shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain text\nwith lines\tand tabs\r\n", "plain text\nwith lines\tand tabs\r\n"),
        ("a\u200bb", "a\\u200bb"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0041", "\\U000e0041"),
        ("a\x1b[2J", "a\\x1b[2J"),
        ("overwritten\rnew", "overwritten\\x0dnew"),
        ("a\u200db", "a\\u200db"),
        ("a\ufe01\ufe02", "a\\ufe01\\ufe02"),
        ("\ud800", "\\ud800"),
        (
            "👨\u200d👩 می\u200cخواهم ❤\ufe0f 1\ufe0f\u20e3 naïve",
            "👨\u200d👩 می\u200cخواهم ❤\ufe0f 1\ufe0f\u20e3 naïve",
        ),
    ],
)
def test_hidden_characters_are_written_as_escapes(text: str, seen: str) -> None:
    """What people cannot see is spelled out; what writing needs stays."""
    assert shown(text) == seen


@given(st.text())
def test_what_is_shown_can_be_sent_and_is_shown_the_same_again(text: str) -> None:
    """No text breaks it, and doing it twice changes nothing."""
    once = shown(text)

    once.encode()
    assert shown(once) == once


def test_a_long_text_becomes_one_short_line() -> None:
    """For people a text is one line, and not too long."""
    assert one_line("a\n b\n" * 100, 20) == "a b a b a b a b a b…"
