"""Watching what a process prints for words that somebody waits for, without flooding him.

A pattern is a plain text that a line contains. One process tells of matches at most once in a window of fifteen
seconds; what matches meanwhile is told together when the window ends, with the number of matches that did not fit in.
A process that has more to tell at the end of three windows in a row is not watched any more, and its end is told
instead. A session hears at most fifteen such events in ten seconds; then all of its watches hold back for thirty.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Literal

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
class Told:
    """Something to tell about a watch."""

    type: Literal["watch_match", "watch_disabled"]
    pattern: str = ""
    output: str = ""
    suppressed: int = 0
    """Matching lines that are not shown."""


def plain(text: str) -> str:
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
        line = plain(self._line + piece)
        for pattern in self._patterns:
            at = line.find(pattern)
            if at >= 0:
                self._line_matched, self._line = True, ""
                return pattern, _around(line, at, len(pattern)).rstrip("\r")
        # A line without end must not fill the memory; a pattern across the cut is still found.
        self._line = (self._line + piece)[-self._kept_chars :]
        return None


class Watch:
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

    def due(self, now: float, *, at_end: bool = False) -> list[Told]:
        """What may be told now; `at_end`: all that is held back, because nothing can follow."""
        if not self._held_count or (now < self.due_at and not at_end):
            return []
        self._strikes = self._strikes + 1 if self._came_in_window else 0
        told = [self._match()]
        if self._strikes >= self._limits.strikes and not at_end:
            self.disabled = True
            told.append(Told(type="watch_disabled", pattern=told[0].pattern))
        self._held, self._held_count, self._came_in_window = [], 0, False
        self.due_at = now + self._limits.window_seconds
        return told

    def _match(self) -> Told:
        shown: list[str] = []
        room = self._limits.event_chars
        for _, line in self._held:
            if shown and len(line) + 1 > room:
                break
            shown.append(line[:room])
            room -= len(line) + 1
        return Told(
            type="watch_match",
            pattern=self._held[0][0],
            output="\n".join(shown),
            suppressed=self._held_count - len(shown),
        )


class Breaker:
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
