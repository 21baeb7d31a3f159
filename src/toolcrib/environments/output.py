"""Keeps the head and tail of output of any size in little memory, and all of it in a file."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

HEAD_SHARE = 0.4


class BoundedOutput:
    """Collects bytes; `text` is the output, with its middle omitted if it is too long.

    The file `save_to` is created when the output exceeds `limit_bytes`; it then holds everything, up to `max_saved`.
    """

    def __init__(self, limit_bytes: int, *, save_to: Path | None = None, max_saved: int = 64 * 1024 * 1024) -> None:
        self._head_limit = int(limit_bytes * HEAD_SHARE)
        self._tail_limit = limit_bytes - self._head_limit
        self._save_to = save_to
        self._max_saved = max_saved
        self._file: BinaryIO | None = None
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._closed = False
        self.total_bytes = 0
        self.saved_bytes = 0

    @property
    def is_cut(self) -> bool:
        return self.total_bytes > self._head_limit + self._tail_limit

    @property
    def saved(self) -> Path | None:
        """The file with the complete output, if there is one."""
        return self._save_to if self.saved_bytes else None

    @property
    def ends_in_the_middle_of_a_line(self) -> bool:
        """As with a prompt that waits for an answer."""
        last = self._tail[-1] if self._tail else bytes(self._head[-1:])
        return bool(last) and not last.endswith((b"\n", b"\r"))

    def feed(self, data: bytes) -> None:
        """Add bytes; after `close` they are ignored."""
        if self._closed:
            return
        self.total_bytes += len(data)
        if self._file is not None:
            self._save(data)
        elif self._save_to is not None and self.saved_bytes == 0 and self.is_cut:
            self._open_file(self._save_to, data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._keep_tail(data)

    def close(self) -> None:
        self._closed = True
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def text(self) -> str:
        head, tail = bytes(self._head), b"".join(self._tail)
        if not self.is_cut:
            return (head + tail).decode(errors="replace")
        tail = tail[-self._tail_limit :]
        first, last = _without_half_characters(head, tail)
        omitted = self.total_bytes - len(head) - len(tail)
        return (
            f"{first}\n\n... [OUTPUT TRUNCATED - {omitted} chars omitted out of {self.total_bytes} total] ...\n\n{last}"
        )

    def _keep_tail(self, data: bytes) -> None:
        if len(data) >= self._tail_limit:
            self._tail.clear()
            self._tail_bytes = 0
            data = data[-self._tail_limit :]
        self._tail.append(bytes(data))
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    def _open_file(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self._save(bytes(self._head) + b"".join(self._tail))
        self._save(data)

    def _save(self, data: bytes) -> None:
        assert self._file is not None
        room = self._max_saved - self.saved_bytes
        if room <= 0:
            self._close_file()
            return
        try:
            self._file.write(data[:room])
        except OSError:
            # A full disk must not end the command; what fits has been saved.
            self._max_saved = self.saved_bytes
            return
        self.saved_bytes += min(len(data), room)


def _without_half_characters(head: bytes, tail: bytes) -> tuple[str, str]:
    """Both as text, without a character that the cut split."""
    for cut in range(min(4, len(head))):
        try:
            first = head[: len(head) - cut].decode()
            break
        except UnicodeDecodeError:
            continue
    else:
        first = head.decode(errors="replace")
    start = 0
    while start < min(4, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return first, tail[start:].decode(errors="replace")
