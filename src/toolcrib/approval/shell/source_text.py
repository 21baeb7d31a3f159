"""Shell text around words: line continuations, here-documents, the escapes of `$'…'`, and the reading budget."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

import msgspec

from toolcrib.approval.shell.model import MAX_DEPTH, MAX_HEREDOCS, MAX_TOKENS, NotUnderstood
from toolcrib.approval.shell.syntax import LiteralText, SyntaxNode, Word, WordPart

CONTINUATION = re.compile(r"(?<!\\)(?:\\\\)*+\\\n")
ANSI_PIECE = re.compile(
    r"(?P<plain>[^\\']+)|(?P<end>')|\\x(?P<hex>[0-9A-Fa-f]{1,2})|\\u(?P<u>[0-9A-Fa-f]{1,4})|\\U(?P<U>[0-9A-Fa-f]{1,8})"
    r"|\\(?P<octal>[0-7]{1,3})|\\c(?P<control>.)|\\(?P<other>.)",
    re.DOTALL,
)
ANSI_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
ANSI_LITERAL = "\\'\"?"
LINE_TABS = re.compile(r"(?<=\n)\t+")
PLACEHOLDER = "\x00\x01"


class Heredoc(msgspec.Struct):
    """A here-document whose body is still to be read."""

    delimiter: str
    quoted: bool
    strip_tabs: bool
    target: Word

    def body_end(self, source: str, start: int, end: int, *, nested: bool) -> tuple[int, int]:
        """Where the body ends, and where the text continues."""
        if "\n" in self.delimiter:
            return end, end  # No line can equal it.
        line = (r"\t*" if self.strip_tabs else "") + re.escape(self.delimiter)
        # In `$(…)` the line with the delimiter may also hold the closing parenthesis.
        rest = r"(?:\n|\Z|(?=[^\n]*\)))" if nested else r"(?:\n|\Z)"
        ending = re.compile(line + rest).match(source, start, end)
        ending = ending or re.compile(r"(?<=\n)" + line + rest).search(source, start, end)
        return (ending.start(), ending.end()) if ending else (end, end)


def without_tabs(part: WordPart, start: int) -> WordPart:
    """A part of a `<<-` here-document without the leading tabs of its lines."""
    if not isinstance(part, LiteralText):
        return part
    text = LINE_TABS.sub("", part.text)
    return LiteralText(text.lstrip("\t") if part.start == start else text, True, part.start, part.end)


class Budget(msgspec.Struct):
    """The remaining budget of one text, shared with the texts inside its backticks."""

    tokens: int = MAX_TOKENS
    heredocs: int = MAX_HEREDOCS
    depth: int = 0
    dynamic: list[SyntaxNode] = msgspec.field(default_factory=list)
    """What a shell evaluates while it reads words: substitutions, arithmetic and here-documents."""

    def spend(self) -> None:
        self.tokens -= 1
        if self.tokens < 0:
            raise NotUnderstood("the command is too long to analyse in full")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotUnderstood("the command is nested too deeply")

    def leave(self) -> None:
        self.depth -= 1


class Continuations:
    """Where a text had line continuations before they were removed."""

    def __init__(self, source: str) -> None:
        self.cuts = [match.end() - 2 for match in CONTINUATION.finditer(source)]
        self.joints = [cut - 2 * number for number, cut in enumerate(self.cuts)]

    def is_cut(self, position: int) -> bool:
        """True where a line continuation begins in the source."""
        number = bisect_left(self.cuts, position)
        return number < len(self.cuts) and self.cuts[number] == position

    def in_source(self, position: int) -> int:
        """The position in the source of a character of the joined text."""
        return position + 2 * bisect_right(self.joints, position)

    def in_text(self, position: int) -> int:
        """The position in the joined text of a character of the source."""
        return position - 2 * bisect_left(self.cuts, position)

    def span_in_source(self, span: tuple[int, int]) -> tuple[int, int]:
        start, end = span
        return self.in_source(start), self.in_source(end - 1) + 1 if end > start else self.in_source(end)


def join_lines(source: str) -> str:
    """The text without `\\`-newline. For quotes, comments and the like that keep it, the lexer reads the source."""
    if "\\\n" not in source:
        return source
    if "\\\\" not in source:
        return source.replace("\\\n", "")
    if PLACEHOLDER in source:
        return CONTINUATION.sub(lambda match: match.group()[:-2], source)
    return source.replace("\\\\", PLACEHOLDER).replace("\\\n", "").replace(PLACEHOLDER, "\\\\")


def decode_ansi_quotes(source: str, start: int) -> tuple[str, int]:
    """The text of a `$'…'` whose first character is at `start`, and the position after its closing quote."""
    pieces: list[str] = []
    position = start
    while True:
        match = ANSI_PIECE.match(source, position)
        if not match:
            raise NotUnderstood("a $'…' quote is not closed")
        position = match.end()
        kind = match.lastgroup or ""
        if kind == "end":
            return "".join(pieces), position
        pieces.append(_decoded(kind, match[kind]))


def _decoded(kind: str, text: str) -> str:
    if kind in ("hex", "u", "U"):
        return _character(int(text, 16))
    if kind == "octal":
        return _character(int(text, 8) & 0xFF)
    if kind == "control":
        return _character(ord(text) & 0x1F)
    if kind == "other":
        return ANSI_ESCAPES.get(text, text if text in ANSI_LITERAL else "\\" + text)
    return text


def _character(code: int) -> str:
    return chr(code) if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else "\ufffd"
