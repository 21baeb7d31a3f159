"""Telling sessions what happened to their processes: stores the events, and wakes who waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolcrib.processes.events import EventStore, ProcessEvent
from toolcrib.processes.session import TrackedProcess
from toolcrib.processes.watch import Breaker, Told, WatchLimits, plain

logger = logging.getLogger(__name__)

COMPLETION_OUTPUT_CHARS = 2_000


class Notices:
    """The events of the processes of one registry."""

    def __init__(
        self,
        folder: Path,
        limits: WatchLimits,
        clock: Callable[[], float],
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self.store = EventStore(folder)
        self._limits = limits
        self._clock = clock
        self._on_event = on_event
        self._breakers: dict[str, Breaker] = {}
        self._pauses: dict[str, asyncio.TimerHandle] = {}
        self._news: dict[str, asyncio.Event] = {}

    def look_through(self, tracked: TrackedProcess, text: str) -> None:
        """Hold new output of a process against its patterns."""
        watch = tracked.watch
        if watch is None or watch.disabled:
            return
        watch.feed(text, self._clock())
        if watch.holds_back and tracked.watch_timer is None:
            self._tell_matches(tracked)

    def ended(self, tracked: TrackedProcess, rest: str) -> None:
        """Tell of the end of a process; `rest` is the last of its output."""
        self.stop_watching(tracked)
        if tracked.watch is not None:
            tracked.watch.feed(rest, self._clock())
            for told in tracked.watch.due(self._clock(), at_end=True):
                self._tell_match(tracked, told)
        if tracked.record.notify_on_complete:
            self.tell(tracked.record.session_key, "completion", tracked.completion(COMPLETION_OUTPUT_CHARS, plain))

    def tell(self, session_key: str, type_: str, fields: Mapping[str, Any]) -> None:
        """Store an event and wake who waits for it."""
        try:
            self.store.append(session_key, type_, fields)
        except (OSError, TimeoutError):
            logger.exception("an event of a background process cannot be stored: %s %s", type_, dict(fields))
            return
        news = self._news.pop(session_key, None)
        if news is not None:
            news.set()
        if self._on_event is not None:
            self._on_event(session_key)

    def unread(self, session_key: str, reader: str) -> list[ProcessEvent]:
        """What the reader has not acknowledged yet."""
        return self.store.unread(session_key, reader)

    def acknowledge(self, session_key: str, reader: str, number: int) -> None:
        """The reader has dealt with the events up to this one."""
        self.store.acknowledge(session_key, reader, number)

    async def next_unread(self, session_key: str, reader: str, timeout_seconds: float | None) -> list[ProcessEvent]:
        """As `unread`, but waits until there is something; empty when the time is over."""
        news = self._news.setdefault(session_key, asyncio.Event())
        unread = self.unread(session_key, reader)
        if unread or timeout_seconds == 0:
            return unread
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await news.wait()
        return self.unread(session_key, reader)

    def stop_watching(self, tracked: TrackedProcess) -> None:
        """Stop the clock that tells of what is held back."""
        if tracked.watch_timer is not None:
            tracked.watch_timer.cancel()
            tracked.watch_timer = None

    def close(self) -> None:
        """Stop all clocks."""
        for timer in self._pauses.values():
            timer.cancel()
        self._pauses.clear()

    def _tell_matches(self, tracked: TrackedProcess) -> None:
        watch = tracked.watch
        tracked.watch_timer = None
        if watch is None or not watch.holds_back or not tracked.is_running:
            return
        now = self._clock()
        breaker = self._breakers.setdefault(tracked.record.session_key, Breaker(self._limits))
        ready_at = max(watch.due_at, breaker.paused_until)
        if now < ready_at:
            loop = asyncio.get_running_loop()
            tracked.watch_timer = loop.call_later(ready_at - now, self._tell_matches, tracked)
            return
        for told in watch.due(now):
            self._tell_match(tracked, told)
            if told.type == "watch_disabled":
                # Whoever waited for a word still wants to know what became of it.
                tracked.record = replace(tracked.record, notify_on_complete=True)
        if breaker.count(now):
            self._pause(tracked.record.session_key, breaker)

    def _tell_match(self, tracked: TrackedProcess, told: Told) -> None:
        record = tracked.record
        about = {"session_id": record.id, "session_key": record.session_key, "command": record.command}
        matched = {"pattern": told.pattern, "output": told.output, "suppressed": told.suppressed}
        if told.type == "watch_disabled":
            matched = {"pattern": told.pattern, "notify_on_complete": True, "message": _DISABLED}
        self.tell(record.session_key, told.type, {**about, **matched})

    def _pause(self, session_key: str, breaker: Breaker) -> None:
        seconds = self._limits.breaker_pause_seconds
        self.tell(session_key, "watch_overflow_tripped", {"session_key": session_key, "paused_seconds": seconds})
        loop = asyncio.get_running_loop()
        self._pauses[session_key] = loop.call_later(seconds, self._released, session_key)

    def _released(self, session_key: str) -> None:
        del self._pauses[session_key]
        self.tell(session_key, "watch_overflow_released", {"session_key": session_key})


_DISABLED = "It matches all the time, so it is not watched any more; you will be told when the process ends."
