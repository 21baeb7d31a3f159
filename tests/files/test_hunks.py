"""Hunks in files: each at its one place, in their order, or nowhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.files.hunks import HunkMismatch, with_hunks
from toolcrib.files.patch_parsing import parse_patch
from toolcrib.files.text_files import TextFile


def apply(text: str, *lines: str) -> str:
    """The text with a V4A update of these lines."""
    patch = "\n".join(["*** Begin Patch", "*** Update File: f", *lines, "*** End Patch"])
    return with_hunks(TextFile(text), parse_patch(patch)[0].hunks).raw


def unified(text: str, *lines: str) -> str:
    return with_hunks(TextFile(text), parse_patch("\n".join(["--- a/f", "+++ b/f", *lines]))[0].hunks).raw


def misfit(text: str, *lines: str) -> str:
    with pytest.raises(HunkMismatch) as caught:
        apply(text, *lines)
    return str(caught.value)


def test_a_hunk_is_applied_where_its_lines_stand() -> None:
    """Context and removed lines together decide the place."""
    assert apply("a\nb\nc\nb\n", "@@", " c", "-b", "+B") == "a\nb\nc\nB\n"


def test_hunks_are_applied_in_their_order() -> None:
    """Where a hunk fits twice, its neighbours decide, if that leaves one way."""
    text = "x\nmiddle\nx\n"

    assert apply(text, "@@", "-x", "+1", "@@", "-x", "+2") == "1\nmiddle\n2\n"
    assert apply(text, "@@", "-middle", "+m", "@@", "-x", "+2") == "x\nm\n2\n"
    assert apply(text, "@@", "-x", "+1", "@@", "-middle", "+m") == "1\nm\nx\n"


def test_an_ambiguous_hunk_is_refused_with_its_places() -> None:
    """A hunk that fits at two places is applied at none."""
    assert "hunk 1: its lines match in several places (lines 1, 3)" in misfit("x\ny\nx\n", "@@", "-x", "+z")


def test_hunks_against_the_order_of_the_file_are_refused() -> None:
    """A later hunk does not fit above an earlier one."""
    assert "the order of the file" in misfit("a\nb\n", "@@", "-b", "+B", "@@", "-a", "+A")


CLASSES = "class A:\n    def f(self):\n        x = 1\n\nclass B:\n    def f(self):\n        x = 1\n"


@pytest.mark.parametrize(
    ("headings", "line"), [(("@@ class A:",), 2), (("@@ class B:",), 6), (("@@ class A:", "@@     def f(self):"), 2)]
)
def test_headings_choose_among_equal_places(headings: tuple[str, ...], line: int) -> None:
    """A hunk below a heading belongs to the part that this line heads, by its indentation."""
    lines = CLASSES.split("\n")
    lines[line] = "        x = 2"

    assert apply(CLASSES, *headings, "-        x = 1", "+        x = 2") == "\n".join(lines)


def test_a_heading_that_is_twice_in_the_file_does_not_choose() -> None:
    """Two equal headings with equal lines below them are ambiguous."""
    assert "several places" in misfit(CLASSES, "@@     def f(self):", "-        x = 1", "+        x = 2")


def test_a_heading_that_is_not_there_is_refused() -> None:
    """The lines fit, but not below such a line: something else is meant."""
    assert "not below 'class C:'" in misfit("class A:\n    x = 1\n", "@@ class C:", "-    x = 1", "+    x = 2")


def test_lines_are_only_added_where_a_place_is_named() -> None:
    """A hunk without old lines goes below its heading, to the end, or into an empty file, and nowhere else."""
    assert apply("a\nb\n", "@@ a", "+new") == "a\nnew\nb\n"
    assert apply("a\nb\n", "@@", "+new", "*** End of File") == "a\nb\nnew\n"
    assert apply("", "@@", "+new") == "new\n"
    assert unified("a\nb\n", "@@ -1,0 +2 @@", "+new") == "a\nnew\nb\n"
    assert "does not say where" in misfit("a\nb\n", "@@", "+new")


def test_end_of_file_chooses_the_last_of_equal_places() -> None:
    """With the mark the old lines are the last ones of the file."""
    assert apply("x\ny\nx\n", "@@", "-x", "+z", "*** End of File") == "x\ny\nz\n"
    assert "not at the end" in misfit("x\ny\n", "@@", "-x", "+z", "*** End of File")


def test_line_numbers_choose_among_equal_places_and_are_else_ignored() -> None:
    """A number that names a place where the hunk fits decides; one that is off does not matter."""
    assert unified("x\ny\nx\n", "@@ -3 +3 @@", "-x", "+z") == "x\ny\nz\n"
    assert unified("a\nb\n", "@@ -70 +70 @@", "-b", "+B") == "a\nB\n"
    with pytest.raises(HunkMismatch):
        unified("x\ny\nx\n", "@@ -2 +2 @@", "-x", "+z")


@pytest.mark.parametrize(
    ("text", "lines", "new"),
    [
        ("a\nb", ("@@", "-b", "+c"), "a\nc"),
        ("a\nb", ("@@", " b", "+c"), "a\nb\nc"),
        ("a\nb", ("@@", "-b"), "a\n"),
        ("a\nb", ("@@", "-a", "+A"), "A\nb"),
        ("a\nb\n", ("@@", "-b", "+c"), "a\nc\n"),
        ("a", ("@@", "-a"), ""),
        ("a\r\nb", ("@@", " b", "+c"), "a\r\nb\r\nc"),
    ],
)
def test_a_missing_last_line_end_stays_missing(text: str, lines: tuple[str, ...], new: str) -> None:
    """V4A cannot say it, so the end of the file stays as it was; lines that stay keep their ends."""
    assert apply(text, *lines) == new


@pytest.mark.parametrize(
    ("text", "lines", "new"),
    [
        ("a\nb", ("-b", "\\ No newline at end of file", "+b"), "a\nb\n"),
        ("a\nb\n", ("-b", "+b", "\\ No newline at end of file"), "a\nb"),
        ("a\nb", ("-b", "\\ No newline at end of file", "+c", "\\ No newline at end of file"), "a\nc"),
        ("a\nb", (" a", " b", "\\ No newline at end of file"), None),
    ],
)
def test_a_unified_diff_says_how_the_file_ends(text: str, lines: tuple[str, ...], new: str | None) -> None:
    """`No newline at end of file` is taken at its word."""
    if new is None:
        lines = ("-a", "+A", *lines[1:])
        new = "A\nb"
    assert unified(text, "@@ -1,2 +1,2 @@", *lines) == new


def test_mixed_line_ends_stay_where_they_are() -> None:
    """Context keeps its line ends; a new line takes that of the line that it replaces."""
    assert apply("a\r\nb\nc\r\nd\n", "@@", " a", "-b", "+B", " c", "-d", "+D") == "a\r\nB\nc\r\nD\n"
    assert apply("a\r\nb\r\nc\n", "@@", " b", "+new") == "a\r\nb\r\nnew\r\nc\n"


def test_every_hunk_that_does_not_fit_is_named_with_a_near_match() -> None:
    """All failures are told at once, so that one more try is enough."""
    with pytest.raises(HunkMismatch) as caught:
        apply("def one():\n\treturn 1\n\ndef two():\n\treturn 2\n", "@@", "-    return 1", "@@", "-    return 2")

    assert [one.hunk for one in caught.value.misfits] == [1, 2]
    assert [one.near[0].first_line for one in caught.value.misfits] == [2, 5]


lines_of_text = st.lists(st.sampled_from(["a", "b", "c", "", "  a", "x y"]), max_size=12)


@given(lines_of_text, lines_of_text, st.booleans(), st.booleans())
def test_a_real_diff_gives_the_new_text(old: list[str], new: list[str], is_open: bool, becomes_open: bool) -> None:
    """What difflib writes is applied to exactly the text that it was made from."""
    before, after = _text(old, is_open), _text(new, becomes_open)
    diff = list(_marked(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/f", "b/f", n=3)))
    if not diff:
        return

    changed = with_hunks(TextFile(before), parse_patch("".join(diff))[0].hunks)

    assert changed.raw == after


@given(lines_of_text, lines_of_text)
def test_a_real_diff_fits_a_file_with_windows_line_ends(old: list[str], new: list[str]) -> None:
    """The same diff of a file with CRLF gives the new text with CRLF."""
    before, after = _text(old, False), _text(new, False)
    diff = list(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/f", "b/f", n=3))
    if not diff or not before:
        return

    changed = with_hunks(TextFile(before.replace("\n", "\r\n")), parse_patch("".join(diff))[0].hunks)

    assert changed.raw == after.replace("\n", "\r\n")


def _text(lines: list[str], is_open: bool) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return text.removesuffix("\n") if is_open and lines and lines[-1] else text


def _marked(lines: object) -> object:
    for line in lines:  # type: ignore[attr-defined]
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


short_lines = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=8)


@given(short_lines, st.lists(st.tuples(st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=2)), max_size=3))
def test_hunks_are_applied_exactly_where_there_is_one_way(lines: list[str], olds: list[tuple[list[str]]]) -> None:
    """Of all ways to put the hunks into the file in order, there must be one; then that one is taken."""
    blocks = [old for (old,) in olds]
    patch = [line for number, old in enumerate(blocks) for line in ("@@", *(f"-{one}" for one in old), f"+{number}")]
    ways = list(_ways(lines, blocks, 0))
    if not blocks:
        return

    text = "".join(f"{line}\n" for line in lines)
    if len(ways) != 1:
        misfit(text, *patch)
        return
    expected, at = "", 0
    for number, (start, old) in enumerate(zip(ways[0], blocks, strict=True)):
        expected += "".join(f"{line}\n" for line in lines[at:start]) + f"{number}\n"
        at = start + len(old)
    assert apply(text, *patch) == expected + "".join(f"{line}\n" for line in lines[at:])


def _ways(lines: list[str], blocks: list[list[str]], free: int) -> Iterator[list[int]]:
    if not blocks:
        yield []
        return
    for start in range(free, len(lines) - len(blocks[0]) + 1):
        if lines[start : start + len(blocks[0])] == blocks[0]:
            for rest in _ways(lines, blocks[1:], start + len(blocks[0])):
                yield [start, *rest]


def test_too_many_hunks_for_a_large_file_are_refused() -> None:
    """Each hunk is looked for in the whole file, so their number has a limit."""
    hunks = [line for number in range(3_000) for line in ("@@", f"-{number}")]

    assert "too many hunks" in misfit("x" * 1_000_000, *hunks)


def test_equal_lines_without_end_are_ambiguous_and_quickly_so() -> None:
    """A block that fits nearly everywhere in a large file is refused after a bounded number of places."""
    assert "several places" in misfit("x\n" * 300_000, "@@", *["-x"] * 1000)


def test_hunks_may_share_lines_of_context() -> None:
    """What one hunk ends with may be what the next one begins with, as long as neither changes it."""
    text = "a\nb\nc\nd\ne\n"

    assert apply(text, "@@", "-b", "+B", " c", " d", "@@", " c", " d", "-e", "+E") == "a\nB\nc\nd\nE\n"
    assert apply("a\nb\na\nb\na\n", "@@", " a", "-b", "+1", " a", "@@", " a", "-b", "+2", " a") == "a\n1\na\n2\na\n"
    assert "join the two" in misfit(text, "@@", "-b", "+B", " c", "@@", "-c", "+C")
    assert "join the two" in misfit(text, "@@", " a", "+1", "@@", " a", "+2")


def test_a_heading_may_lack_its_end() -> None:
    """Where lines of context tell the place, too; a place to add lines must be named in full."""
    changed = apply(CLASSES, "@@ class B", "-        x = 1", "+        x = 2")

    assert changed == CLASSES[: CLASSES.rindex("1")] + "2\n"
    assert "no line is 'class B'" in misfit(CLASSES, "@@ class B", "+    y = 1")


def test_a_file_with_cr_line_ends_keeps_them() -> None:
    """Its lines are found and written as those of any other file."""
    assert apply("a\rb\rc", "@@", " a", "-b", "+B", "+x") == "a\rB\rx\rc"
