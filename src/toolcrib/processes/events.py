"""What happened to the processes of a session, stored so that every reader gets each event once.

One file of JSON lines for each session, which several processes of ours may write; one small file of cursors beside it.
Events have ascending numbers; a reader's cursor is the last number that he has acknowledged. What is written survives
the end of our process at any moment. A power cut may take the last events, but with them the processes that they are
about, and the next start tells of those.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.core.types import JsonObject

if sys.platform != "win32":
    import fcntl

MAX_EVENTS = 1_000
"""A session keeps half as many when it comes to more."""
SESSION_KEPT_SECONDS = 7 * 24 * 3600.0
CONSUMED = "consumed"
"""A line that takes back a completion: its session has learnt of it otherwise."""
LOCK_WAIT_SECONDS = 5.0
LOCK_POLL_SECONDS = 0.002


_ENDINGS = {
    "exited": "has ended",
    "killed": "was ended",
    "lost": "was lost, and may still be running",
    "failed_start": "could not start: its folder does not exist",
}
_OTHER_WORDS = {
    "watch_overflow_tripped": "The watched processes print too many matches; all hold back for {paused_seconds:g} s.",
    "watch_overflow_released": "The watched processes are told of again.",
    "events_dropped": "{count} older events of background processes were not kept.",
}


@dataclass(frozen=True, slots=True)
class ProcessEvent:
    """One thing that happened to a process of a session."""

    number: int
    type: str
    """completion, watch_match, watch_disabled, watch_overflow_tripped, watch_overflow_released, events_dropped."""
    fields: JsonObject

    def as_json(self) -> JsonObject:
        return {"type": self.type, **self.fields}

    def in_words(self) -> str:
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
        return _OTHER_WORDS.get(self.type, self.type).format_map(self.fields)


@dataclass(slots=True)
class _Known:
    """What we have read of a session's file, and how far."""

    inode: int = 0
    read_until: int = 0
    last_number: int = 0
    events: list[ProcessEvent] = field(default_factory=list)
    consumed: set[str] = field(default_factory=set)


class EventStore:
    """The events of all sessions of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, _Known] = {}

    def append(self, session_key: str, type_: str, fields: Mapping[str, Any]) -> ProcessEvent:
        """Store an event; from now on it cannot be lost."""
        path = self._path(session_key)
        with self._writing(path):
            known = self._read_on(session_key, path)
            event = ProcessEvent(known.last_number + 1, type_, dict(fields))
            _append_line(path, {"number": event.number, "type": type_, "session": session_key, **event.fields})
            if len(known.events) >= MAX_EVENTS:
                self._shorten(path, session_key)
        return event

    def consume(self, session_key: str, process_id: str) -> None:
        """Do not tell of a completion any more: the session's model has just read it."""
        if process_id in self.completed(session_key):
            self.append(session_key, CONSUMED, {"session_id": process_id})

    def completed(self, session_key: str) -> set[str]:
        """The processes whose completion is stored and not consumed."""
        known = self._read_on(session_key, self._path(session_key))
        ended = {str(event.fields.get("session_id")) for event in known.events if event.type == "completion"}
        return ended - known.consumed

    def has_completion(self, session_key: str, process_id: str) -> bool:
        """Whether the end of a process was stored, consumed or not."""
        events = self._read_on(session_key, self._path(session_key)).events
        return any(event.type == "completion" and event.fields.get("session_id") == process_id for event in events)

    def unread(self, session_key: str, reader: str) -> list[ProcessEvent]:
        """What the reader has not acknowledged yet, oldest first; the same again until he does."""
        path = self._path(session_key)
        known = self._read_on(session_key, path)
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
        """The reader has dealt with all events up to this number."""
        path = self._path(session_key)
        with self._writing(path):
            cursors = self._cursors(path)
            if number > cursors.get(reader, 0):
                _replace(_cursor_path(path), json.dumps({**cursors, reader: number}).encode())

    def prune(self, now: float | None = None) -> None:
        """Forget sessions that nothing has happened in for a week."""
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

    def _read_on(self, session_key: str, path: Path) -> _Known:
        """Take in the lines that were added since the last look."""
        known = self._known.setdefault(session_key, _Known())
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            known = self._known[session_key] = _Known()
            return known
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if status.st_ino != known.inode or status.st_size < known.read_until:
                known = self._known[session_key] = _Known(inode=status.st_ino)
            if status.st_size == known.read_until:
                return known
            stream.seek(known.read_until)
            added = stream.read()
        whole = added[: added.rfind(b"\n") + 1]
        known.read_until += len(whole)
        for line in whole.splitlines():
            _take_in(known, line)
        return known

    def _shorten(self, path: Path, session_key: str) -> None:
        known = self._read_on(session_key, path)
        kept = known.events[-MAX_EVENTS // 2 :]
        lines = [{"number": event.number, "type": event.type, "session": session_key, **event.fields} for event in kept]
        # The last number stays known when the newest line was one that took something back.
        here = {str(event.fields.get("session_id")) for event in kept}
        lines += [
            {"number": known.last_number, "type": CONSUMED, "session": session_key, "session_id": process_id}
            for process_id in sorted(known.consumed & here)
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
        """Keeps other processes from adding to the session at the same time."""
        lock_path = path.with_suffix(".lock")
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, OWNER_FILE)
        except FileNotFoundError:
            make_folder(self._folder)
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, OWNER_FILE)
        try:
            take_lock(lock)
            yield
        finally:
            os.close(lock)


def take_lock(descriptor: int) -> None:
    """Lock an open file for us alone; raises TimeoutError when another process does not give it back."""
    if sys.platform == "win32":
        return
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("another process has kept the records of background processes locked") from None
            # Held for the time of one write, so this is rare and short.
            time.sleep(LOCK_POLL_SECONDS)


def _take_in(known: _Known, line: bytes) -> None:
    try:
        fields = json.loads(line)
        number, type_ = int(fields.pop("number")), str(fields.pop("type"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # Half a line of a writer that was killed.
    fields.pop("session", None)
    known.last_number = max(known.last_number, number)
    if type_ == CONSUMED:
        known.consumed.add(str(fields.get("session_id")))
    else:
        known.events.append(ProcessEvent(number, type_, fields))


def _is_consumed(event: ProcessEvent, known: _Known) -> bool:
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
