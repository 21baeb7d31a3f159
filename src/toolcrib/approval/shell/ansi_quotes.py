"""Decodes the `$'…'` quotes of bash."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import NotUnderstood

_SIMPLE = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NEXT = re.compile(
    r"(?P<plain>[^\\']+)|(?P<end>')|\\x(?P<hex>[0-9A-Fa-f]{1,2})|\\u(?P<u>[0-9A-Fa-f]{1,4})|\\U(?P<U>[0-9A-Fa-f]{1,8})"
    r"|\\(?P<octal>[0-7]{1,3})|\\c(?P<control>.)|\\(?P<other>.)",
    re.DOTALL,
)


def decode_ansi_quotes(source: str, start: int) -> tuple[str, int]:
    """The text of a `$'…'` whose first character is at `start`, and the position after its closing quote."""
    pieces: list[str] = []
    position = start
    while True:
        match = _NEXT.match(source, position)
        if not match:
            raise NotUnderstood("a $'…' quote is not closed")
        position = match.end()
        kind, text = match.lastgroup or "", match.group(match.lastgroup or 0)
        if kind == "end":
            return "".join(pieces), position
        pieces.append(_decode(kind, text))


def _decode(kind: str, text: str) -> str:
    if kind in ("hex", "u", "U"):
        return _character(int(text, 16))
    if kind == "octal":
        return _character(int(text, 8) & 0xFF)
    if kind == "control":
        return _character(ord(text) & 0x1F)
    if kind == "other":
        return _SIMPLE.get(text, text if text in "\\'\"?" else "\\" + text)
    return text


def _character(code: int) -> str:
    return chr(code) if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else "\ufffd"
