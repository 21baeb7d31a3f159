"""The dialect of search patterns: what is read, what is refused, and that Python and people mean the same by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.files.search_content import ContentSearch, shown
from toolcrib.files.search_dialects import for_ripgrep, matcher
from toolcrib.files.search_patterns import PatternError, parse


def matching(pattern: str, content: str | bytes) -> list[int]:
    data = content.encode() if isinstance(content, str) else content
    hits = ContentSearch(matcher(pattern)).small(data, 0, 1000)
    return [line for line, _ in hits.at] if hits else []


@pytest.mark.parametrize(
    ("pattern", "character", "why"),
    [
        ("a(?=b)", 2, "lookahead"),
        ("(?<!b)a", 1, "lookbehind"),
        (r"(a)\1", 4, "backreferences"),
        (r"(?P=a)", 1, "backreferences"),
        ("a(b", 2, "without a closing"),
        ("a)b", 2, "without an opening"),
        ("[a", 1, "without a closing"),
        ("*a", 1, "nothing to repeat"),
        ("^*", 1, "nothing to repeat"),
        ("a**", 3, "a repetition of a repetition"),
        ("a{2}{3}", 5, "a repetition of a repetition"),
        ("a{3,2}", 1, "larger number first"),
        ("a{5000}", 1, "more than 1000"),
        ("[z-a]", 2, "range"),
        ("[a&&b]", 3, "set operations"),
        (r"\p{Greek}", 1, "categories"),
        ("[[:nonsense:]]", 2, "no class"),
        (r"a\nb", 2, "line by line"),
        ("a\nb", 2, "line by line"),
        ("a\\", 2, "backslash at the end"),
        ("(?x)a", 3, "flags"),
        (r"\<a", 1, r"\b"),
        (r"\q", 1, "not known"),
        (r"\x4", 1, "number"),
        (r"\ud800", 1, "no character"),
    ],
)
def test_what_the_engines_do_not_share_is_refused_with_its_place(pattern: str, character: int, why: str) -> None:
    """An error names the character, the reason, and how to search for the text as it is."""
    with pytest.raises(PatternError) as caught:
        parse(pattern)

    assert f"at character {character}: " in str(caught.value)
    assert why in str(caught.value)
    assert "literally" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "content", "lines"),
    [
        ("${name}", "${name}\n", []),
        (r"\${name}", "${name}\n", [1]),
        ("interface{}", "interface{}\n", [1]),
        ("if (x) {", "if x {\n", [1]),
        ("a{,2}b", "b\naab\n", [1, 2]),
        ("^$", "a\n\nb\n\r\n", [2, 4]),
        ("a$", "a\r\nab\na", [1, 3]),
        ("x*", "a\n\nb", [1, 2, 3]),
        (r"\d", "٣\n½\n", [1]),
        (r"^\w$", "ä\n½\n_\n\u0308\n-\n", [1, 3, 4]),
        (r"^\s$", "\u00a0\n\x1c\n\t\n", [1, 3]),
        (r"\bär\b", "ein ärger\nein är.\n", [2]),
        ("(?i)straSSE", "STRASSE\nstraße\n", [1]),
        ("(?i)GRÖSSE", "grösse\n", [1]),
        ("(?i)k", "\u212a\n", [1]),
        ("(?i)i", "ı\nİ\nI\n", [3]),
        ("(?i:a)b", "Ab\nAB\n", [1]),
        ("[^a]", "a\nä\n", [2]),
        ("a.b", "aäb\n", [1]),
        ("[[:upper:]]", "a\nA\nÄ\n", [2]),
        (r"\p{Lu}", "a\nA\nÄ\n", [2, 3]),
        (r"\Aa\z", "a\nba\n", [1]),
        ("[[]", "[\n", [1]),
        ("a|", "b\n", [1]),
        (r"\x{e4}\u00f6", "äö\n", [1]),
    ],
)
def test_patterns_mean_what_ripgrep_means(pattern: str, content: str, lines: list[int]) -> None:
    """Unicode classes, one case for another, line ends and braces are those of ripgrep."""
    assert matching(pattern, content) == lines


def test_bytes_that_are_no_text_are_no_characters() -> None:
    """A dot matches characters, not broken bytes."""
    assert matching("a.b", b"a\xffb\na\xc3\xa4b\n") == [2]


@given(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_escaped_text_is_found_as_it_is(text: str) -> None:
    """With a backslash before every special character, any text is searched for literally."""
    pattern = "".join(f"\\{one}" if one in ".^$*+?()[]{}|\\" else one for one in text)

    assert matching(pattern, f"\n{text}\n") == [2]


@given(st.text(max_size=30))
def test_any_pattern_is_read_or_refused(pattern: str) -> None:
    """Whatever a model writes, it is understood for all engines, or refused with a reason."""
    try:
        found = matcher(pattern)
    except PatternError:
        return
    assert isinstance(for_ripgrep(pattern), str)
    found.in_bytes.search(b"some text")
    found.in_text.search("some text")


@given(st.text("aä\U0001f600 ", max_size=1500), st.integers(0, 1500))
def test_a_shown_line_is_short_and_holds_its_match(text: str, at: int) -> None:
    """A cut line shows where the match starts, and never much more than it may."""
    before, after = text[:at], text[at:]

    line = shown(f"{before}#{after}\n".encode(), len(before.encode()))

    assert "#" in line
    assert len(line) <= 502
    assert line.strip("…") in f"{before}#{after}"
