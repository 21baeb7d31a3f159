"""Makes text from servers safe to show: characters that are invisible or reorder text are escaped."""

from __future__ import annotations

import re

MAX_ESCAPES = 100_000
"""Hidden characters beyond these become question marks."""
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
)
_OTHERS = "\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
# Joiners form emoji and letters of many scripts; next to a Latin letter or a space they only hide something.
_JOINERS = r"(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
# One selector after a symbol says how to draw it; a second one, or one after a letter, carries hidden data.
_SELECTORS = r"(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]|(?<![^\x00-\x7f]|[0-9#*])[\ufe00-\ufe0f]"
_HIDDEN = re.compile(
    rf"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff{_BIDI}{_INVISIBLE}{_OTHERS}]|\r(?!\n)|{_JOINERS}|{_SELECTORS}"
)


def shown(text: str) -> str:
    """The text with hidden, control and direction characters escaped; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    escaped, count = _HIDDEN.subn(_escape, text, MAX_ESCAPES)
    # A text with millions of them says nothing, and escaping them all would take too long.
    return escaped if count < MAX_ESCAPES else _HIDDEN.sub("?", escaped)


def one_line(text: str, limit: int) -> str:
    """The text on one line of at most `limit` characters, with hidden characters escaped."""
    line = " ".join(shown(text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
