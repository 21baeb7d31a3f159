"""How fast the messages of one server are taken: what it sends beyond that waits, and everybody else goes on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

UNITS_A_SECOND = 5000
REQUEST_UNITS = 50
"""A request of a server has to be answered, which takes far longer than reading a notice."""
BYTES_A_UNIT = 8192
READ_AT_ONCE = 50
LARGE_BYTES = 256 * 1024
"""A notice of this size is of no use to anybody, and takes long to read."""


class Pace:
    """Of one connection."""

    def __init__(self) -> None:
        self._second = 0.0
        self._in_second = 0
        self._read_now = 0

    def count(self, size: int = 0) -> None:
        """One more message, of so many bytes."""
        self._read_now += 1
        self._in_second += 1 + size // BYTES_A_UNIT

    def count_request(self) -> None:
        """The message was a request."""
        self._in_second += REQUEST_UNITS

    @property
    def is_due(self) -> bool:
        """Whether others should have the loop before the next message."""
        return self._in_second >= UNITS_A_SECOND or self._read_now >= READ_AT_ONCE

    def rested(self) -> None:
        """Others have had the loop."""
        self._read_now = 0

    async def breathe(self) -> None:
        """Lets others have the loop, for longer where a server sends more than anybody could use."""
        self._read_now = 0
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._in_second = now, 0
        await asyncio.sleep(0 if self._in_second < UNITS_A_SECOND else max(0.0, self._second + 1.0 - now))


class _Head(msgspec.Struct):
    method: str = ""
    id: msgspec.Raw | None = None


def is_useless(line: bytes) -> bool:
    """Whether a message is a notice that is too large to be one; found without reading all of it."""
    if len(line) < LARGE_BYTES:
        return False
    try:
        head: Any = msgspec.json.decode(line, type=_Head)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return bool(head.method) and head.id is None
