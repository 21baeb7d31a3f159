"""What files were before tools changed them, so that a person can see the difference and take it back.

    cache/undo/<session>/index.jsonl    one line for each file before a call, after it, and when it was put back
    cache/undo/<session>/copies/        contents, by their digest

Only files on this machine that a call says it writes or deletes are kept; what a command in a terminal does is not
known beforehand. A copy and its line are on disk before the call runs.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolcrib.config.files import make_folder
from toolcrib.core.types import Effect
from toolcrib.sessions import file_journal
from toolcrib.sessions.file_copies import CANNOT_BE_KEPT, FileState, put_back, save_copy, state_of
from toolcrib.sessions.file_journal import INDEX, Event, FileChange, Settled, TakenBack, Touched

logger = logging.getLogger(__name__)

MAX_SESSION_BYTES = 200_000_000
MAX_TOTAL_BYTES = 1_000_000_000
MAX_SESSIONS = 50
MAX_FILES_OF_A_FOLDER = 1_000
MAX_COMPARED_CHARS = 1_000_000
COPIES = "copies"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """A file that is not what it was before the session."""

    path: str
    kind: Literal["created", "changed", "deleted"]
    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneFile:
    """What became of a file when changes were taken back."""

    path: str
    what: Literal["restored", "removed", "refused"]
    reason: str = ""
    """Why it was left as it is, with `refused`."""


@dataclass(slots=True)
class _Running:
    """What a call that runs has touched so far. A tool may call others, which carry the same id."""

    depth: int = 0
    touched: list[Touched] = field(default_factory=list)


class FileHistory:
    """The copies of one home. Safe from any thread; several processes may use it for different sessions."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], _Running] = {}
        self._bytes: dict[str, int] = {}

    def remember(self, session_id: str, turn_id: str, call_id: str, effects: Sequence[Effect], cwd: str) -> None:
        """Keep what the files are that a call is about to write or delete. Never fails: undo is no condition."""
        with self._lock:
            running = self._running.setdefault((session_id, call_id), _Running())
            running.depth += 1
        for path in _paths(effects, cwd):
            try:
                running.touched.append(self._touch(session_id, turn_id, call_id, path))
            except OSError as error:
                logger.warning("%s cannot be kept for undo: %s", path, error)

    def finished(self, session_id: str, call_id: str) -> None:
        """Keep what the call left, so that a later change by somebody else can be told from it."""
        with self._lock:
            running = self._running.get((session_id, call_id), _Running())
            running.depth -= 1
            if running.depth <= 0:
                self._running.pop((session_id, call_id), None)
        try:
            for one in running.touched:
                self._append(session_id, Settled(id=one.id, after=state_of(Path(one.path))[0]))
        except OSError as error:
            logger.warning("files cannot be kept for undo: %s", error)

    def changed(self, session_id: str) -> list[ChangedFile]:
        """The files that are not what they were before the session, in the order of their first change."""
        found = []
        for path, changes in _by_path(self._changes(session_id)).items():
            before, now = changes[0].before, state_of(Path(path))[0]
            if before.is_same(now):
                continue
            kind: Literal["created", "changed", "deleted"] = "changed"
            if before.kind == "missing":
                kind = "created"
            elif now.kind == "missing":
                kind = "deleted"
            call_ids = tuple(dict.fromkeys(change.touched.call_id for change in changes))
            found.append(ChangedFile(path=path, kind=kind, call_ids=call_ids))
        return found

    def undo(self, session_id: str, *, turn_id: str | None = None) -> list[UndoneFile]:
        """Take back what the session, or one turn of it, did to files; what somebody else changed since is refused."""
        everything = self._changes(session_id)
        chosen = [change for change in everything if turn_id in (None, change.touched.turn_id)]
        undone: list[UndoneFile] = []
        for path, changes in reversed(_by_path(chosen).items()):
            later = [change for change in everything if change.path == path and change not in changes]
            result = self._undo_file(session_id, Path(path), changes, later)
            if result is not None:
                undone.append(result)
            if result is None or result.what != "refused":
                self._append(session_id, TakenBack(ids=tuple(change.touched.id for change in changes)))
        return undone[::-1]

    def diff(self, session_id: str, path: str) -> str:
        """The difference between a file before the session and now, as a unified diff; "" when there is none."""
        wanted = str(_absolute(path, ""))
        changes = _by_path(self._changes(session_id)).get(wanted)
        if not changes:
            return ""
        before = changes[0].before
        now, content = state_of(Path(wanted))
        if before.is_same(now):
            return ""
        old, new = _text(self._copy(session_id, before)), _text(content)
        if old is None or new is None or before.kind in CANNOT_BE_KEPT or now.kind in CANNOT_BE_KEPT:
            return f"{wanted} differs, and cannot be shown as text.\n"
        old_name, new_name = ("/dev/null" if state.kind == "missing" else wanted for state in (before, now))
        lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), old_name, new_name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def forget(self, session_id: str) -> None:
        """Remove all copies of a session."""
        shutil.rmtree(self._session_folder(session_id), ignore_errors=True)
        with self._lock:
            self._bytes.pop(session_id, None)

    def _touch(self, session_id: str, turn_id: str, call_id: str, path: Path) -> Touched:
        before, content = state_of(path)
        if before.kind == "file" and not self._has_room(session_id, len(content)):
            before = FileState(kind="no_room", digest=before.digest, mode=before.mode, size=before.size)
        elif before.kind == "file":
            save_copy(self._made_folder(session_id) / COPIES, before.digest, content)
        touched = Touched(
            id=secrets.token_hex(6),
            at=self._clock(),
            turn_id=turn_id,
            call_id=call_id,
            path=str(path),
            before=before,
            new_folders=tuple(str(folder) for folder in path.parents if not folder.exists()),
        )
        self._append(session_id, touched)
        return touched

    def _undo_file(
        self, session_id: str, path: Path, changes: list[FileChange], others: list[FileChange]
    ) -> UndoneFile | None:
        """Put one file back; None when it is so already."""
        target = changes[0].before
        now = state_of(path)[0]
        if now.is_same(target):
            return None
        reason = _why_not(path, now, changes, others)
        if reason:
            return UndoneFile(path=str(path), what="refused", reason=reason)
        try:
            put_back(path, target, self._copy(session_id, target))
            if target.kind == "missing":
                _remove_empty(changes[0].touched.new_folders)
        except OSError as error:
            return UndoneFile(path=str(path), what="refused", reason=error.strerror or str(error))
        return UndoneFile(path=str(path), what="removed" if target.kind == "missing" else "restored")

    def _copy(self, session_id: str, state: FileState) -> bytes:
        if state.kind != "file":
            return b""
        return (self._session_folder(session_id) / COPIES / state.digest).read_bytes()

    def _changes(self, session_id: str) -> list[FileChange]:
        return file_journal.read(self._session_folder(session_id))

    def _append(self, session_id: str, event: Event) -> None:
        file_journal.append(self._made_folder(session_id), event)

    def _made_folder(self, session_id: str) -> Path:
        folder = self._session_folder(session_id)
        if not folder.exists():
            make_folder(folder)
            self._prune(folder)
        return folder

    def _has_room(self, session_id: str, size: int) -> bool:
        with self._lock:
            if session_id not in self._bytes:
                self._bytes[session_id] = _size_of(self._session_folder(session_id))
            if self._bytes[session_id] + size > MAX_SESSION_BYTES:
                return False
            self._bytes[session_id] += size
            return True

    def _prune(self, newest: Path) -> None:
        """Remove the copies of the sessions that were used longest ago, where there are too many."""
        folders = sorted((one for one in self.folder.iterdir() if one != newest), key=_last_used, reverse=True)
        total = 0
        for count, folder in enumerate(folders, start=2):
            total += _size_of(folder)
            if count > MAX_SESSIONS or total > MAX_TOTAL_BYTES:
                shutil.rmtree(folder, ignore_errors=True)

    def _session_folder(self, session_id: str) -> Path:
        plain = _PLAIN_NAME.fullmatch(session_id)
        return self.folder / (session_id if plain else f"x{hashlib.sha256(session_id.encode()).hexdigest()[:32]}")


def _paths(effects: Sequence[Effect], cwd: str) -> Iterator[Path]:
    """The files on this machine that the effects speak of; those in a folder that is deleted too."""
    for effect in effects:
        if effect.kind not in ("write", "delete") or effect.backend or not effect.target or "\0" in effect.target:
            continue
        try:
            path = _absolute(effect.target, effect.cwd or cwd)
        except (OSError, ValueError, RuntimeError):
            continue  # No path of this machine: nothing can be written there either.
        if path.is_symlink():
            yield path
            real = Path(os.path.realpath(path))
            # A write goes through the link; what lies outside the working folder is not ours to copy.
            if effect.kind == "write" and real.is_relative_to(os.path.realpath(cwd or os.curdir)):
                yield real
        elif path.is_dir():
            if effect.kind == "delete":
                yield from _files_in(path)
        else:
            yield path


def _files_in(folder: Path) -> Iterator[Path]:
    left = MAX_FILES_OF_A_FOLDER
    for root, _, names in os.walk(folder, followlinks=False):
        for name in sorted(names):
            if left == 0:
                logger.warning("%s has more files than are kept for undo", folder)
                return
            left -= 1
            yield Path(root, name)


def _absolute(target: str, cwd: str) -> Path:
    """The path with the folders above it free of links; what it names itself may be one."""
    path = Path(cwd or os.curdir, Path(target).expanduser())
    return Path(os.path.realpath(path.parent), path.name) if path.name not in ("", "..") else path.resolve()


def _by_path(changes: Sequence[FileChange]) -> dict[str, list[FileChange]]:
    found: dict[str, list[FileChange]] = {}
    for change in changes:
        found.setdefault(change.path, []).append(change)
    return found


def _why_not(path: Path, now: FileState, changes: list[FileChange], others: list[FileChange]) -> str:
    """Why a file cannot be put back; "" when it can."""
    target, last = changes[0].before, changes[-1]
    if target.kind in CANNOT_BE_KEPT or now.kind == "special":
        return CANNOT_BE_KEPT["special" if now.kind == "special" else target.kind]
    if last.after is None:
        return "the call was cut short, so that it is not known whether what is there now is its doing"
    if any(change.touched.at > last.touched.at for change in others):
        return "a later call of this session changed it too; take that back first"
    in_between = (
        first.after is None or not first.after.is_same(second.before) for first, second in itertools.pairwise(changes)
    )
    if not now.is_same(last.after) or any(in_between):
        return "somebody else changed it since"
    if os.path.realpath(path.parent) != str(path.parent):
        return "its folder is now a link to another place"
    return ""


def _remove_empty(folders: Sequence[str]) -> None:
    """Remove the folders that the change had made, as far as nothing else is in them."""
    for folder in folders:
        try:
            Path(folder).rmdir()
        except OSError:
            return


def _text(content: bytes) -> str | None:
    """The content as text that can be compared; None when it is none, or too much."""
    if b"\0" in content or len(content) > MAX_COMPARED_CHARS:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _size_of(folder: Path) -> int:
    try:
        return sum(one.stat().st_size for one in (folder / COPIES).iterdir())
    except OSError:
        return 0


def _last_used(folder: Path) -> float:
    try:
        return (folder / INDEX).stat().st_mtime
    except OSError:
        return 0.0
