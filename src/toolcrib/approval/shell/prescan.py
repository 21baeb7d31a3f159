"""Looks at a command line before it is read: characters that deceive, and lines that are joined."""

from __future__ import annotations

import re
from itertools import islice

_DECEIVING = re.compile(
    "[\x00\x01-\x08\x0b\x0c\r\x0e-\x1f\x7f\x80-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ufdd0-\ufdef\U000e0000-\U000e0fff\U000f0000-\U0010ffff\ud800-\udfff]"
)
_FULLWIDTH = re.compile("[\uff01-\uff5e\u2010-\u2015\u2212]")
_JOINED = re.compile(r"(\\\\)|\\\n")
_SPECIAL = re.compile(r"'[^']*'|\\\n|\\.|\"|<<", re.DOTALL)


def deceiving_characters(command: str) -> list[str]:
    """The control, bidirectional, invisible and look-alike characters in a command, as escapes for people."""
    if command.isascii() and command.isprintable():
        return []
    found = sorted({match.group() for match in islice(_DECEIVING.finditer(command), 100)})[:8]
    return [f"\\u{{{ord(character):x}}}" for character in found]


def original_positions(command: str, joined: str) -> list[int]:
    """Where each character of the joined text, and its end, stands in the command as it was given."""
    positions: list[int] = []
    at = 0
    for character in joined:
        while command.startswith("\\\n", at) and character != "\\":
            at += 2
        positions.append(at)
        at += 1
    positions.append(len(command))
    return positions


def original_span(positions: list[int], span: tuple[int, int]) -> tuple[int, int]:
    """Where a span of the joined text stands in the command as it was given."""
    start, end = (min(edge, len(positions) - 1) for edge in span)
    return positions[start], positions[end - 1] + 1 if end > start else positions[end]


def join_lines(command: str) -> str:
    """The command with `\\`-newline folded away, except in single quotes; heredocs join too, as bash does."""
    if "\\\n" not in command:
        return command
    pieces: list[str] = []
    position = 0
    in_double = False
    for match in _SPECIAL.finditer(command):
        text = match.group()
        if match.start() < position:
            continue
        if text == '"':
            in_double = not in_double
        elif text == "\\\n":
            pieces.append(command[position : match.start()])
            position = match.end()
        elif text[0] == "'" and in_double and "\\\n" in text:
            pieces.append(command[position : match.start()] + text.replace("\\\n", ""))
            position = match.end()
    pieces.append(command[position:])
    return "".join(pieces)
