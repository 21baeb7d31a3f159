"""The search process: Python's regular expressions over files, in a process that can be killed whatever it is doing.

It reads one JSON object from standard input: the query and where to look. It prints JSON: a line for each file on the
page, then a line that says how the search ended. Each line of a file is searched by itself. A file with a zero byte is
binary and is not searched; a byte order mark identifies UTF-16. Imports only the standard library at module level, so
that the process starts quickly.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from toolcrib.files.search_query import (
    FileSearchQuery,
    NameFilter,
    PatternError,
    ResultPage,
    SearchRefused,
    lines_around,
    shorten_line,
)
from toolcrib.files.search_walk import PLAIN_FILE, FileWalk

SMALL_BYTES = 64 * 1024
BLOCK_BYTES = 1024 * 1024
LONGEST_LINE_BYTES = 64 * 1024 * 1024
UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_TOKENS = re.compile(
    r"(?P<literal>\\[^\w\s]|[^\\\[\](){}.^$*+?|])|(?P<quantifier>[*+?]|\{\d*,?\d*\})"
    r"|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)
# What may match a line break, look past the end of a line, or refuse to go back once it has passed one. Such a pattern
# is tried on each line; any other on many lines at once, which is several times as fast.
_NEEDS_SINGLE_LINES = re.compile(r"\[\^|\\[sDWAZ]|\(\?(?!:|P<|i\))|[*+?}]\+")

Blocks = Callable[[], Iterator[bytes]]
"""Returns the content of a file in pieces; may be called twice."""


class LineTooLong(ValueError):
    """A file has a line that is longer than any that people write."""


class SearchTimeout(Exception):
    """The search has taken as long as it may."""


@dataclass(slots=True)
class LineMatches:
    """What was found in one file."""

    count: int = 0
    """How many lines match."""
    at: list[tuple[int, int]] = field(default_factory=list)
    """For each requested match, the number of its line and the byte offset of the match in that line."""


class ContentSearch:
    """Looks for one regular expression in many files."""

    def __init__(self, pattern: str) -> None:
        """Raises PatternError."""
        try:
            self._find = re.compile(pattern, re.MULTILINE).search
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(pattern, str(error)) from error
        self._in_blocks = _NEEDS_SINGLE_LINES.search(pattern) is None
        self._any_case = pattern.startswith("(?i)")
        required = required_text(pattern.removeprefix("(?i)"))
        if self._any_case:
            required = required.lower() if required.isascii() else ""
        self._required = required.encode(errors="surrogateescape")

    def matches(self, blocks: Iterable[bytes], first: int = 0, last: int = sys.maxsize) -> LineMatches | None:
        """The matching lines of a file that comes in pieces, with the positions of the matches `first` to `last - 1`.

        None when nothing matches, and for a binary file.
        """
        found = LineMatches()
        line = 1
        for block in whole_lines(blocks):
            if b"\0" in block:
                return None
            if self._may_match(block):
                self._search(block.decode(errors="surrogateescape"), line, found, first, last)
            line += block.count(b"\n")
        return found if found.count else None

    def _may_match(self, block: bytes) -> bool:
        """A quick test, which saves most blocks the slow one."""
        if not self._any_case:
            return self._required in block
        # Some letters beyond ASCII are the same as ASCII letters except for their case.
        return self._required in block.lower() or not block.isascii()

    def _search(self, text: str, line: int, found: LineMatches, first: int, last: int) -> None:
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        for number, before in self._in_block(text) if self._in_blocks else self._by_line(text):
            if first <= found.count < last:
                found.at.append((line + number, len(before().encode(errors="surrogateescape"))))
            found.count += 1

    def _by_line(self, text: str) -> Iterator[tuple[int, Callable[[], str]]]:
        """The index of each matching line, and a function for the text in it before the match."""
        lines = text.split("\n")
        if not lines[-1] and len(lines) > 1:
            lines.pop()
        for number, line in enumerate(lines):
            match = self._find(line)
            if match is not None:
                yield number, lambda line=line, match=match: line[: match.start()]  # type: ignore[misc]

    def _in_block(self, text: str) -> Iterator[tuple[int, Callable[[], str]]]:
        """The same, for a pattern that matches a line alone wherever it matches it among others."""
        at = counted = number = 0
        size = len(text)
        while at < size and (match := self._find(text, at)) is not None:
            start = match.start()
            # There is no line after the last line break.
            if start == size and text.endswith("\n"):
                return
            begin = text.rfind("\n", 0, start) + 1
            end = text.find("\n", start)
            end = size if end < 0 else end
            at = end + 1
            if match.end() > end and self._find(text[begin:end]) is None:
                continue
            number += text.count("\n", counted, start)
            counted = start
            yield number, lambda begin=begin, start=start: text[begin:start]  # type: ignore[misc]


def required_text(pattern: str) -> str:
    """The longest text that is certainly in every match of a pattern; empty when nothing is certain."""
    runs, run = [""], ""
    for token in _TOKENS.finditer(pattern):
        if token["literal"]:
            run += token["literal"][-1]
            continue
        if token[0] in "()|":
            return ""
        # A quantifier may make the character before it optional.
        runs.append(run[:-1] if token["quantifier"] and token[0] != "+" else run)
        run = ""
    return max(*runs, run, key=len)


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
            if block[:2] in UTF16_MARKS:
                decode = codecs.getincrementaldecoder(UTF16_MARKS[block[:2]])("replace").decode
            block = block.removeprefix(codecs.BOM_UTF8) if decode is None else block[2:]
        yield block if decode is None else decode(block).encode()
    if decode is not None:
        yield decode(b"", True).encode()


def lines_at(blocks: Iterable[bytes], wanted: set[int]) -> dict[int, bytes]:
    """The lines with these numbers, without their ends."""
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


class SearchClock:
    """Says when to stop: when the time is up, or earlier when the page is full."""

    def __init__(self, seconds: float, page_seconds: float) -> None:
        self._started = time.monotonic()
        self._seconds = seconds
        self._page_seconds = page_seconds

    def check(self) -> None:
        if time.monotonic() - self._started > self._seconds:
            raise SearchTimeout

    def is_late(self) -> bool:
        return time.monotonic() - self._started > self._page_seconds


class FileSearch:
    """One search, wherever the files come from."""

    def __init__(self, query: FileSearchQuery, clock: SearchClock, emit: Callable[[dict[str, Any]], None]) -> None:
        """Raises PatternError."""
        self.page = ResultPage(query)
        self.unreadable = 0
        self.too_large = 0
        self._context = query.context
        self._clock = clock
        self._emit = emit
        self._content = ContentSearch(query.pattern) if query.target == "content" else None

    def run(self, files: Iterator[tuple[bytes, Blocks]]) -> str:
        """Search files in the order of their paths; return why that ended."""
        try:
            for number, (path, blocks) in enumerate(files):
                if number % 64 == 0:
                    self._clock.check()
                    if self.page.is_full and self._clock.is_late():
                        return "page"
                self._look(path, blocks)
        except SearchTimeout:
            return "time"
        return "done"

    def _look(self, path: bytes, blocks: Blocks) -> None:
        if self._content is None:
            if self.page.add(0):
                self._emit({"path": os.fsdecode(path), "count": 0, "lines": []})
            return
        try:
            found = self._content.matches(self._in_time(blocks()), *self.page.window())
        except LineTooLong:
            self.too_large += 1
            return
        except OSError:
            self.unreadable += 1
            return
        if found is not None and self.page.add(found.count):
            self._emit({"path": os.fsdecode(path), "count": found.count, "lines": self._lines(found, blocks)})

    def _in_time(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for number, piece in enumerate(pieces):
            if number:
                self._clock.check()
            yield piece

    def _lines(self, found: LineMatches, blocks: Blocks) -> list[tuple[int, str, bool]]:
        starts = dict(found.at)
        try:
            lines = lines_at(blocks(), lines_around(starts, self._context))
        except OSError:
            return []  # the file was removed meanwhile
        return [
            (number, shorten_line(line, starts.get(number, 0)), number in starts)
            for number, line in sorted(lines.items())
        ]


def files_of_folder(root: bytes, walk: FileWalk, names: NameFilter, only: bytes) -> Iterator[tuple[bytes, Blocks]]:
    """The files below a folder that the search covers, with their content; or `only` one of them."""
    prefix = root.rstrip(b"/") + b"/"
    for path in [only] if only else walk.files():
        if only or names.admits(path):
            yield path, lambda path=path: file_blocks(prefix + path)  # type: ignore[misc]


def file_blocks(path: bytes) -> Iterator[bytes]:
    """The content of a file, a small first piece before larger ones."""
    descriptor = os.open(path, PLAIN_FILE)
    try:
        size = SMALL_BYTES
        while True:
            data = os.read(descriptor, size)
            if data:
                yield data
            if len(data) < size:
                return
            size = BLOCK_BYTES
    finally:
        os.close(descriptor)


def files_of_archives(stream: IO[bytes]) -> Iterator[tuple[bytes, Blocks]]:
    """The files in consecutive tar archives, each preceded by its length."""
    import tarfile  # noqa: PLC0415 - most searches never need it, and it would slow down the start

    while length := int.from_bytes(stream.read(8), "big"):
        with tarfile.open(fileobj=io.BytesIO(stream.read(length)), mode="r:", encoding="utf-8") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    data = content.read()
                    yield os.fsencode(member.name).removeprefix(b"./"), lambda data=data: iter((data,))  # type: ignore[misc]


def main() -> None:
    """Serve one search on standard input and output."""
    request = json.loads(sys.stdin.buffer.readline())
    output = sys.stdout

    def emit(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    try:
        emit(_answer(request, emit))
    except SearchRefused as error:
        emit({"ending": "refused", "reason": str(error)})


def _answer(request: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run the search that a request describes; return how it ended."""
    query = FileSearchQuery(**request["query"])
    search = FileSearch(query, SearchClock(request["seconds"], request["page_seconds"]), emit)
    root = os.fsencode(request["root"])
    walk = FileWalk(root)
    if request["archive"]:
        ending = search.run(files_of_archives(sys.stdin.buffer))
    else:
        names = NameFilter(query, request["root"])
        ending = search.run(files_of_folder(root, walk, names, os.fsencode(request["only"])))
    return {
        "ending": ending,
        "seen": search.page.seen,
        "matches": search.page.matches,
        "unreadable": search.unreadable + walk.unreadable,
        "too_large": search.too_large,
    }
