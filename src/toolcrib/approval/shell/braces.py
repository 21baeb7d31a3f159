"""Expands `{a,b}` and `{1..3}` in a word, as bash does before every other expansion."""

from __future__ import annotations

import re
from itertools import pairwise

from toolcrib.approval.shell.model import MAX_BRACE_WORDS, NotUnderstood
from toolcrib.approval.shell.syntax import LiteralText, Word, WordPart

_FIRST_OPAQUE = 0xF0000
_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?$")


def expand_braces(word: Word) -> list[Word]:
    """The words that a word stands for; most words stand for themselves."""
    if not any(type(part) is LiteralText and not part.quoted and "{" in part.text for part in word.parts):
        return [word]
    opaque: list[WordPart] = []
    pieces: list[str] = []
    for part in word.parts:
        if isinstance(part, LiteralText) and not part.quoted:
            pieces.append(part.text)
        else:
            pieces.append(chr(_FIRST_OPAQUE + len(opaque)))
            opaque.append(part)
    texts = _expand("".join(pieces))
    if len(texts) == 1:
        return [word]
    words = [Word(tuple(_parts(text, opaque, word)), word.start, word.end) for text in texts]
    # An unquoted empty alternative, as in `{/,}`, is no word at all.
    return [expanded for expanded in words if expanded.parts]


def _parts(text: str, opaque: list[WordPart], word: Word) -> list[WordPart]:
    parts: list[WordPart] = []
    for piece in re.split(r"([\U000F0000-\U000FFFFD])", text):
        if len(piece) == 1 and ord(piece) >= _FIRST_OPAQUE:
            parts.append(opaque[ord(piece) - _FIRST_OPAQUE])
        elif piece:
            parts.append(LiteralText(piece, False, word.start, word.end))
    return parts


def _expand(text: str) -> list[str]:
    if text.count("{") > MAX_BRACE_WORDS:
        raise NotUnderstood("there are too many braces in one word")
    results: list[str] = []
    pending = [text]
    while pending:
        current = pending.pop(0)
        group = _first_group(current)
        if group is None:
            results.append(current)
        else:
            start, end, alternatives = group
            pending[:0] = [current[:start] + alternative + current[end:] for alternative in alternatives]
        if len(pending) + len(results) > MAX_BRACE_WORDS:
            raise NotUnderstood("braces stand for too many words")
    return results


def _first_group(text: str) -> tuple[int, int, list[str]] | None:
    """Start, end and alternatives of the first `{…}` that expands; None when there is none."""
    start = text.find("{")
    while start >= 0:
        depth, commas = 0, []
        for at in range(start, min(len(text), start + 4096)):
            character = text[at]
            depth += {"{": 1, "}": -1}.get(character, 0)
            if character == "," and depth == 1:
                commas.append(at)
            if depth == 0:
                inner = _alternatives(text, start, at, commas)
                if inner is not None:
                    return start, at + 1, inner
                break
        start = text.find("{", start + 1)
        if start > 4096:
            return None
    return None


def _alternatives(text: str, start: int, end: int, commas: list[int]) -> list[str] | None:
    if commas:
        edges = [start, *commas, end]
        return [text[left + 1 : right] for left, right in pairwise(edges)]
    sequence = _RANGE.match(text[start + 1 : end])
    return _sequence(*sequence.groups()) if sequence else None


def _sequence(first: str, last: str, step: str | None) -> list[str] | None:
    if first.lstrip("-").isdigit() != last.lstrip("-").isdigit():
        return None
    numeric = first.lstrip("-").isdigit()
    low, high = (int(first), int(last)) if numeric else (ord(first), ord(last))
    stride = abs(int(step or 1)) or 1
    values = range(low, high + 1, stride) if low <= high else range(low, high - 1, -stride)
    if len(values) > MAX_BRACE_WORDS:
        # Numbers alone cannot make a harmless word dangerous: a few of them stand for all.
        values = values[:4]
    return [str(value) if numeric else chr(value) for value in values]
