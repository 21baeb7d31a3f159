"""Search patterns without ripgrep: Python's pattern language, one line at a time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.ignore_rules import IgnoreFile
from toolcrib.files.search_query import GlobError, PatternError, path_test, shorten_line
from toolcrib.files.search_worker import ContentSearch, required_text


def matching(pattern: str, content: str | bytes) -> list[int]:
    data = content.encode() if isinstance(content, str) else content
    found = ContentSearch(pattern).matches([data])
    return [line for line, _ in found.at] if found else []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a(b", "unterminated subpattern"),
        ("a)b", "unbalanced parenthesis"),
        ("[a", "unterminated character set"),
        ("*a", "nothing to repeat"),
        ("a**", "multiple repeat"),
        ("a{3,2}", "min repeat greater than max repeat"),
        ("[z-a]", "bad character range"),
        (r"\p{Lu}", r"bad escape \p"),
        ("a\\", "bad escape"),
        (r"(?<=a*)b", "look-behind requires fixed-width pattern"),
    ],
)
def test_a_pattern_that_python_refuses_is_an_error_with_its_reason(pattern: str, reason: str) -> None:
    """The error repeats what Python says, and how to search for the text as it is."""
    with pytest.raises(PatternError) as caught:
        ContentSearch(pattern)

    assert reason in str(caught.value)
    assert "literally" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "content", "lines"),
    [
        (r"\${name}", "${name}\n", [1]),
        ("interface{}", "interface{}\n", [1]),
        ("if (x) {", "if x {\n", [1]),
        ("a{,2}b", "b\naab\n", [1, 2]),
        ("^$", "a\n\nb\n\r\n", [2, 4]),
        ("a$", "a\r\nab\na", [1, 3]),
        ("x*", "a\n\nb", [1, 2, 3]),
        (r"\d", "٣\n½\n", [1]),
        (r"\bär\b", "ein ärger\nein är.\n", [2]),
        ("(?i)straSSE", "STRASSE\nstraße\n", [1]),
        ("(?i)GRÖSSE", "grösse\n", [1]),
        ("(?i)k", "\u212a\n", [1]),
        ("(?i:a)b", "Ab\nAB\n", [1]),
        ("[^a]", "a\nä\n", [2]),
        ("a.b", "aäb\n", [1]),
        (r"\Aa\Z", "a\nba\na\n", [1, 3]),
        ("a|", "b\n", [1]),
        (r"a(?=b)", "ac\nab\n", [2]),
        (r"(?<!x)a", "xa\nya\n", [2]),
        (r"(.)\1", "ab\nbb\n", [2]),
        (r"foo\s+bar", "foo\nbar\nfoo bar\n", [3]),
        (r"a[^b]*c", "a\nc\na-c\n", [3]),
        (r"a\nb", "a\nb\n", []),
        (r"a[\x00-\x7f]b|b", "a\nb\n", [2]),
        ("(?s)a.b", "a\nb\naxb\n", [3]),
        (r"a[^b]*+$", "a\n\nb\n", [1]),
    ],
)
def test_patterns_are_pythons_and_match_within_one_line(pattern: str, content: str, lines: list[int]) -> None:
    """Python's rules apply, lookaround and backreferences included; no match crosses a line break."""
    assert matching(pattern, content) == lines


@given(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_escaped_text_is_found_as_it_is(text: str) -> None:
    """With a backslash before every special character, any text is searched for literally."""
    pattern = "".join(f"\\{one}" if one in ".^$*+?()[]{}|\\" else one for one in text)
    # Behind a carriage return there would be a line end.
    line = text.replace("\r", " ")
    pattern = pattern.replace("\r", " ")

    assert matching(pattern, f"\n{line}\n") == [2]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("needle", "needle"),
        (r"\w+ = \d+$", " = "),
        (r"foo\(bar", "foo(bar"),
        ("colou?r", "colo"),
        ("ab+c", "ab"),
        ("ab*c", "a"),
        ("a{2}bc", "bc"),
        ("interface{}", "interfac"),
        ("[abc]de", "de"),
        ("foo|bar", ""),
        ("(foo)?bar", ""),
        (r"\bclass\b", "class"),
    ],
)
def test_text_that_every_match_contains_is_found(pattern: str, text: str) -> None:
    """Files without this text need no search; in doubt it is empty, and all are searched."""
    assert required_text(pattern) == text


ATOMS = [
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    "a*",
    "b+?",
    "(a|b)",
    r"\w",
    r"\s",
    r"\b",
    "^",
    "$",
    "x?",
    "(?=b)",
    "(?i)",
    r"\n",
    "b++",
]


@given(
    st.lists(st.sampled_from(ATOMS), min_size=1, max_size=4).map("".join),
    st.lists(st.text("abx \t", max_size=4), min_size=1, max_size=6),
)
def test_lines_match_among_others_as_they_do_alone(pattern: str, lines: list[str]) -> None:
    """However many lines are searched at once, the answer is that of `re.search` on each of them."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return
    alone = [number for number, line in enumerate(lines, 1) if compiled.search(line)]

    assert matching(pattern, "\n".join([*lines, ""])) == alone


@given(st.text("aä\U0001f600 ", max_size=1500), st.integers(0, 1500))
def test_a_shown_line_is_short_and_holds_its_match(text: str, at: int) -> None:
    """A cut line shows where the match starts, and never much more than it may."""
    before, after = text[:at], text[at:]

    line = shorten_line(f"{before}#{after}\n".encode(), len(before.encode()))

    assert "#" in line
    assert len(line) <= 502
    assert line.strip("…") in f"{before}#{after}"


@pytest.mark.parametrize(
    ("rules", "path", "expected"),
    [
        ("*.o", "a/b.o", True),
        ("*.o\n!b.o", "a/b.o", False),
        ("/b.o", "a/b.o", None),
        ("build/", "a/build/", True),
        ("build/", "a/build", None),
        ("build/", "build/x", None),
        ("a/**", "a/b/c", True),
        ("a/**", "a/", None),
        ("a/**/c", "a/c", True),
        ("**", "c.d", True),
        ("*", ".gitignore", True),
        ("/*", "a/", True),
        ("**/", "a/b/", True),
        ("**/", "a/b", None),
        ("**/c", "c", True),
        ("a*c", "abc", True),
        ("a*c", "a/c", None),
        ("{a,b}.py", "b.py", None),
        ("{a,b}.py", "{a,b}.py", True),
        ("[!a].py", "b.py", True),
        ("[z-a].py\n*.c", "b.c", True),
        ("\\!a", "!a", True),
        ("\\#a", "#a", True),
        ("a\\ ", "a ", True),
        ("a ", "a", True),
        ("# a", "# a", None),
        ("?.py", "a.py", True),
        ("x.tar.gz", "x.tar.gz", True),
        ("*.tar.gz\r\n", "x.tar.gz", True),
    ],
)
def test_rules_of_ignore_files_are_those_of_git(rules: str, path: str, expected: bool | None) -> None:
    """The last matching rule decides, malformed rules don't count, and braces are ordinary characters."""
    assert IgnoreFile(rules.encode()).decides(path.encode()) is expected


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("*.py", "lib/a.py", True),
        ("*.py", "a.py/b", False),
        ("lib/*", "lib/a", True),
        ("lib/*", "lib/a/b", False),
        ("lib/*.py", "lib/a.py/b", False),
        ("./lib/**/b", "lib/b", True),
        ("lib/", "lib/a/b", True),
        ("lib/**", "lib", False),
        ("**/*.{py,ts}", "a/b.ts", True),
        ("{a,b{1,2}}.c", "b2.c", True),
        ("\\{a\\}", "{a}", True),
        ("#a", "#a", True),
        ("!*.py", "a.ts", True),
        ("**", "a/b", True),
    ],
)
def test_globs_match_names_or_whole_paths(glob: str, path: str, fits: bool) -> None:
    """Without a slash a glob is about names; a star stops at slashes; braces list alternatives."""
    assert path_test(glob)(path.encode()) is fits


@pytest.mark.parametrize(
    ("glob", "reason"),
    [
        ("*.{py", "unmatched {"),
        ("a}", "unmatched }"),
        ("*" * 13, "stars"),
        ("{a,b}" * 9, "more than 256"),
        ("[z-a]", "well"),
    ],
)
def test_a_malformed_glob_is_an_error(glob: str, reason: str) -> None:
    """The error says what is wrong with the glob."""
    with pytest.raises(GlobError, match=reason):
        path_test(glob)
