"""How far a call is, told line by line on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable

from toolcrib.cli.output import one_line

SECONDS_BETWEEN_LINES = 1.0


class ProgressLines:
    """Writes what a call reports, at most one line a second: a tool may report a thousand times."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._next = 0.0

    def __call__(self, text: str) -> None:
        now = self._clock()
        if text.strip() and now >= self._next:
            self._next = now + SECONDS_BETWEEN_LINES
            self._write("  " + one_line(text))
