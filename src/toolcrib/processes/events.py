"""The events of a session's processes, stored so that every reader gets each event once.

Each session has one file of JSON lines, which several toolcrib processes may write, and one small file of cursors.
Events have ascending numbers; a reader's cursor is the last number that it has acknowledged. Stored events survive a
crash of toolcrib at any moment. A power failure may lose the last events, but also the processes they are about, and
the next start reports those.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.config.files import OWNER_FILE, make_folder, take_lock
from toolcrib.core.types import JsonObject
from toolcrib.processes.output import WatchBreaker, WatchLimits, WatchReport, strip_escapes
from toolcrib.processes.process import TrackedProcess

if sys.platform != "win32":
    pass

MAX_EVENTS = 1_000
"""When a session has more, only the newer half is kept."""
SESSION_KEPT_SECONDS = 7 * 24 * 3600.0
CONSUMED = "consumed"
"""A line that retracts a completion: the session has already learnt of it."""
LOCK_WAIT_SECONDS = 5.0


_ENDINGS = {
    "exited": "has ended",
    "killed": "was ended",
    "lost": "was lost and may still be running",
    "failed_start": "could not start because its folder does not exist",
}
_OTHER_MESSAGES = {
    "watch_overflow_tripped": "The watched processes match too often; reports are paused for {paused_seconds:g} s.",
    "watch_overflow_released": "Notifications about the watched processes resume.",
    "events_dropped": "{count} older events of background processes were dropped.",
}


class ProcessEvent(Struct, frozen=True):
    """Something that happened to a process of a session."""

    number: int
    type: str
    """completion, watch_match, watch_disabled, watch_overflow_tripped, watch_overflow_released, events_dropped."""
    fields: JsonObject

    def as_json(self) -> JsonObject:
        return {"type": self.type, **self.fields}

    def describe(self) -> str:
        """The event as a message to the session that started the process."""
        about = f"Background process {self.fields.get('session_id')} ({self.fields.get('command')})"
        output = f":\n{self.fields['output']}" if self.fields.get("output") else "."
        if self.type == "completion":
            reason, code = self.fields.get("completion_reason"), self.fields.get("exit_code")
            return f"{about} {_ENDINGS.get(str(reason), 'has ended')} (exit code {code}){output}"
        if self.type == "watch_match":
            more = self.fields.get("suppressed")
            also = f" ({more} more lines match)" if more else ""
            return f"{about} printed {self.fields.get('pattern')!r}{also}{output}"
        if self.type == "watch_disabled":
            return f"{about}: {self.fields.get('message')}"
        return _OTHER_MESSAGES.get(self.type, self.type).format_map(self.fields)


class _SessionLog(Struct):
    """What we have read of a session's file, and up to where."""

    inode: int = 0
    read_until: int = 0
    last_number: int = 0
    events: list[ProcessEvent] = field(default_factory=list)
    consumed: set[str] = field(default_factory=set)


class EventStore:
    """The events of all sessions of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, _SessionLog] = {}

    def append(self, session_key: str, type_: str, fields: Mapping[str, Any]) -> ProcessEvent:
        """Store an event durably."""
        path = self._path(session_key)
        with self._writing(path):
            known = self._read_new(session_key, path)
            event = ProcessEvent(known.last_number + 1, type_, dict(fields))
            _append_line(path, {"number": event.number, "type": type_, "session": session_key, **event.fields})
            if len(known.events) >= MAX_EVENTS:
                self._shorten(path, session_key)
        return event

    def consume(self, session_key: str, process_id: str) -> None:
        """Retract a completion: the session's model has just read the result."""
        if process_id in self.completed(session_key):
            self.append(session_key, CONSUMED, {"session_id": process_id})

    def completed(self, session_key: str) -> set[str]:
        """The processes whose completion is stored and not consumed."""
        known = self._read_new(session_key, self._path(session_key))
        ended = {str(event.fields.get("session_id")) for event in known.events if event.type == "completion"}
        return ended - known.consumed

    def has_completion(self, session_key: str, process_id: str) -> bool:
        """Whether the end of a process was stored, consumed or not."""
        events = self._read_new(session_key, self._path(session_key)).events
        return any(event.type == "completion" and event.fields.get("session_id") == process_id for event in events)

    def unread(self, session_key: str, reader: str) -> list[ProcessEvent]:
        """The events that the reader has not acknowledged, oldest first; the same again until it does."""
        path = self._path(session_key)
        known = self._read_new(session_key, path)
        cursor = self._cursors(path).get(reader, 0)
        events = known.events
        unread = [event for event in events if event.number > cursor and not _is_consumed(event, known)]
        missing = events[0].number - cursor - 1 if events else 0
        if cursor and missing > 0:
            unread.insert(0, ProcessEvent(cursor, "events_dropped", {"count": missing}))
        return unread

    def has_any(self, session_key: str) -> bool:
        """Whether anything was ever stored for a session; quick, and safe from any thread."""
        return self._path(session_key).exists()

    def acknowledge(self, session_key: str, reader: str, number: int) -> None:
        """The reader has handled all events up to this number."""
        path = self._path(session_key)
        with self._writing(path):
            cursors = self._cursors(path)
            if number > cursors.get(reader, 0):
                _replace(_cursor_path(path), json.dumps({**cursors, reader: number}).encode())

    def prune(self, now: float | None = None) -> None:
        """Delete sessions without events for a week."""
        oldest = (time.time() if now is None else now) - SESSION_KEPT_SECONDS
        for path in self._folder.glob("*.jsonl"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
                    _cursor_path(path).unlink(missing_ok=True)
                    path.with_suffix(".lock").unlink(missing_ok=True)

    def _path(self, session_key: str) -> Path:
        digest = hashlib.sha256(session_key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self._folder / f"{digest}.jsonl"

    def _read_new(self, session_key: str, path: Path) -> _SessionLog:
        """Read the lines that were added since the last call."""
        known = self._known.setdefault(session_key, _SessionLog())
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            known = self._known[session_key] = _SessionLog()
            return known
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if status.st_ino != known.inode or status.st_size < known.read_until:
                known = self._known[session_key] = _SessionLog(inode=status.st_ino)
            if status.st_size == known.read_until:
                return known
            stream.seek(known.read_until)
            added = stream.read()
        whole = added[: added.rfind(b"\n") + 1]
        known.read_until += len(whole)
        for line in whole.splitlines():
            _parse_line(known, line)
        return known

    def _shorten(self, path: Path, session_key: str) -> None:
        known = self._read_new(session_key, path)
        kept = known.events[-MAX_EVENTS // 2 :]
        lines = [{"number": event.number, "type": event.type, "session": session_key, **event.fields} for event in kept]
        # Keep the last number, even if the newest line was a retraction.
        kept_ids = {str(event.fields.get("session_id")) for event in kept}
        lines += [
            {"number": known.last_number, "type": CONSUMED, "session": session_key, "session_id": process_id}
            for process_id in sorted(known.consumed & kept_ids)
        ]
        _replace(path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def _cursors(self, path: Path) -> dict[str, int]:
        try:
            stored = json.loads(_cursor_path(path).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return {str(reader): number for reader, number in stored.items() if isinstance(number, int)}

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Keep other processes from writing to the session at the same time."""
        lock_path = path.with_suffix(".lock")
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, OWNER_FILE)
        except FileNotFoundError:
            make_folder(self._folder)
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, OWNER_FILE)
        try:
            lock_records(lock)
            yield
        finally:
            os.close(lock)


def lock_records(descriptor: int) -> None:
    """Lock an open file exclusively; raises TimeoutError if another process does not release it."""
    try:
        take_lock(descriptor, LOCK_WAIT_SECONDS)
    except TimeoutError:
        raise TimeoutError("another process keeps the records of background processes locked") from None


def _parse_line(known: _SessionLog, line: bytes) -> None:
    try:
        fields = json.loads(line)
        number, type_ = int(fields.pop("number")), str(fields.pop("type"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # A partial line of a writer that was killed.
    fields.pop("session", None)
    known.last_number = max(known.last_number, number)
    if type_ == CONSUMED:
        known.consumed.add(str(fields.get("session_id")))
    else:
        known.events.append(ProcessEvent(number, type_, fields))


def _is_consumed(event: ProcessEvent, known: _SessionLog) -> bool:
    return event.type == "completion" and str(event.fields.get("session_id")) in known.consumed


def _cursor_path(path: Path) -> Path:
    return path.with_suffix(".cursors")


def _append_line(path: Path, fields: JsonObject) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, OWNER_FILE)
    try:
        line = json.dumps(fields).encode("ascii") + b"\n"
        size = os.fstat(descriptor).st_size
        if size:
            os.lseek(descriptor, size - 1, os.SEEK_SET)
            if os.read(descriptor, 1) != b"\n":
                line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_FILE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    temporary.replace(path)


logger = logging.getLogger(__name__)

COMPLETION_OUTPUT_CHARS = 2_000


class ProcessNotifier:
    """Stores the events of a registry's processes and wakes those who wait for them."""

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
        self._breakers: dict[str, WatchBreaker] = {}
        self._pauses: dict[str, asyncio.TimerHandle] = {}
        self._new_events: dict[str, asyncio.Event] = {}

    def scan(self, tracked: TrackedProcess, text: str) -> None:
        """Match new output of a process against its patterns."""
        watch = tracked.watch
        if watch is None or watch.disabled:
            return
        watch.feed(text, self._clock())
        if watch.has_held_matches and tracked.watch_timer is None:
            self._publish_matches(tracked)

    def ended(self, tracked: TrackedProcess, rest: str) -> None:
        """Publish the end of a process; `rest` is the last of its output."""
        self.stop_watching(tracked)
        if tracked.watch is not None:
            tracked.watch.feed(rest, self._clock())
            for report in tracked.watch.due(self._clock(), at_end=True):
                self._publish_match(tracked, report)
        if tracked.record.notify_on_complete:
            self.publish(
                tracked.record.session_key, "completion", tracked.completion(COMPLETION_OUTPUT_CHARS, strip_escapes)
            )

    def publish(self, session_key: str, type_: str, fields: Mapping[str, Any]) -> None:
        """Store an event and wake those who wait for it."""
        try:
            self.store.append(session_key, type_, fields)
        except (OSError, TimeoutError):
            logger.exception("cannot store an event of a background process: %s %s", type_, dict(fields))
            return
        new_event = self._new_events.pop(session_key, None)
        if new_event is not None:
            new_event.set()
        if self._on_event is not None:
            self._on_event(session_key)

    def unread(self, session_key: str, reader: str) -> list[ProcessEvent]:
        """The events that the reader has not acknowledged."""
        return self.store.unread(session_key, reader)

    def acknowledge(self, session_key: str, reader: str, number: int) -> None:
        """The reader has handled the events up to this one."""
        self.store.acknowledge(session_key, reader, number)

    async def next_unread(self, session_key: str, reader: str, timeout_seconds: float | None) -> list[ProcessEvent]:
        """Like `unread`, but waits until there is an event; empty after the timeout."""
        new_event = self._new_events.setdefault(session_key, asyncio.Event())
        unread = self.unread(session_key, reader)
        if unread or timeout_seconds == 0:
            return unread
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await new_event.wait()
        return self.unread(session_key, reader)

    def stop_watching(self, tracked: TrackedProcess) -> None:
        """Cancel the timer for held-back matches."""
        if tracked.watch_timer is not None:
            tracked.watch_timer.cancel()
            tracked.watch_timer = None

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._pauses.values():
            timer.cancel()
        self._pauses.clear()

    def _publish_matches(self, tracked: TrackedProcess) -> None:
        watch = tracked.watch
        tracked.watch_timer = None
        if watch is None or not watch.has_held_matches or not tracked.is_running:
            return
        now = self._clock()
        breaker = self._breakers.setdefault(tracked.record.session_key, WatchBreaker(self._limits))
        ready_at = max(watch.due_at, breaker.paused_until)
        if now < ready_at:
            loop = asyncio.get_running_loop()
            tracked.watch_timer = loop.call_later(ready_at - now, self._publish_matches, tracked)
            return
        for report in watch.due(now):
            self._publish_match(tracked, report)
            if report.type == "watch_disabled":
                # Whoever waited for a pattern still wants to know how the process ends.
                tracked.record = replace(tracked.record, notify_on_complete=True)
        if breaker.count(now):
            self._pause(tracked.record.session_key, breaker)

    def _publish_match(self, tracked: TrackedProcess, report: WatchReport) -> None:
        record = tracked.record
        about = {"session_id": record.id, "session_key": record.session_key, "command": record.command}
        matched = {"pattern": report.pattern, "output": report.output, "suppressed": report.suppressed}
        if report.type == "watch_disabled":
            matched = {"pattern": report.pattern, "notify_on_complete": True, "message": _DISABLED}
        self.publish(record.session_key, report.type, {**about, **matched})

    def _pause(self, session_key: str, breaker: WatchBreaker) -> None:
        seconds = self._limits.breaker_pause_seconds
        self.publish(session_key, "watch_overflow_tripped", {"session_key": session_key, "paused_seconds": seconds})
        loop = asyncio.get_running_loop()
        self._pauses[session_key] = loop.call_later(seconds, self._released, session_key)

    def _released(self, session_key: str) -> None:
        del self._pauses[session_key]
        self.publish(session_key, "watch_overflow_released", {"session_key": session_key})


_DISABLED = "It matches constantly, so it is no longer watched; you will be notified when the process ends."
