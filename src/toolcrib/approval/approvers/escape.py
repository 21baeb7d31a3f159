"""Escapes text for the terminal: characters that it would obey, hide or reorder are spelled out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

MAX_MARKS_ON_A_LETTER = 2

# These look blank although Unicode counts them as letters, symbols or marks.
_LOOKS_EMPTY = frozenset(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0]
) | frozenset([*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
_SHORT_NAMES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    """The text on one line, with every character that doesn't print plainly written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(piece for piece, _ in pieces(text))


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Each character as it is displayed, and whether that is an escape."""
    if text.isascii() and text.isprintable():
        yield from ((character, False) for character in text)
        return
    marks = MAX_MARKS_ON_A_LETTER
    for character in text:
        if unicodedata.category(character)[0] == "M":
            # A mark is drawn over the character before it: stacked marks, or one on a non-letter, can hide it.
            marks += 1
        else:
            marks = 0 if character.isalnum() else MAX_MARKS_ON_A_LETTER
        plain = character.isprintable() and ord(character) not in _LOOKS_EMPTY and (marks <= MAX_MARKS_ON_A_LETTER)
        yield (character, False) if plain else (_escape(character), True)


def width(shown: str) -> int:
    """How many columns a text takes that `visible` or `pieces` returned."""
    if shown.isascii():
        return len(shown)
    return sum(_columns(character) for character in shown)


@lru_cache(maxsize=4096)
def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shortened(text: str, limit: int) -> str:
    """About `limit` characters of the text: its beginning and its end."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail]} ... {text[-tail:]}"


def _escape(character: str) -> str:
    if character in _SHORT_NAMES:
        return _SHORT_NAMES[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
