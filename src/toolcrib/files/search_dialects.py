"""A pattern in the words of each engine: for ripgrep, and for Python over bytes and over text.

All three match the same lines. Standard library only, see search_characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from toolcrib.files.search_characters import Ranges, below, named, same_but_for_case
from toolcrib.files.search_patterns import Anchor, Chars, Choice, Node, Repeat, Sequence, Text, parse

RUST_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~")
NOTHING = "(?!)"
LINE_END = r"(?:\r?$)"
MOST_PRINTABLE = 0x7E
ASCII = 0x80


def for_ripgrep(pattern: str) -> str:
    """The pattern as ripgrep reads it; raises PatternError."""
    node = parse(pattern)
    if _has_case(node) and _is_any_case(node):
        # Said once for all, it leaves ripgrep its fastest ways to search.
        return f"(?i){_rust_text(node, any_case=True)}"
    return _rust_text(node)


def _has_case(node: Node) -> bool:
    match node:
        case Text(character):
            return character.lower() != character.upper()
        case Chars():
            return bool(node.items)
        case Repeat(part):
            return _has_case(part)
        case Sequence(parts) | Choice(parts):
            return any(map(_has_case, parts))
    return False


def _is_any_case(node: Node) -> bool:
    """Whether case matters nowhere."""
    match node:
        case Text() | Chars():
            return node.any_case or not _has_case(node)
        case Repeat(part):
            return _is_any_case(part)
        case Sequence(parts) | Choice(parts):
            return all(map(_is_any_case, parts))
    return True


def _rust_text(node: Node, *, any_case: bool = False) -> str:
    """The pattern; with `any_case`, without saying it for each part."""
    match node:
        case Text(character):
            return f"(?i:{_rust(character)})" if node.any_case and not any_case else _rust(character)
        case Chars():
            text = _rust_chars(node)
            return f"(?i:{text})" if node.any_case and not any_case else text
        case Anchor(kind):
            return LINE_END if kind == "$" else kind if kind == "^" else "\\" + kind
        case Repeat(part, low, high, lazy):
            text = _rust_text(part, any_case=any_case)
            return _repeated(text, low, high, lazy, is_one=isinstance(part, Text | Chars))
        case Sequence(parts):
            return "".join(_rust_text(part, any_case=any_case) for part in parts)
        case Choice(options):
            return f"(?:{'|'.join(_rust_text(option, any_case=any_case) for option in options)})"


def _rust(character: str) -> str:
    if character in RUST_SPECIAL:
        return "\\" + character
    return character if " " <= character <= "~" or character.isalpha() else f"\\x{{{ord(character):x}}}"


def _rust_chars(node: Chars) -> str:
    if not node.items:
        return "."
    items = []
    for item in node.items:
        if not isinstance(item, str):
            items.append("-".join(_rust(chr(code)) for code in dict.fromkeys(item)))
        elif "[:" in item:
            items.append(item if item[0] == "[" else f"[:^{item[3:]}")
        elif item[-1] in "dws":
            items.append("\\" + (item[-1].upper() if item[0] == "^" else item))
        else:
            items.append(f"\\P{{{item[1:]}}}" if item[0] == "^" else f"\\p{{{item}}}")
    return f"[{'^' if node.negated else ''}{''.join(items)}]"


def _repeated(part: str, low: int, high: int | None, lazy: bool, *, is_one: bool = False) -> str:
    bounds = f"{{{low},{'' if high is None else high}}}"
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high), bounds)
    return f"{part if is_one else f'(?:{part})'}{sign}{'?' if lazy else ''}"


@dataclass(frozen=True)
class Matcher:
    """Finds a pattern in the content of files, as Python does it fastest."""

    node: Node

    @cached_property
    def in_bytes(self) -> re.Pattern[bytes]:
        """Matches in plain ASCII, and in any bytes where `is_exact_in_bytes`."""
        return re.compile(_for_bytes(self.node), re.MULTILINE)

    @cached_property
    def is_exact_in_bytes(self) -> bool:
        return _is_exact_in_bytes(self.node)

    @cached_property
    def in_text(self) -> re.Pattern[str]:
        """Matches in text, where half characters stand for bytes that are no text."""
        return re.compile(_for_text(self.node), re.MULTILINE)

    @cached_property
    def needed(self) -> bytes:
        """What every match holds, letter by letter; empty where nothing is known."""
        return max(_needed(self.node, any_case=False), key=len, default="").encode()

    @cached_property
    def needed_in_lower_case(self) -> bytes:
        """What every match in plain ASCII holds, when that is made lower case; empty where nothing is known."""
        return max(_needed(self.node, any_case=True), key=len, default="").lower().encode()


def matcher(pattern: str) -> Matcher:
    """What finds a pattern; raises PatternError."""
    return Matcher(parse(pattern))


def _needed(node: Node, *, any_case: bool) -> list[str]:
    """Runs of characters that stand in every match; with `any_case`, in one case or another."""
    if isinstance(node, Repeat):
        return _needed(node.part, any_case=any_case) if node.low else []
    if not isinstance(node, Sequence):
        return [node.character] if isinstance(node, Text) and _counts(node, any_case) else []
    runs, run = list[str](), ""
    for part in node.parts:
        if isinstance(part, Text) and _counts(part, any_case):
            run += part.character
        # Most anchors take no room, but a line end may be a carriage return.
        elif not isinstance(part, Anchor) or part.kind == "$":
            runs, run = [*runs, run, *_needed(part, any_case=any_case)], ""
    return [*runs, run]


def _counts(node: Text, any_case: bool) -> bool:
    return node.character.isascii() if any_case else not node.any_case


def _is_exact_in_bytes(node: Node) -> bool:
    match node:
        case Text(character, any_case):
            return not any_case or all(code < ASCII for code in same_but_for_case(character))
        case Chars():
            # A negated class holds nearly everything; asking it for its ranges would be slow.
            plain = all(not isinstance(item, str) and item[1] < ASCII for item in node.items)
            return plain and not node.negated and (not node.any_case or _all_ascii(node.ranges()))
        case Anchor(kind):
            return kind in "^$"
        case Repeat(part):
            return _is_exact_in_bytes(part)
        case Sequence(parts):
            return all(map(_is_exact_in_bytes, parts))
        case Choice(options):
            return all(map(_is_exact_in_bytes, options))


def _all_ascii(ranges: Ranges) -> bool:
    return all(high < ASCII for _, high in ranges)


def _for_bytes(node: Node) -> bytes:
    match node:
        case Text(character, any_case):
            if any_case:
                return _byte_class(tuple((code, code) for code in same_but_for_case(character)))
            return re.escape(character.encode())
        case Chars():
            return _byte_class(_ascii_ranges(node))
        case Anchor(kind):
            return LINE_END.encode() if kind == "$" else b"^" if kind == "^" else b"\\" + kind.encode()
        case Repeat(part, low, high, lazy):
            return _repeated(_for_bytes(part).decode("latin-1"), low, high, lazy).encode("latin-1")
        case Sequence(parts):
            return b"".join(map(_for_bytes, parts))
        case Choice(options):
            return b"(?:" + b"|".join(map(_for_bytes, options)) + b")"


ASCII_NAMED: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
}


def _ascii_ranges(node: Chars) -> Ranges:
    """The part below 128, without asking for the whole of Unicode where that is not needed."""
    items = tuple(item for item in node.items if isinstance(item, str))
    if not all(item.lstrip("^") in ASCII_NAMED for item in items):
        return below(node.ranges(), ASCII)
    plain: list[tuple[int, int] | str] = []
    for item in node.items:
        if not isinstance(item, str):
            plain.append(item)
        elif item[0] == "^":
            plain += _all_but(ASCII_NAMED[item[1:]])
        else:
            plain += ASCII_NAMED[item]
    return below(Chars(tuple(plain), node.negated, node.any_case).ranges(), ASCII)


def _all_but(ranges: Ranges) -> Ranges:
    kept = [code for code in range(ASCII) if not any(low <= code <= high for low, high in ranges)]
    return tuple((code, code) for code in kept)


def _byte_class(ranges: Ranges) -> bytes:
    ranges = below(ranges, ASCII)
    if not ranges:
        return NOTHING.encode()
    return b"[" + b"".join(b"\\x%02x-\\x%02x" % one for one in ranges) + b"]"


def _for_text(node: Node) -> str:
    match node:
        case Text(character, any_case):
            if any_case:
                return _text_class(tuple((code, code) for code in same_but_for_case(character)))
            return re.escape(character)
        case Chars():
            return _text_class(node.ranges())
        case Anchor(kind):
            return LINE_END if kind == "$" else "^" if kind == "^" else _word_edge(kind)
        case Repeat(part, low, high, lazy):
            return _repeated(_for_text(part), low, high, lazy)
        case Sequence(parts):
            return "".join(map(_for_text, parts))
        case Choice(options):
            return f"(?:{'|'.join(map(_for_text, options))})"


def _word_edge(kind: str) -> str:
    word = _text_class(named("w"))
    inner, outer = ("=", "!") if kind == "b" else ("!", "=")
    return f"(?:(?<={word})(?{outer}{word})|(?<!{word})(?{inner}{word}))"


def _text_class(ranges: Ranges) -> str:
    if not ranges:
        return NOTHING
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]"
