"""The search process: our own walk through files, apart from ours, so that it can be ended whatever it is doing.

It reads one JSON object from standard input: the query, and where to look. What it finds it prints as JSON, a line for
each file on the page, and then a line that says how it ended. Standard library only, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from toolcrib.files.search_content import ContentSearch, Hits, LineTooLong, lines_at, shown
from toolcrib.files.search_dialects import matcher
from toolcrib.files.search_query import FileFound, Line, NameFilter, Page, Query, around, as_json
from toolcrib.files.walk import PLAIN_FILE, Walk

SMALL_BYTES = 64 * 1024
BLOCK_BYTES = 1024 * 1024

Blocks = Callable[[], Iterator[bytes]]
"""The content of a file, in pieces; may be asked for twice."""


class TimeUp(Exception):
    """The search has taken as long as it may."""


class Clock:
    """Says when to stop: when the time is up, or earlier when the page is full."""

    def __init__(self, seconds: float, page_seconds: float) -> None:
        self._started = time.monotonic()
        self._seconds = seconds
        self._page_seconds = page_seconds

    def check(self) -> None:
        if time.monotonic() - self._started > self._seconds:
            raise TimeUp

    def is_late(self) -> bool:
        return time.monotonic() - self._started > self._page_seconds


class Search:
    """One search; the parts that do not depend on where files come from."""

    def __init__(self, query: Query, clock: Clock, emit: Callable[[dict[str, Any]], None]) -> None:
        self.query = query
        self.clock = clock
        self.page = Page(query)
        self.unreadable = 0
        self.too_large = 0
        self._emit = emit
        self._content = ContentSearch(matcher(query.pattern)) if query.target == "content" else None

    def run(self, files: Iterator[tuple[bytes, Blocks | None]]) -> str:
        """Search files in the order of their paths; why that ended."""
        try:
            for number, (path, blocks) in enumerate(files):
                if number % 64 == 0:
                    self.clock.check()
                    if self.page.is_full and self.clock.is_late():
                        return "page"
                self._look(path, blocks)
        except TimeUp:
            return "time"
        return "done"

    def _look(self, path: bytes, blocks: Blocks | None) -> None:
        if self._content is None or blocks is None:
            if self.page.add(0):
                self._emit(as_json(FileFound(os.fsdecode(path))))
            return
        first, last = self.page.window()
        try:
            hits = self._hits(self._content, blocks, first, last)
        except LineTooLong:
            self.too_large += 1
            return
        except OSError:
            self.unreadable += 1
            return
        if hits is not None and self.page.add(hits.count):
            self._emit(as_json(FileFound(os.fsdecode(path), hits.count, self._lines(hits, blocks))))

    def _hits(self, content: ContentSearch, blocks: Blocks, first: int, last: int) -> Hits | None:
        pieces = blocks()
        data = next(pieces, b"")
        if len(data) < SMALL_BYTES:
            return content.small(data, first, last)
        return content.large(self._in_time(data, pieces), first, last)

    def _in_time(self, data: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
        yield data
        for piece in pieces:
            self.clock.check()
            yield piece

    def _lines(self, hits: Hits, blocks: Blocks) -> tuple[Line, ...]:
        starts = dict(hits.at)
        try:
            lines = lines_at(blocks(), around(list(starts), self.query.context))
        except OSError:
            return ()  # it went away since
        return tuple(
            Line(number, shown(line, starts.get(number, 0)), number in starts) for number, line in sorted(lines.items())
        )


def of_folder(root: bytes, walk: Walk, names: NameFilter, only: bytes) -> Iterator[tuple[bytes, Blocks]]:
    """The files below a folder that count, with their content; `only` one of them where that was asked for."""
    prefix = root.rstrip(b"/") + b"/"
    for path in [only] if only else walk.files():
        if only or names.admits(path):
            yield path, lambda path=path: file_blocks(prefix + path)  # type: ignore[misc]


def file_blocks(path: bytes) -> Iterator[bytes]:
    """The content of a file; a first piece of less than SMALL_BYTES is all of it."""
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


def of_archives(stream: IO[bytes]) -> Iterator[tuple[bytes, Blocks]]:
    """The files in tar archives that come one after the other, each with its length in front."""
    import io  # noqa: PLC0415 - most searches never need it
    import tarfile  # noqa: PLC0415 - the same, and it would slow their start

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
    query = Query(**request["query"])
    output = sys.stdout

    def emit(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    search = Search(query, Clock(request["seconds"], request["page_seconds"]), emit)
    root = os.fsencode(request["root"])
    walk = Walk(root)
    if request["archive"]:
        ending = search.run(of_archives(sys.stdin.buffer))
    else:
        names = NameFilter(query, request["root"])
        ending = search.run(of_folder(root, walk, names, os.fsencode(request["only"])))
    emit(
        {
            "ending": ending,
            "seen": search.page.seen,
            "matches": search.page.matches,
            "unreadable": search.unreadable + walk.unreadable,
            "too_large": search.too_large,
        }
    )
