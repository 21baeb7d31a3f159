"""Unified diffs for people and models, bounded in work and in length."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

CONTEXT_LINES = 3
MAX_LINES = 80
MAX_CHARS = 6_000
MAX_LINE_CHARS = 500
MAX_COMPARED = 4_000_000
"""How many pairs of lines are compared at most; a larger change is shown as one block."""
MAX_CHANGED_CHARS = 400_000
"""A longer change is not shown at all."""
NO_LINE_END = "\n\\ No newline at end of file"


class DiffTooLarge(ValueError):
    """The changed part of a text is too long to be shown."""


def unified_diff(old: str | None, new: str | None, name: str, moved_to: str = "") -> str:
    """The changes between two texts with LF line ends, shortened when they are long; None means a missing file.

    Empty when nothing changed. `moved_to` is the new name of a moved file. Raises DiffTooLarge.
    """
    part = _changed_part(old or "", new or "")
    if len(part.before) + len(part.after) > MAX_CHANGED_CHARS:
        raise DiffTooLarge
    first = (old or "").count("\n", 0, part.start)
    before, after = _lines(part.before), _lines(part.after)
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
        shown: Iterable[str] = _hunks(before, after, first + start)
    else:
        shown = _one_block(before, after, first + start, head - start, min(tail, CONTEXT_LINES))
    return "\n".join([f"--- {old_name}", f"+++ {new_name}", *_cut(shown)]) + "\n"


@dataclass(frozen=True, slots=True)
class ChangedPart:
    """The lines in which two texts differ, with some context."""

    start: int
    """Where they start in both texts."""
    before: str
    after: str


def _changed_part(old: str, new: str) -> ChangedPart:
    """Leave out what two texts share at both ends: splitting large texts into lines would take long."""
    start = old.rfind("\n", 0, _common_length(old, new)) + 1
    tail = _common_length(old[start:], new[start:], from_end=True)
    line_end = old.find("\n", len(old) - tail) if tail else -1
    tail = len(old) - line_end - 1 if line_end >= 0 else 0
    for _ in range(CONTEXT_LINES):
        start = old.rfind("\n", 0, max(0, start - 1)) + 1
        line_end = old.find("\n", len(old) - tail) if tail else -1
        tail = len(old) - line_end - 1 if line_end >= 0 else 0
    return ChangedPart(start, old[start : len(old) - tail], new[start : len(new) - tail])


def _common_length(one: str, other: str, *, from_end: bool = False) -> int:
    """How many characters two texts share at the beginning, or at the end."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if from_end:
            is_same = one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]
        else:
            is_same = one[low:middle] == other[low:middle]
        low, high = (middle, high) if is_same else (low, middle - 1)
    return low


def _lines(text: str) -> list[str]:
    """The lines without their ends; marks a last line without an end, to tell it from one with an end."""
    lines = text.split("\n")
    if lines[-1]:
        return [*lines[:-1], lines[-1] + NO_LINE_END]
    return lines[:-1]


def _common(one: list[str], other: list[str]) -> int:
    """How many lines are the same at the beginning."""
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
    # Like diff, name the line before an empty range.
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
