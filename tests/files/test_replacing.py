"""Replacing a text that occurs once, or each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.files.patching import NoMatch, SeveralMatches, replaced
from toolcrib.files.text_files import TextFile

small = st.text(st.sampled_from("ab\n"), max_size=12)


@given(small, small.filter(bool), small)
def test_every_match_is_replaced_as_str_replace_does_it(text: str, old: str, new: str) -> None:
    """With replace_all the result is that of `str.replace`, and the count that of `str.count`."""
    if old not in text:
        with pytest.raises(NoMatch):
            replaced(TextFile(text), old, new, replace_all=True)
        return
    changed, count = replaced(TextFile(text), old, new, replace_all=True)
    assert changed.raw == text.replace(old, new)
    assert count == text.count(old)


@given(small, small.filter(bool), small)
def test_only_a_single_match_is_replaced(text: str, old: str, new: str) -> None:
    """Without replace_all there must be one place, overlapping ones counted."""
    places = [at for at in range(len(text)) if text.startswith(old, at)]
    if len(places) == 1:
        assert replaced(TextFile(text), old, new, replace_all=False)[0].raw == text.replace(old, new)
    else:
        with pytest.raises(SeveralMatches if places else NoMatch):
            replaced(TextFile(text), old, new, replace_all=False)


@given(small, small.filter(bool), small)
def test_windows_line_ends_make_no_difference(text: str, old: str, new: str) -> None:
    """The same edit of a file with CRLF gives the same text with CRLF."""
    if "\n" not in text or old not in text:
        return
    changed, _ = replaced(TextFile(text.replace("\n", "\r\n")), old, new, replace_all=True)
    assert changed.raw == text.replace(old, new).replace("\n", "\r\n")


def test_lines_that_stay_keep_their_line_ends() -> None:
    """What old and new have in common at their ends is not touched in a file with mixed line ends."""
    file = TextFile("one\r\ntwo\nthree\r\nfour\n")

    changed, _ = replaced(file, "one\ntwo\nthree\n", "one\n2\nthree\n", replace_all=False)

    assert changed.raw == "one\r\n2\nthree\r\nfour\n"


def test_several_matches_are_named_by_their_lines() -> None:
    """The error lists the lines, and no more than ten."""
    with pytest.raises(SeveralMatches, match=r"occurs 2 times \(lines 1, 3\)"):
        replaced(TextFile("x\ny\nx\n"), "x", "z", replace_all=False)
    with pytest.raises(SeveralMatches, match="more than 10 times"):
        replaced(TextFile("x\n" * 50), "x", "z", replace_all=False)
