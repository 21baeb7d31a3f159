"""Limits how fast we read the messages of one server, so that a flood from it does not starve everything else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

UNITS_PER_SECOND = 5000
REQUEST_UNITS = 50
"""A request needs an answer, which costs far more than reading a notification."""
BYTES_PER_UNIT = 8192
MAX_BURST = 50
MAX_NOTIFICATION_BYTES = 256 * 1024
"""A larger notification is of no use to anybody and slow to parse."""


class RateLimiter:
    """The message budget of one connection."""

    def __init__(self) -> None:
        self._second = 0.0
        self._in_second = 0
        self._burst = 0

    def count(self, size: int = 0) -> None:
        """Count a message of this many bytes."""
        self._burst += 1
        self._in_second += 1 + size // BYTES_PER_UNIT

    def count_request(self) -> None:
        """Count the message as a request, which costs more."""
        self._in_second += REQUEST_UNITS

    @property
    def should_pause(self) -> bool:
        """Whether other tasks should run before the next message is read."""
        return self._in_second >= UNITS_PER_SECOND or self._burst >= MAX_BURST

    def reset_burst(self) -> None:
        """Other tasks have just run."""
        self._burst = 0

    async def pause(self) -> None:
        """Let other tasks run, until the next second if the server has used up its budget."""
        self._burst = 0
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._in_second = now, 0
        await asyncio.sleep(0 if self._in_second < UNITS_PER_SECOND else max(0.0, self._second + 1.0 - now))


class _MessageHead(msgspec.Struct):
    method: str = ""
    id: msgspec.Raw | None = None


def is_oversized_notification(line: bytes) -> bool:
    """Whether a message is a notification that is too large; checked without decoding its parameters."""
    if len(line) < MAX_NOTIFICATION_BYTES:
        return False
    try:
        head: Any = msgspec.json.decode(line, type=_MessageHead)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return bool(head.method) and head.id is None
