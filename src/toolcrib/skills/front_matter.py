"""The head of a SKILL.md: where it ends, what it says, and what can be told of it without a YAML parser."""

from __future__ import annotations

import re
import warnings
from typing import Any

import msgspec

from toolcrib.config.yaml_text import Document, parse
from toolcrib.core.errors import ConfigError

MARK = "---"
MAX_FRONT_LINES = 400
# Much longer than any honest head; reading YAML takes long where it is long or deep.
MAX_YAML_CHARS = 4_000
MAX_BRACKETS = 200
MAX_NUMBER_BITS = 256
BRIEF_KEYS = ("name", "description")
_TOP_LEVEL = re.compile(r"([A-Za-z_][\w-]{0,60})[ \t]*:(?:[ \t]+(.*))?")
# A value that begins with one of these, or is one of these words, means something else than its letters to YAML.
_SPECIAL_STARTS = tuple("&*!|>%@`[]{},#?:-=~'\"")
_SPECIAL_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", ".nan", ".inf"})


class Parts(msgspec.Struct, frozen=True):
    """A SKILL.md in its two parts."""

    front: str | None
    """The YAML between the marks; None where there is no such head."""
    body: str
    body_line: int
    """The line of the file that the body begins in, counted from 1."""


def split(text: str) -> Parts:
    """The head and the body of a SKILL.md, with line ends of any system."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != MARK:
        return Parts(None, "\n".join(lines), 1)
    for at, line in enumerate(lines[1 : MAX_FRONT_LINES + 1], start=1):
        if line.rstrip() == MARK:
            return Parts("\n".join(lines[1:at]), "\n".join(lines[at + 1 :]), at + 2)
    return Parts(None, "\n".join(lines), 1)


def fields_of(front: str) -> Document:
    """All that a head says, with the lines of the file; YAML that is broken or far too large is a ConfigError."""
    if len(front) > MAX_YAML_CHARS or front.count("[") + front.count("{") > MAX_BRACKETS:
        raise ConfigError(
            f"SKILL.md:1:1: its head is too large to be read; keep it under {MAX_YAML_CHARS:,} characters"
        )
    with warnings.catch_warnings():
        # The parser warns of odd but harmless things, which nobody who lists skills wants to read.
        warnings.simplefilter("ignore")
        # The mark stands in the first line of the file.
        return parse("\n" + front, "SKILL.md", "toolcrib skills check")


def brief(front: str) -> dict[str, str]:
    """Name and description, as far as they are there: of plain lines at once, else by YAML, else as they are written.

    Many skills out there are no valid YAML (a colon in the description is enough), and are understood all the same.
    """
    written, is_simple = _written(front)
    plain = {key: _plain(*written[key]) for key in BRIEF_KEYS if key in written}
    if is_simple and None not in plain.values():
        return {key: value for key, value in plain.items() if value is not None}
    try:
        data = fields_of(front).data
    except ConfigError:
        return {key: " ".join(part.strip("\"'>| ") for part in written[key]).strip() for key in plain}
    found = data if isinstance(data, dict) else {}
    return {key: text_of(found[key]) for key in BRIEF_KEYS if key in found}


def _written(front: str) -> tuple[dict[str, list[str]], bool]:
    """The lines of each key at the top, the first one without the key; and whether there is nothing but keys."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    is_simple = True
    for line in front.split("\n"):
        key = _TOP_LEVEL.fullmatch(line.rstrip())
        if key is not None:
            lines = [key[2] or ""]
            found.setdefault(key[1], lines)
        elif line.strip() and not line.startswith("#"):
            is_simple = is_simple and lines is not None and line.startswith(" ")
            if lines is not None:
                lines.append(line.strip())
    return found, is_simple


def _plain(first: str, *more: str) -> str | None:
    """The value of a key that is written in one line without any of YAML's tricks; None for all others."""
    if more or not first.isprintable():
        return None
    quote = first[:1]
    if quote in ("'", '"') and len(first) > 1 and first.endswith(quote):
        inner = first[1:-1]
        return None if quote in inner or "\\" in inner else inner.strip()
    if not first or first.startswith(_SPECIAL_STARTS) or first.lower() in _SPECIAL_WORDS:
        return None
    if ": " in first or " #" in first or "\t" in first or first.endswith(":"):
        return None
    # Numbers are for YAML to read: it writes them in its own way.
    return None if first[0].isdigit() or first[0] in "+." else first


def text_of(value: Any) -> str:
    """A value of a head as text; empty for what is neither a text, a number nor a list of them."""
    if isinstance(value, str):
        # An escaped pair of half characters is one character.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
    if isinstance(value, list):
        return ", ".join(filter(None, (text_of(one) for one in value if not isinstance(one, list))))
    if isinstance(value, bool) or (isinstance(value, int) and value.bit_length() > MAX_NUMBER_BITS):
        return ""
    return str(value) if isinstance(value, int | float) else ""
