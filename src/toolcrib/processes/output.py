"""The output of one process: the newest part in memory, the oldest part on disk, each within a bound."""

from __future__ import annotations

import codecs
import logging
import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolcrib.config.files import OWNER_FILE

logger = logging.getLogger(__name__)

MERGED_CHUNK_CHARS = 4_096
FLUSH_BYTES = 65_536
MAX_BYTES_PER_CHAR = 4
HEAD_FILE, TAIL_FILE = "output", "output.tail"


class RollingText:
    """The last `limit` characters of a text that arrives in bytes, wherever those are cut.

    A position counts the characters from the very beginning, so that a reader's place stays right while old text goes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.end = 0
        """The position behind the last character."""
        self.newlines = 0
        """How many lines have ended so far, those that are gone included."""
        self._chunks: deque[str] = deque()
        self._held = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def start(self) -> int:
        """The position of the oldest character that is still here."""
        return self.end - min(self._held, self.limit)

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Add bytes; gives the whole characters that became readable by them."""
        text = self._decoder.decode(data, final)
        if text:
            self._append(text)
        return text

    def text(self) -> str:
        """All that is still here."""
        joined = "".join(self._chunks)[-self.limit :]
        self._chunks = deque([joined] if joined else [])
        self._held = len(joined)
        return joined

    def since(self, position: int) -> str:
        """What came after a position, as far as it is still here."""
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
        """Count text that came before everything here, and is not kept."""
        self.end += chars
        self.newlines += newlines

    def _append(self, text: str) -> None:
        self.end += len(text)
        self.newlines += text.count("\n")
        self._held += len(text)
        if self._chunks and len(self._chunks[-1]) + len(text) <= MERGED_CHUNK_CHARS:
            # Programs that print letter by letter would otherwise cost fifty bytes a letter.
            self._chunks[-1] += text
        else:
            self._chunks.append(text)
        while self._held - len(self._chunks[0]) >= self.limit:
            self._held -= len(self._chunks.popleft())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLines:
    """Some lines of an output, and where they stand in it."""

    lines: list[str]
    first: int
    total: int
    note: str = ""


class ProcessOutput:
    """All output of one process. Its folder gets files only when there is something worth keeping."""

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
        """What an earlier process of ours kept; read from disk when it is asked for."""
        output = cls(folder, buffer_chars=buffer_chars, kept_bytes=kept_bytes)
        output.rolling.skip(chars, newlines)
        output._unread_file = True
        return output

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Take in what the process printed; gives it as text, whole characters only."""
        room = self._kept_bytes - self._written - len(self._pending)
        if data:
            self._pending += data[: max(0, room)]
            self._overflowed = self._overflowed or len(data) > room
            if len(self._pending) >= FLUSH_BYTES:
                self._flush()
        return self.rolling.feed(data, final=final)

    def keep(self) -> None:
        """Put what is in memory on disk, for whoever asks after our end."""
        self._flush()
        if not self._overflowed:
            return
        try:
            _append(self._folder / TAIL_FILE, self.rolling.text().encode("utf-8", "replace"), anew=True)
        except OSError as error:
            logger.warning("the output of a background process cannot be kept in %r: %s", str(self._folder), error)

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
        """Lines from number `offset` on, counted from 0 and from the very beginning."""
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
            note = f"lines {len(whole_lines)} to {first - 1} were not kept; ask for lines from {first} on"
        return OutputLines(lines=whole_lines[offset : offset + limit], first=offset, total=total, note=note)

    def _buffered(self) -> tuple[list[str], int, int]:
        """The whole lines in memory, the number of the first of them, and how many lines there are in all."""
        text = self.rolling.text()
        here = text.split("\n")
        if here[-1] == "":
            here.pop()
        total = self.rolling.newlines + (1 if text and not text.endswith("\n") else 0)
        if self.rolling.start > 0 and len(here) > 1:
            here.pop(0)  # The beginning of this line is gone.
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
            _append(self._folder / HEAD_FILE, bytes(self._pending), anew=self._written == 0)
            self._written += len(self._pending)
        except OSError as error:
            # A full disk costs the oldest output, never the process or the reading of what it prints next.
            logger.warning("the output of a background process cannot be kept in %r: %s", str(self._folder), error)
            self._kept_bytes, self._overflowed = self._written, True
        self._pending.clear()

    def load(self) -> None:
        """Read what an earlier process of ours kept, if that was not done yet."""
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


def _append(path: Path, data: bytes, *, anew: bool) -> None:
    mode = os.O_TRUNC if anew else os.O_APPEND
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | mode, OWNER_FILE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _last_bytes(path: Path, count: int) -> bytes:
    """The end of a file, from the start of a character on."""
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
# Colours and cursor movements, which may stand in the middle of a word that a person reads as one.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"
    r"|[PX^_][^\x1b]{0,4096}\x1b\\|[ -/]{0,4}[0-~])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """How often matches are told."""

    window_seconds: float = 15.0
    strikes: int = 3
    event_lines: int = 20
    event_chars: int = 2_000
    breaker_events: int = 15
    breaker_seconds: float = 10.0
    breaker_pause_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport:
    """Something to tell about a watch."""

    type: Literal["watch_match", "watch_disabled"]
    pattern: str = ""
    output: str = ""
    suppressed: int = 0
    """Matching lines that are not shown."""


def strip_escapes(text: str) -> str:
    """The text without terminal control sequences."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


class LineMatcher:
    """Finds the lines that contain one of the patterns, however the text is cut; each line once, as early as it can."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = tuple(pattern for pattern in patterns if pattern)
        self._kept_chars = max([MAX_LINE_CHARS, *(2 * len(pattern) for pattern in self._patterns)])
        self._line = ""
        self._line_matched = False

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Add text; gives (pattern, line) for each line that matches now and was not given before."""
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
        # A line without end must not fill the memory; a pattern across the cut is still found.
        self._line = (self._line + piece)[-self._kept_chars :]
        return None


class OutputWatch:
    """The matches of one process, told within limits. The time comes in with every call."""

    def __init__(self, patterns: tuple[str, ...], limits: WatchLimits) -> None:
        self._matcher = LineMatcher(patterns)
        self._limits = limits
        self._held: list[tuple[str, str]] = []
        self._held_count = 0
        self._came_in_window = False
        self._strikes = 0
        self.due_at = 0.0
        """When the window ends, so that the next match may be told."""
        self.disabled = False

    @property
    def holds_back(self) -> bool:
        """Whether there is something to tell, now or later."""
        return self._held_count > 0

    def feed(self, text: str, now: float) -> None:
        """Look through new output; what matches is told by the next `due`."""
        if self.disabled:
            return
        for match in self._matcher.feed(text):
            self._held_count += 1
            self._came_in_window = self._came_in_window or now < self.due_at
            if len(self._held) < self._limits.event_lines:
                self._held.append(match)

    def due(self, now: float, *, at_end: bool = False) -> list[WatchReport]:
        """What may be told now; `at_end`: all that is held back, because nothing can follow."""
        if not self._held_count or (now < self.due_at and not at_end):
            return []
        self._strikes = self._strikes + 1 if self._came_in_window else 0
        told = [self._match()]
        if self._strikes >= self._limits.strikes and not at_end:
            self.disabled = True
            told.append(WatchReport(type="watch_disabled", pattern=told[0].pattern))
        self._held, self._held_count, self._came_in_window = [], 0, False
        self.due_at = now + self._limits.window_seconds
        return told

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
    """Holds back the watches of a session that tell too much, all together."""

    def __init__(self, limits: WatchLimits) -> None:
        self._limits = limits
        self._told: deque[float] = deque()
        self.paused_until = 0.0

    def is_open(self, now: float) -> bool:
        """Whether nothing may be told now."""
        return now < self.paused_until

    def count(self, now: float) -> bool:
        """Count one event; True when it was the one too many."""
        self._told.append(now)
        while self._told and self._told[0] <= now - self._limits.breaker_seconds:
            self._told.popleft()
        if len(self._told) < self._limits.breaker_events:
            return False
        self._told.clear()
        self.paused_until = now + self._limits.breaker_pause_seconds
        return True


def _around(line: str, at: int, length: int) -> str:
    """The line, or of a very long one the part where the pattern stands."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    start = max(0, min(at, at + length - MAX_LINE_CHARS // 2))
    return line[start : start + MAX_LINE_CHARS]
