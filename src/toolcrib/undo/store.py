"""Where undo stores snapshots: a bounded folder for each session, readable only by its owner."""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from toolcrib.config.files import make_folder
from toolcrib.config.settings import UndoSettings
from toolcrib.undo import journal
from toolcrib.undo.file_snapshot import FileSnapshot, SnapshotLimits, StoredContents
from toolcrib.undo.files import FileState
from toolcrib.undo.journal import (
    INDEX,
    SUFFIX,
    DiskSync,
    JournalEntry,
    JournalEvent,
    PackWriter,
    PathState,
    SnapshotAfter,
    SnapshotBefore,
    packs_of,
    read_content,
    size_of,
)

DIRECT = "direct"
"""The session of calls that have no other."""
MAX_SESSIONS = 200
MEGABYTE = 1_000_000
CHECKED_BYTES = 50_000_000
"""Each time a session has grown by this much, the oldest sessions are pruned."""
ROOM_LEFT = 0.9
"""Copies are dropped down to this share of the limit, because listing them all for each call would take long."""
DROPPED = "its copy was dropped to make room for newer ones"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")


@dataclass(slots=True)
class _Session:
    """What this process knows about the folder of a session."""

    folder: Path
    kept: StoredContents
    used: int
    """The size of its packs on disk."""


class UndoStore:
    """The journals and copies of one home. Safe for threads and processes."""

    def __init__(
        self, folder: Path, settings: UndoSettings | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self.clock = clock
        self._settings = settings or UndoSettings()
        self._disk = DiskSync()
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}

    # Write

    def limits(
        self, *, max_files: int = 20_000, max_bytes: float = float("inf"), seconds: float = 10.0
    ) -> SnapshotLimits:
        """How much to save for one call, within the settings."""
        return SnapshotLimits(
            max_file_bytes=int(min(self._settings.max_file_mb * MEGABYTE, max_bytes)),
            max_bytes=int(min(self._settings.max_session_mb * MEGABYTE, max_bytes)),
            max_files=max_files,
            seconds=seconds,
        )

    def new_pack(self, session_id: str) -> PackWriter:
        return PackWriter(self._opened(session_id).folder, secrets.token_hex(6), self._disk)

    def kept(self, session_id: str) -> StoredContents:
        """The contents that a session has stored already."""
        return self._opened(session_id).kept

    def begin(
        self,
        session_id: str,
        started: SnapshotBefore,
        before: FileSnapshot,
        pack: PackWriter,
        *,
        needed: frozenset[str] = frozenset(),
        wait: bool = False,
    ) -> None:
        """Record a call under the name of its pack; from then on it survives the end of the process.

        With `wait`, it also survives a power cut. Needed packs are not dropped to make room.
        """
        session = self._opened(session_id)
        files = tuple(PathState(path=path, state=state) for path, state in before.states.items())
        line = journal.line_for(replace(started, files=files, notes=tuple(before.notes)))
        is_alone = pack.is_empty
        pack.close(line, wait=wait)
        journal.append(session.folder, line, self._disk if is_alone else None, wait=wait)
        with self._lock:
            session.kept.update(before.newly_kept)
            session.used += pack.size
            if session.used // CHECKED_BYTES != (session.used - pack.size) // CHECKED_BYTES:
                self._prune(session.folder)
        self._make_room(session, needed | {pack.name})

    def end(self, session_id: str, entry_id: str, before: FileSnapshot, after: FileSnapshot) -> None:
        """Record the state after a call."""
        # A path without an earlier record counts as new only if certainly nothing was there: an undo would remove it.
        changed = [
            PathState(path=path, state=state)
            for path, state in after.states.items()
            if (not before.states[path].is_same(state) if path in before.states else before.knew_missing(path))
        ]
        notes = tuple(note for note in after.notes if note not in before.notes)
        # No wait: if a power cut loses this line, the call looks interrupted, and its copies remain.
        line = journal.line_for(SnapshotAfter(id=entry_id, files=tuple(changed), notes=notes))
        journal.append(self._opened(session_id).folder, line)

    def say(self, session_id: str, started: SnapshotBefore, note: str) -> None:
        """Record that nothing was saved for a call, and why."""
        self.append(session_id, replace(started, notes=(note,)))
        self.append(session_id, SnapshotAfter(id=started.id))

    def append(self, session_id: str, event: JournalEvent) -> None:
        journal.append(self._opened(session_id).folder, journal.line_for(event), self._disk, wait=True)

    # Read

    def entries(self, session_id: str) -> list[JournalEntry]:
        """Every call of a session, oldest first."""
        return journal.read(self.folder_of(session_id))

    def content(self, session_id: str, state: FileState) -> bytes:
        """The stored content of a file; raises OSError with the reason if there is no copy."""
        if state.kind != "file" or state.size == 0:
            return b""
        try:
            content = read_content(self.folder_of(session_id), state.pack, state.offset, state.size)
        except FileNotFoundError:
            raise OSError(DROPPED) from None
        if hashlib.sha256(content).hexdigest() != state.digest:
            raise OSError("the copy is damaged")
        return content

    def is_kept(self, session_id: str, state: FileState) -> bool:
        return not state.pack or (self.folder_of(session_id) / f"{state.pack}{SUFFIX}").exists()

    def sessions(self) -> list[str]:
        """The sessions with stored changes, by the names of their folders, the latest first."""
        try:
            folders = [one for one in self.folder.iterdir() if (one / INDEX).exists()]
        except OSError:
            return []
        return [one.name for one in sorted(folders, key=_last_used, reverse=True)]

    def folder_of(self, session_id: str) -> Path:
        name = session_id or DIRECT
        plain = _PLAIN_NAME.fullmatch(name)
        return self.folder / (name if plain else f"x{hashlib.sha256(name.encode()).hexdigest()[:32]}")

    def forget(self, session_id: str) -> None:
        """Remove everything that is stored for a session."""
        shutil.rmtree(self.folder_of(session_id), ignore_errors=True)
        with self._lock:
            self._sessions.pop(session_id, None)

    # Limits

    def _opened(self, session_id: str) -> _Session:
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None or not session.folder.exists():
                session = self._open(session_id)
                self._sessions[session_id] = session
            return session

    def _open(self, session_id: str) -> _Session:
        folder = self.folder_of(session_id)
        if not folder.exists():
            make_folder(folder)
            self._prune(folder)
        journal.shorten(folder)
        packs = packs_of(folder)
        there = {pack.name.removesuffix(SUFFIX) for pack in packs}
        states = (state for entry in journal.read(folder) for state in entry.before.values())
        kept = {state.digest: (state.pack, state.offset) for state in states if state.pack in there}
        return _Session(folder, kept, sum(pack.stat().st_size for pack in packs))

    def _make_room(self, session: _Session, needed: frozenset[str]) -> None:
        """Drop the oldest copies of a session that exceeds its limit."""
        limit = self._settings.max_session_mb * MEGABYTE
        if session.used <= limit:
            return
        with self._lock:
            packs = packs_of(session.folder)
            session.used = sum(pack.stat().st_size for pack in packs)
            for pack in packs:
                name = pack.name.removesuffix(SUFFIX)
                if session.used <= limit * ROOM_LEFT or name in needed:
                    continue
                session.used -= pack.stat().st_size
                Path(pack.path).unlink(missing_ok=True)
                for digest in [one for one, environment in session.kept.items() if environment[0] == name]:
                    del session.kept[digest]

    def _prune(self, newest: Path) -> None:
        """Remove the least recently used sessions when together they take too much space."""
        folders = sorted((one for one in self.folder.iterdir() if one != newest), key=_last_used, reverse=True)
        total = size_of(newest)
        for count, folder in enumerate(folders, start=2):
            total += size_of(folder)
            if count > MAX_SESSIONS or total > self._settings.max_total_mb * MEGABYTE:
                shutil.rmtree(folder, ignore_errors=True)


def _last_used(folder: Path) -> float:
    try:
        return (folder / INDEX).stat().st_mtime
    except OSError:
        return 0.0
