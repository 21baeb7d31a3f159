"""Finds the lines of one file that a pattern matches, with the rules that ripgrep has for the content of files.

A file with a zero byte is binary and is not searched; UTF-16 is known by its byte order mark. Standard library only:
the search process starts without anything else.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from toolcrib.files.search_dialects import Matcher

LONGEST_LINE_BYTES = 64 * 1024 * 1024
LONGEST_SHOWN = 500
BEFORE_MATCH = 100
"""How much of a long line is shown before its match."""
UTF8_MARK = codecs.BOM_UTF8
MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class LineTooLong(ValueError):
    """A file has a line that is longer than anything that people write."""


@dataclass(slots=True)
class Hits:
    """What was found in one file."""

    count: int = 0
    """How many lines match."""
    at: list[tuple[int, int]] = field(default_factory=list)
    """Of the matches asked for: the number of the line, and the byte in it that the match starts at."""


class ContentSearch:
    """Looks for one pattern in many files."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._needed = matcher.needed
        longer = matcher.needed_in_lower_case
        self._needed_in_lower_case = longer if len(longer) > len(self._needed) + 1 else b""
        self._in_bytes = matcher.in_bytes
        self._is_exact = matcher.is_exact_in_bytes

    def small(self, data: bytes, first: int, last: int) -> Hits | None:
        """What is in a file of this content; None for nothing. See `large`."""
        if data[:2] in MARKS:
            return self.large([data], first, last)
        if self._needed not in data:
            return None
        text = data.removeprefix(UTF8_MARK)
        is_ascii = text.isascii()
        if is_ascii and self._needed_in_lower_case and self._needed_in_lower_case not in text.lower():
            return None
        if (self._is_exact or is_ascii) and self._in_bytes.search(text) is None:
            return None
        return self.large([data], first, last)

    def large(self, blocks: Iterable[bytes], first: int, last: int) -> Hits | None:
        """What is in a file that comes in pieces; the places of the matches from number `first` to before `last`."""
        hits = Hits()
        line = 1
        for block in whole_lines(blocks):
            if b"\0" in block:
                return None
            if self._needed in block:
                self._search(block, line, hits, first, last)
            line += block.count(b"\n")
        return hits if hits.count else None

    def _search(self, block: bytes, line: int, hits: Hits, first: int, last: int) -> None:
        if self._is_exact or block.isascii():
            _search_bytes(self._in_bytes, block, line, hits, first, last)
        else:
            _search_text(self._matcher.in_text, block.decode(errors="surrogateescape"), line, hits, first, last)


def _search_bytes(pattern: re.Pattern[bytes], block: bytes, line: int, hits: Hits, first: int, last: int) -> None:
    at, counted, size = 0, 0, len(block)
    while at < size and (found := pattern.search(block, at)) is not None:
        start = found.start()
        # Behind the last line break there is no line.
        if start == size and block.endswith(b"\n"):
            break
        if first <= hits.count < last:
            line += block.count(b"\n", counted, start)
            counted = start
            hits.at.append((line, start - block.rfind(b"\n", 0, start) - 1))
        hits.count += 1
        end = block.find(b"\n", found.end())
        at = size if end < 0 else end + 1


def _search_text(pattern: re.Pattern[str], block: str, line: int, hits: Hits, first: int, last: int) -> None:
    at, counted, size = 0, 0, len(block)
    while at < size and (found := pattern.search(block, at)) is not None:
        start = found.start()
        if start == size and block.endswith("\n"):
            break
        if first <= hits.count < last:
            line += block.count("\n", counted, start)
            counted = start
            before = block[block.rfind("\n", 0, start) + 1 : start]
            hits.at.append((line, len(before.encode(errors="surrogateescape"))))
        hits.count += 1
        end = block.find("\n", found.end())
        at = size if end < 0 else end + 1


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The content as UTF-8 without its byte order mark, in pieces that end where a line does."""
    rest = b""
    for block in _as_utf8(blocks):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) > LONGEST_LINE_BYTES:
            raise LineTooLong
    if rest:
        yield rest


def _as_utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    decode = None
    for index, block in enumerate(blocks):
        if index == 0:
            if block[:2] in MARKS:
                decode = codecs.getincrementaldecoder(MARKS[block[:2]])("replace").decode
            block = block.removeprefix(UTF8_MARK) if decode is None else block[2:]
        yield block if decode is None else decode(block).encode()
    if decode is not None:
        yield decode(b"", True).encode()


def lines_at(blocks: Iterable[bytes], wanted: set[int]) -> dict[int, bytes]:
    """The lines of these numbers, without their ends."""
    lines: dict[int, bytes] = {}
    if not wanted:
        return lines
    number, last = 1, max(wanted)
    for block in whole_lines(blocks):
        pieces = block.split(b"\n")
        if block.endswith(b"\n"):
            pieces.pop()
        lines.update({number + at: piece for at, piece in enumerate(pieces) if number + at in wanted})
        number += len(pieces)
        if number > last:
            break
    return lines


def shown(line: bytes, start: int = 0) -> str:
    """A line for people, cut around the byte where its match starts."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) <= LONGEST_SHOWN:
        return line.decode(errors="replace")
    # Only what can be shown is decoded: lines can be huge. A character has at most four bytes.
    begin = max(0, start - 4 * BEFORE_MATCH)
    before = line[begin:start].decode(errors="replace")[-BEFORE_MATCH:]
    after = line[start : start + 4 * LONGEST_SHOWN].decode(errors="replace")
    text = (before + after)[:LONGEST_SHOWN]
    is_cut_before = len(before.encode()) < start
    is_cut_after = start + len(text[len(before) :].encode()) < len(line)
    return f"{'…' if is_cut_before else ''}{text}{'…' if is_cut_after else ''}"
