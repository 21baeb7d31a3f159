"""The diffs in answers: right, and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.files import editing
from toolcrib.files.editing import DiffTooLarge, unified_diff
from toolcrib.files.hunks import with_hunks
from toolcrib.files.patch_parsing import parse_patch
from toolcrib.files.text_files import TextFile

some_lines = st.lists(st.sampled_from(["a", "b", "c", "", "d d"]), max_size=15)


@given(some_lines, some_lines, st.sampled_from(["", "end"]), st.sampled_from(["", "end"]))
def test_a_diff_can_be_applied(old: list[str], new: list[str], old_end: str, new_end: str) -> None:
    """Our own parser makes the new text of the old one and the diff."""
    before = "".join(f"{line}\n" for line in old) + old_end
    after = "".join(f"{line}\n" for line in new) + new_end
    diff = unified_diff(before, after, "f")

    assert bool(diff) == (before != after)
    if diff:
        assert with_hunks(TextFile(before), parse_patch(diff)[0].hunks).raw == after


def test_new_and_removed_files_are_told_by_their_names() -> None:
    """The missing side is /dev/null, an empty file included."""
    assert unified_diff(None, "a\n", "f") == "--- /dev/null\n+++ b/f\n@@ -0,0 +1,1 @@\n+a\n"
    assert unified_diff("a\n", None, "f") == "--- a/f\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-a\n"
    assert unified_diff(None, "", "f") == "--- /dev/null\n+++ b/f\n"


def test_a_small_change_in_a_large_file_is_a_small_diff() -> None:
    """Only the changed lines and three around them are shown, with their numbers."""
    before = "".join(f"line {number}\n" for number in range(50_000))

    diff = unified_diff(before, before.replace("line 40000\n", "changed\n"), "f")

    assert diff.splitlines()[2:] == [
        "@@ -39998,7 +39998,7 @@",
        *(f" line {number}" for number in (39997, 39998, 39999)),
        "-line 40000",
        "+changed",
        *(f" line {number}" for number in (40001, 40002, 40003)),
    ]


@pytest.mark.services
@pytest.mark.parametrize("line", ["x", "x" * 10_000])
def test_a_long_diff_is_cut(line: str) -> None:
    """A diff never fills the context of a model; it says how much is missing."""
    diff = unified_diff("", f"{line}\n" * (300_000 // len(line) // 2), "f")

    assert len(diff) <= editing.MAX_CHARS + 2 * editing.MAX_LINE_CHARS
    assert diff.rstrip().endswith("more lines")


def test_very_different_large_files_are_not_compared_line_by_line() -> None:
    """Beyond a number of comparisons the change is one block."""
    before = "".join(f"a {number}\n" for number in range(15_000))
    after = "".join(f"b {number}\n" for number in range(15_000))

    assert "@@ -1,15000 +1,15000 @@" in unified_diff(before, after, "f")


def test_a_change_that_is_too_long_is_not_compared() -> None:
    """A diff of hundreds of kilobytes would take longer than the write, and nobody would see most of it."""
    with pytest.raises(DiffTooLarge):
        unified_diff(None, "a line\n" * 100_000, "f")


@pytest.mark.parametrize("line", [0, 1, 101, 102, 103, 306, 307, 308, 998, 999])
def test_one_changed_line_of_a_long_text_is_found_wherever_it_is(line: int) -> None:
    """Only the changed line and its context are in the diff, also where the comparison takes larger steps."""
    old = [f"line {number:04}" for number in range(1000)]
    new = [*old[:line], "changed", *old[line + 1 :]]

    diff = unified_diff("\n".join(old) + "\n", "\n".join(new) + "\n", "f").splitlines()[3:]

    assert [shown for shown in diff if not shown.startswith(" ")] == [f"-{old[line]}", "+changed"]
    assert len(diff) <= 2 + 2 * editing.CONTEXT_LINES
