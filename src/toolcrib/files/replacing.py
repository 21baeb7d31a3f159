"""Replaces a text in a file that occurs exactly once, or each time; anything else is an error that changes nothing."""

from __future__ import annotations

import itertools

from toolcrib.core.errors import ToolcribError
from toolcrib.files.text_files import Edit, TextFile, as_lf

MAX_LISTED = 10


class NoMatch(ToolcribError):
    """The text does not occur."""


class SeveralMatches(ToolcribError):
    """The text occurs more often than once; says in which lines."""


def replaced(file: TextFile, old: str, new: str, *, replace_all: bool) -> tuple[TextFile, int]:
    """The file with `new` instead of `old`, and how often; raises NoMatch or SeveralMatches. `old` is not empty."""
    old, new = as_lf(old), as_lf(new)
    text = file.text
    first = text.find(old)
    if first < 0:
        raise NoMatch("old_string does not occur in it")
    starts = [first]
    if replace_all:
        # As `str.replace` does it: from the left, without overlaps.
        while (found := text.find(old, starts[-1] + len(old))) >= 0:
            starts.append(found)
    elif text.find(old, first + 1) >= 0:
        raise SeveralMatches(_several(text, old))
    # What both have in common at their ends is left alone, and with it the line ends that stand there.
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    changed = new[head : len(new) - tail]
    edits = [Edit(start + head, start + len(old) - tail, changed) for start in starts]
    return file.edited(edits), len(edits)


def _common(one: str, other: str) -> int:
    """How many characters at the beginning are the same."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def _several(text: str, old: str) -> str:
    lines: list[int] = []
    line, counted, found = 1, 0, text.find(old)
    # Overlapping ones count, too: each is a place that may be meant.
    for _ in itertools.repeat(None, MAX_LISTED + 1):
        line, counted = line + text.count("\n", counted, found), found
        lines.append(line)
        found = text.find(old, found + 1)
        if found < 0:
            break
    listed = ", ".join(map(str, dict.fromkeys(lines[:MAX_LISTED]))) + (" …" if len(lines) > MAX_LISTED else "")
    times = f"more than {MAX_LISTED} times" if len(lines) > MAX_LISTED else f"{len(lines)} times"
    return f"old_string occurs {times} (lines {listed})"
