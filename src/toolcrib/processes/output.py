"""The output of one process: the newest part in memory, the oldest part on disk, each within a bound."""

from __future__ import annotations

import codecs
import logging
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

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
class Lines:
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

    def last_lines(self, limit: int) -> Lines:
        """The newest lines."""
        self.load()
        here, first, total = self._buffered()
        chosen = here[-limit:] if limit > 0 else []
        return Lines(lines=chosen, first=first + len(here) - len(chosen), total=total)

    def lines(self, offset: int, limit: int) -> Lines:
        """Lines from number `offset` on, counted from 0 and from the very beginning."""
        self.load()
        here, first, total = self._buffered()
        if offset >= first:
            return Lines(lines=here[offset - first : offset - first + limit], first=offset, total=total)
        head = self._head().decode("utf-8", "replace").split("\n")
        if not self._overflowed:
            return Lines(lines=head[:total][offset : offset + limit], first=offset, total=total)
        whole_lines = head[:-1]
        note = ""
        if offset + limit > len(whole_lines):
            note = f"lines {len(whole_lines)} to {first - 1} were not kept; ask for lines from {first} on"
        return Lines(lines=whole_lines[offset : offset + limit], first=offset, total=total, note=note)

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
