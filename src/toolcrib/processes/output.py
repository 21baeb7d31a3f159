"""The output of one process: the newest part in memory, the oldest on disk, both bounded; watching it for patterns."""

from __future__ import annotations

import codecs
import logging
import os
import re
from collections import deque
from pathlib import Path
from typing import Literal

from msgspec import Struct

from toolcrib.config.files import OWNER_FILE

logger = logging.getLogger(__name__)

MERGED_CHUNK_CHARS = 4_096
FLUSH_BYTES = 65_536
MAX_BYTES_PER_CHAR = 4
HEAD_FILE, TAIL_FILE = "output", "output.tail"


class RollingText:
    """The last `limit` characters of a text that arrives as bytes, wherever those are split.

    A position counts characters from the very beginning, so that a reader's position stays valid while old text is
    dropped.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.end = 0
        """The position after the last character."""
        self.newlines = 0
        """How many newlines have arrived so far, including dropped ones."""
        self._chunks: deque[str] = deque()
        self._held = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def start(self) -> int:
        """The position of the oldest character that is still kept."""
        return self.end - min(self._held, self.limit)

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Add bytes; returns the characters that they complete."""
        text = self._decoder.decode(data, final)
        if text:
            self._append(text)
        return text

    def text(self) -> str:
        """Everything that is still kept."""
        joined = "".join(self._chunks)[-self.limit :]
        self._chunks = deque([joined] if joined else [])
        self._held = len(joined)
        return joined

    def since(self, position: int) -> str:
        """The text after a position, as far as it is still kept."""
        return self.text()[max(0, position - self.start) :] if position < self.end else ""

    def tail(self, chars: int) -> str:
        """The last characters."""
        found: list[str] = []
        missing = chars
        for chunk in reversed(self._chunks):
            if missing <= 0:
                break
            found.append(chunk[-missing:])
            missing -= len(chunk)
        return "".join(reversed(found))

    def skip(self, chars: int, newlines: int) -> None:
        """Count earlier text that is not kept."""
        self.end += chars
        self.newlines += newlines

    def _append(self, text: str) -> None:
        self.end += len(text)
        self.newlines += text.count("\n")
        self._held += len(text)
        if self._chunks and len(self._chunks[-1]) + len(text) <= MERGED_CHUNK_CHARS:
            # Otherwise a program that prints single characters would cost fifty bytes per character.
            self._chunks[-1] += text
        else:
            self._chunks.append(text)
        while self._held - len(self._chunks[0]) >= self.limit:
            self._held -= len(self._chunks.popleft())


class OutputLines(Struct, frozen=True, kw_only=True):
    """Some lines of the output, and their position in it."""

    lines: list[str]
    first: int
    total: int
    note: str = ""


class ProcessOutput:
    """The output of one process. Files are written only when there is something to keep."""

    def __init__(self, folder: Path, *, buffer_chars: int, kept_bytes: int) -> None:
        self.rolling = RollingText(buffer_chars)
        self._folder = folder
        self._kept_bytes = kept_bytes
        self._pending = bytearray()
        self._written = 0
        self._overflowed = False
        self._unread_file = False

    @classmethod
    def stored(cls, folder: Path, *, buffer_chars: int, kept_bytes: int, chars: int, newlines: int) -> ProcessOutput:
        """The output that an earlier toolcrib process kept; read from disk on demand."""
        output = cls(folder, buffer_chars=buffer_chars, kept_bytes=kept_bytes)
        output.rolling.skip(chars, newlines)
        output._unread_file = True
        return output

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Add output of the process; returns it as text, complete characters only."""
        room = self._kept_bytes - self._written - len(self._pending)
        if data:
            self._pending += data[: max(0, room)]
            self._overflowed = self._overflowed or len(data) > room
            if len(self._pending) >= FLUSH_BYTES:
                self._flush()
        return self.rolling.feed(data, final=final)

    def keep(self) -> None:
        """Write what is in memory to disk, for readers after our end."""
        self._flush()
        if not self._overflowed:
            return
        try:
            _append(self._folder / TAIL_FILE, self.rolling.text().encode("utf-8", "replace"), truncate=True)
        except OSError as error:
            logger.warning("cannot save the output of a background process in %r: %s", str(self._folder), error)

    def since(self, position: int) -> str:
        self.load()
        return self.rolling.since(position)

    def tail(self, chars: int) -> str:
        self.load()
        return self.rolling.tail(chars)

    def last_lines(self, limit: int) -> OutputLines:
        """The newest lines."""
        self.load()
        here, first, total = self._buffered()
        chosen = here[-limit:] if limit > 0 else []
        return OutputLines(lines=chosen, first=first + len(here) - len(chosen), total=total)

    def lines(self, offset: int, limit: int) -> OutputLines:
        """Lines starting at number `offset`, counted from 0."""
        self.load()
        here, first, total = self._buffered()
        if offset >= first:
            return OutputLines(lines=here[offset - first : offset - first + limit], first=offset, total=total)
        head = self._head().decode("utf-8", "replace").split("\n")
        if not self._overflowed:
            return OutputLines(lines=head[:total][offset : offset + limit], first=offset, total=total)
        whole_lines = head[:-1]
        note = ""
        if offset + limit > len(whole_lines):
            note = f"lines {len(whole_lines)} to {first - 1} were not kept; read from line {first} on"
        return OutputLines(lines=whole_lines[offset : offset + limit], first=offset, total=total, note=note)

    def _buffered(self) -> tuple[list[str], int, int]:
        """The complete lines in memory, the number of the first one, and the total number of lines."""
        text = self.rolling.text()
        here = text.split("\n")
        if here[-1] == "":
            here.pop()
        total = self.rolling.newlines + (1 if text and not text.endswith("\n") else 0)
        if self.rolling.start > 0 and len(here) > 1:
            here.pop(0)  # The beginning of this line was dropped.
        return here, total - len(here), total

    def _head(self) -> bytes:
        try:
            stored = (self._folder / HEAD_FILE).read_bytes()[: self._written]
        except FileNotFoundError:
            stored = b""
        return stored + bytes(self._pending)

    def _flush(self) -> None:
        if not self._pending:
            return
        try:
            _append(self._folder / HEAD_FILE, bytes(self._pending), truncate=self._written == 0)
            self._written += len(self._pending)
        except OSError as error:
            # A full disk costs the oldest output, but never the process or its further output.
            logger.warning("cannot save the output of a background process in %r: %s", str(self._folder), error)
            self._kept_bytes, self._overflowed = self._written, True
        self._pending.clear()

    def load(self) -> None:
        """Read what an earlier toolcrib process kept, if not done yet."""
        if not self._unread_file:
            return
        self._unread_file = False
        chars, newlines = self.rolling.end, self.rolling.newlines
        head, tail = self._folder / HEAD_FILE, self._folder / TAIL_FILE
        self._overflowed = tail.exists()
        self._written = head.stat().st_size if head.exists() else 0
        newest = tail if self._overflowed else head
        restored = RollingText(self.rolling.limit)
        if newest.exists():
            restored.feed(_last_bytes(newest, self.rolling.limit * MAX_BYTES_PER_CHAR), final=True)
        restored.skip(max(0, chars - restored.end), max(0, newlines - restored.newlines))
        self.rolling = restored


def _append(path: Path, data: bytes, *, truncate: bool) -> None:
    mode = os.O_TRUNC if truncate else os.O_APPEND
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | mode, OWNER_FILE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _last_bytes(path: Path, count: int) -> bytes:
    """The end of a file, starting at a character boundary."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - count))
        data = stream.read()
    if size <= count:
        return data
    cut = 0
    while cut < MAX_BYTES_PER_CHAR and cut < len(data) and data[cut] & 0xC0 == 0x80:
        cut += 1
    return data[cut:]


MAX_LINE_CHARS = 2_000
# Colours and cursor movements, which may split a word that a person reads as one.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"
    r"|[PX^_][^\x1b]{0,4096}\x1b\\|[ -/]{0,4}[0-~])"
)
# Nobody can read them, and in JSON each takes six characters.
_UNREADABLE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "\N{REPLACEMENT CHARACTER}")


class WatchLimits(Struct, frozen=True, kw_only=True):
    """How often matches are reported."""

    window_seconds: float = 15.0
    strikes: int = 3
    event_lines: int = 20
    event_chars: int = 2_000
    breaker_events: int = 15
    breaker_seconds: float = 10.0
    breaker_pause_seconds: float = 30.0


class WatchReport(Struct, frozen=True, kw_only=True):
    """A match to report, or that a watch was disabled."""

    type: Literal["watch_match", "watch_disabled"]
    pattern: str = ""
    output: str = ""
    suppressed: int = 0
    """How many matching lines are not shown."""


def strip_escapes(text: str) -> str:
    """The text without terminal control sequences."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def readable(text: str) -> str:
    """The text as a model reads it: without control sequences, with the line ends of a file, otherwise unchanged."""
    return strip_escapes(text).replace("\r\n", "\n").translate(_UNREADABLE)


class LineMatcher:
    """Finds lines that contain one of the patterns, however the text is split; reports each line once, early."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = tuple(pattern for pattern in patterns if pattern)
        self._kept_chars = max([MAX_LINE_CHARS, *(2 * len(pattern) for pattern in self._patterns)])
        self._line = ""
        self._line_matched = False

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Add text; returns (pattern, line) for each line that newly matches."""
        found = []
        pieces = text.split("\n")
        for number, piece in enumerate(pieces):
            if piece:
                match = self._extend(piece)
                if match is not None:
                    found.append(match)
            if number < len(pieces) - 1:
                self._line, self._line_matched = "", False
        return found

    def _extend(self, piece: str) -> tuple[str, str] | None:
        if self._line_matched:
            return None
        line = strip_escapes(self._line + piece)
        for pattern in self._patterns:
            at = line.find(pattern)
            if at >= 0:
                self._line_matched, self._line = True, ""
                return pattern, _around(line, at, len(pattern)).rstrip("\r")
        # An endless line must not fill the memory; a pattern across the cut is still found.
        self._line = (self._line + piece)[-self._kept_chars :]
        return None


class OutputWatch:
    """The matches of one process, rate-limited. Every call passes the current time."""

    def __init__(self, patterns: tuple[str, ...], limits: WatchLimits) -> None:
        self._matcher = LineMatcher(patterns)
        self._limits = limits
        self._held: list[tuple[str, str]] = []
        self._held_count = 0
        self._came_in_window = False
        self._strikes = 0
        self.due_at = 0.0
        """When the window ends and the next match may be reported."""
        self.disabled = False

    @property
    def has_held_matches(self) -> bool:
        """Whether there are matches to report, now or later."""
        return self._held_count > 0

    def feed(self, text: str, now: float) -> None:
        """Match new output; the next `due` reports the matches."""
        if self.disabled:
            return
        for match in self._matcher.feed(text):
            self._held_count += 1
            self._came_in_window = self._came_in_window or now < self.due_at
            if len(self._held) < self._limits.event_lines:
                self._held.append(match)

    def due(self, now: float, *, at_end: bool = False) -> list[WatchReport]:
        """The reports that are due; `at_end` returns everything, because nothing can follow."""
        if not self._held_count or (now < self.due_at and not at_end):
            return []
        self._strikes = self._strikes + 1 if self._came_in_window else 0
        reports = [self._match()]
        if self._strikes >= self._limits.strikes and not at_end:
            self.disabled = True
            reports.append(WatchReport(type="watch_disabled", pattern=reports[0].pattern))
        self._held, self._held_count, self._came_in_window = [], 0, False
        self.due_at = now + self._limits.window_seconds
        return reports

    def _match(self) -> WatchReport:
        shown: list[str] = []
        room = self._limits.event_chars
        for _, line in self._held:
            if shown and len(line) + 1 > room:
                break
            shown.append(line[:room])
            room -= len(line) + 1
        return WatchReport(
            type="watch_match",
            pattern=self._held[0][0],
            output="\n".join(shown),
            suppressed=self._held_count - len(shown),
        )


class WatchBreaker:
    """A circuit breaker that pauses all watches of a session that report too much."""

    def __init__(self, limits: WatchLimits) -> None:
        self._limits = limits
        self._reported: deque[float] = deque()
        self.paused_until = 0.0

    def is_open(self, now: float) -> bool:
        """Whether reports are paused now."""
        return now < self.paused_until

    def count(self, now: float) -> bool:
        """Count one event; True if it trips the breaker."""
        self._reported.append(now)
        while self._reported and self._reported[0] <= now - self._limits.breaker_seconds:
            self._reported.popleft()
        if len(self._reported) < self._limits.breaker_events:
            return False
        self._reported.clear()
        self.paused_until = now + self._limits.breaker_pause_seconds
        return True


def _around(line: str, at: int, length: int) -> str:
    """The line; for a very long one, the part around the match."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    start = max(0, min(at, at + length - MAX_LINE_CHARS // 2))
    return line[start : start + MAX_LINE_CHARS]
