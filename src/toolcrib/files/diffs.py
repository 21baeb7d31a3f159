"""Unified diffs for people and models: bounded in work and in length."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CONTEXT_LINES = 3
MAX_LINES = 80
MAX_CHARS = 6_000
MAX_LINE_CHARS = 500
MAX_COMPARED = 4_000_000
"""How many pairs of lines are compared at most; what is larger is shown as one block."""
NO_LINE_END = "\n\\ No newline at end of file"


def unified_diff(old: str | None, new: str | None, name: str, moved_to: str = "") -> str:
    """What changed between two texts with LF line ends, cut where it is long; None means that there is no file.

    Empty where nothing changed. `moved_to` is for a file that was moved.
    """
    before, after = _lines(old or ""), _lines(new or "")
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    old_name = "/dev/null" if old is None else f"a/{name.lstrip('/')}"
    new_name = "/dev/null" if new is None else f"b/{(moved_to or name).lstrip('/')}"
    if head == len(before) == len(after):
        is_same = (old is None) == (new is None) and not moved_to
        return "" if is_same else f"--- {old_name}\n+++ {new_name}\n"
    start = max(0, head - CONTEXT_LINES)
    before = before[start : len(before) - max(0, tail - CONTEXT_LINES)]
    after = after[start : len(after) - max(0, tail - CONTEXT_LINES)]
    if len(before) * len(after) <= MAX_COMPARED:
        shown: Iterable[str] = _hunks(before, after, start)
    else:
        shown = _one_block(before, after, start, head - start, min(tail, CONTEXT_LINES))
    return "\n".join([f"--- {old_name}", f"+++ {new_name}", *_cut(shown)]) + "\n"


def _lines(text: str) -> list[str]:
    """The lines without their ends; a last one without an end says so, and differs from one that has an end."""
    lines = text.split("\n")
    if lines[-1]:
        return [*lines[:-1], lines[-1] + NO_LINE_END]
    return lines[:-1]


def _common(one: list[str], other: list[str]) -> int:
    """How many lines at the beginning are the same."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _hunks(before: list[str], after: list[str], start: int) -> Iterable[str]:
    for group in difflib.SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT_LINES):
        first, last = group[0], group[-1]
        yield _heading(start, first[1], last[2], first[3], last[4])
        for kind, old_from, old_to, new_from, new_to in group:
            if kind == "equal":
                yield from (f" {line}" for line in before[old_from:old_to])
                continue
            yield from (f"-{line}" for line in before[old_from:old_to])
            yield from (f"+{line}" for line in after[new_from:new_to])


def _one_block(before: list[str], after: list[str], start: int, head: int, tail: int) -> Iterable[str]:
    yield _heading(start, 0, len(before), 0, len(after))
    yield from (f" {line}" for line in before[:head])
    yield from (f"-{line}" for line in before[head : len(before) - tail])
    yield from (f"+{line}" for line in after[head : len(after) - tail])
    yield from (f" {line}" for line in before[len(before) - tail :])


def _heading(start: int, old_from: int, old_to: int, new_from: int, new_to: int) -> str:
    return f"@@ -{_range(start, old_from, old_to)} +{_range(start, new_from, new_to)} @@"


def _range(start: int, first: int, end: int) -> str:
    length = end - first
    # The line before an empty range is named, as diff does it.
    return f"{start + first + (length > 0)},{length}"


def _cut(lines: Iterable[str]) -> Iterable[str]:
    left, room = 0, MAX_CHARS
    for number, line in enumerate(lines):
        if number >= MAX_LINES or room <= 0:
            left += 1
            continue
        shown = line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}…"
        room -= len(shown)
        yield shown
    if left:
        yield f"… {left} more lines"
