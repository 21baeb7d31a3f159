"""The journal of one session's file changes, and the packs with the contents that they replaced.

    cache/undo/<session>/index.jsonl    a line before each call, one after it, one when it is undone
    cache/undo/<session>/<call>.pack    the contents that one call was about to change, one after the other

toolcrib writes a pack before the call runs, with a copy of the journal line at its end: lines that a power cut takes
from the journal are found in the packs. A call without its second line was interrupted. A killed process loses nothing
that was written. A power cut may, until the disk has it: toolcrib starts the sync before the call runs and does not
wait for it, because a disk may take longer than the call.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from toolcrib.config.files import OWNER_FILE, replace_file, writing
from toolcrib.undo.files import FileState

SUFFIX = ".pack"
_END = struct.Struct("<Q8s")
_MARK = b"toolcrib"


class DiskSync:
    """Syncs files to disk on one thread, which starts with the first file and ends with this object."""

    def __init__(self) -> None:
        # A thread for each file would cost more than its sync.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="toolcrib-undo-disk")

    def finish(self, descriptor: int, *, wait: bool) -> None:
        """Sync what was written, then close the descriptor; return before that unless `wait` says otherwise."""
        if wait:
            _sync(descriptor)
            return
        try:
            self._pool.submit(_sync, descriptor)
        except RuntimeError:
            # The interpreter is exiting.
            _sync(descriptor)


def _sync(descriptor: int) -> None:
    try:
        # A disk failure shows when the copy is read, because its digest is checked.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class PackWriter:
    """Collects the contents of one call. They count only after `close`."""

    def __init__(self, folder: Path, name: str, disk: DiskSync) -> None:
        self.name = name
        self.size = 0
        self._disk = disk
        self._path = folder / f"{name}{SUFFIX}"
        self._descriptor: int | None = None

    def add(self, content: bytes) -> int:
        """Append a file's content; return its offset."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE)
        # At its offset, so the next content overwrites what a full disk cut short.
        offset, left = os.lseek(self._descriptor, self.size, os.SEEK_SET), memoryview(content)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.size += len(content)
        return offset

    def is_there(self, name: str) -> bool:
        """Whether a pack of the same session exists; another process may have dropped it to make room."""
        return name == self.name or self._path.with_name(f"{name}{SUFFIX}").exists()

    @property
    def is_empty(self) -> bool:
        return self._descriptor is None

    def close(self, line: bytes = b"", *, wait: bool = False) -> None:
        """Append the journal line and sync to disk; wait for that only with `wait`."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        with contextlib.ExitStack() as on_error:
            on_error.callback(os.close, descriptor)
            end = line + _END.pack(len(line), _MARK)
            os.lseek(descriptor, self.size, os.SEEK_SET)
            if os.write(descriptor, end) != len(end):
                raise OSError(f"the disk is full: {str(self._path)!r} cannot be written")
            self.size += len(end)
            on_error.pop_all()
        self._disk.finish(descriptor, wait=wait)

    def discard(self) -> None:
        """Remove the pack: nothing refers to it."""
        with contextlib.suppress(OSError):
            self.close()
        self._path.unlink(missing_ok=True)


def read_content(folder: Path, pack: str, offset: int, size: int) -> bytes:
    """A file's content from a pack; raises FileNotFoundError when it was dropped, OSError when it is cut short."""
    if size == 0:
        return b""
    with (folder / f"{pack}{SUFFIX}").open("rb") as stream:
        stream.seek(offset)
        content = stream.read(size)
    if len(content) != size:
        raise OSError("the copy is damaged")
    return content


def line_of(folder: Path, pack: str) -> bytes:
    """The journal line at the end of a pack; empty when the pack is incomplete."""
    try:
        with (folder / f"{pack}{SUFFIX}").open("rb") as stream:
            stream.seek(-_END.size, os.SEEK_END)
            length, mark = _END.unpack(stream.read(_END.size))
            if mark != _MARK:
                return b""
            stream.seek(-_END.size - length, os.SEEK_END)
            return stream.read(length)
    except OSError:
        return b""


def pack_names(folder: Path) -> set[str]:
    try:
        return {entry.name.removesuffix(SUFFIX) for entry in os.scandir(folder) if entry.name.endswith(SUFFIX)}
    except OSError:
        return set()


def packs_of(folder: Path) -> list[os.DirEntry[str]]:
    """The packs of a session, the oldest first."""
    try:
        found = [entry for entry in os.scandir(folder) if entry.name.endswith(SUFFIX)]
        return sorted(found, key=lambda entry: entry.stat().st_mtime_ns)
    except OSError:
        return []


def size_of(folder: Path) -> int:
    """How many bytes a session takes on disk."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    except OSError:
        return 0


INDEX = "index.jsonl"
MAX_BYTES = 32_000_000
UNDO, REDO = "toolcrib undo", "toolcrib redo"
"""The tool names of undos and redos in the journal; no real tool can have them."""


class PathState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path and what was there."""

    path: str
    state: FileState


class SnapshotBefore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="before", tag_field="event"):
    """A call that is about to run, with the state of the paths that it may change."""

    id: str
    at: float
    tool: str
    summary: str = ""
    """The call in one line."""
    call_id: str = ""
    turn_id: str = ""
    workspace: str = ""
    environment: dict[str, Any] | None = msgspec.field(default=None, name="place")
    """The spec of the environment of the files; None means this machine."""
    files: tuple[PathState, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not saved, and why."""
    undoes: tuple[tuple[str, str], ...] = msgspec.field(default=(), name="takes_back")
    """For an undo: the changes that it undoes, each as entry and path."""


class SnapshotAfter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="after", tag_field="event"):
    """The same paths after the call, and those that it created."""

    id: str
    files: tuple[PathState, ...] = ()
    notes: tuple[str, ...] = ()


class CallDetached(msgspec.Struct, frozen=True, kw_only=True, tag="runs on", tag_field="event"):
    """A call whose command continues in the background, with an unknown end."""

    id: str


class ChangesUndone(msgspec.Struct, frozen=True, kw_only=True, tag="undone", tag_field="event"):
    """Changes that were undone, each as entry and path."""

    changes: tuple[tuple[str, str], ...]


class ChangesRedone(msgspec.Struct, frozen=True, kw_only=True, tag="redone", tag_field="event"):
    """Changes that were redone, each as entry and path."""

    changes: tuple[tuple[str, str], ...]


JournalEvent = SnapshotBefore | SnapshotAfter | CallDetached | ChangesUndone | ChangesRedone


@dataclass(slots=True)
class JournalEntry:
    """One call, as the journal describes it."""

    started: SnapshotBefore
    order: int
    before: dict[str, FileState]
    after: dict[str, FileState] | None = None
    """None for a call whose end is unknown."""
    ended_order: int = -1
    notes: tuple[str, ...] = ()
    runs_on: bool = False
    """Its command continued in the background."""
    undone: set[str] = field(default_factory=set)
    """The paths that were restored."""

    @property
    def id(self) -> str:
        return self.started.id

    @property
    def is_call(self) -> bool:
        return self.started.tool not in (UNDO, REDO)

    def changed_paths(self) -> list[str]:
        """The paths that the call changed; for an interrupted call, all that it may have changed."""
        if self.after is None:
            return list(self.before)
        return [path for path, state in self.before.items() if not state.is_same(self.after.get(path, state))]


def line_for(event: JournalEvent) -> bytes:
    """An event as a line of the journal."""
    # ASCII with escapes, because a path may contain bytes that are not text.
    return json.dumps(msgspec.to_builtins(event)).encode("ascii")


def append(folder: Path, line: bytes, disk: DiskSync | None = None, *, wait: bool = False) -> None:
    """Append a line; if a disk is given, sync the line to it, and wait for that only with `wait`."""
    # The leading line feed keeps this line intact after one that a killed process left incomplete.
    written = b"\n" + line + b"\n"
    descriptor = os.open(folder / INDEX, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_FILE)
    with contextlib.ExitStack() as on_error:
        on_error.callback(os.close, descriptor)
        if os.write(descriptor, written) != len(written):
            raise OSError(f"the disk is full: {str(folder)!r} cannot be written")
        on_error.pop_all()
    if disk is not None:
        disk.finish(descriptor, wait=wait)
    else:
        os.close(descriptor)


def shorten(folder: Path) -> None:
    """Drop the older half of a journal that has grown too long, with the packs that only this half refers to."""
    index = folder / INDEX
    try:
        if index.stat().st_size <= MAX_BYTES:
            return
    except OSError:
        return
    with writing(index) as target:
        lines = target.read_bytes().split(b"\n")
        kept = lines[len(lines) // 2 :]
        replace_file(target, b"\n".join(kept), mode=OWNER_FILE)
    known = _entries(_events(kept))
    used = {state.pack for entry in known.values() for state in entry.before.values()}
    for pack in pack_names(folder) - used - known.keys():
        (folder / f"{pack}{SUFFIX}").unlink(missing_ok=True)


def read(folder: Path) -> list[JournalEntry]:
    """Every call of the session, oldest first."""
    try:
        events = _events((folder / INDEX).read_bytes().split(b"\n"))
    except (FileNotFoundError, NotADirectoryError):
        events = []
    entries = _entries(events)
    lost = pack_names(folder) - entries.keys()
    if lost:
        # Lines that a power cut or a kill took from the journal are in the packs.
        for event in _events([line_of(folder, pack) for pack in lost]):
            events.insert(_position_of(event, events), event)
        entries = _entries(events)
    return list(entries.values())


def _position_of(lost: JournalEvent, events: Sequence[JournalEvent]) -> int:
    """Where an event belongs: before calls that started later, and before other events of its call."""
    for environment, event in enumerate(events):
        if isinstance(event, SnapshotBefore) and isinstance(lost, SnapshotBefore) and event.at > lost.at:
            return environment
        if isinstance(event, SnapshotAfter | CallDetached) and isinstance(lost, SnapshotBefore) and event.id == lost.id:
            return environment
    return len(events)


def _entries(events: Sequence[JournalEvent]) -> dict[str, JournalEntry]:
    entries: dict[str, JournalEntry] = {}
    for order, event in enumerate(events):
        if isinstance(event, SnapshotBefore):
            before = {one.path: one.state for one in event.files}
            entries[event.id] = JournalEntry(event, order, before, notes=event.notes)
        elif isinstance(event, ChangesUndone | ChangesRedone):
            _mark(entries, event)
        elif event.id in entries and isinstance(event, SnapshotAfter):
            _end(entries[event.id], event, order)
        elif event.id in entries:
            entries[event.id].runs_on = True
    _complete(entries)
    return entries


def _complete(entries: dict[str, JournalEntry]) -> None:
    """Fill in contents that a call did not read (large files, changes of modes): the next call on the file did."""
    read: dict[tuple[str, str, int], FileState] = {}
    for entry in reversed(entries.values()):
        for path, state in (entry.after or {}).items():
            known = _read_later(path, state, read)
            if known is not None and entry.after is not None:
                entry.after[path] = replace(state, digest=known.digest)
        for path, state in entry.before.items():
            known = _read_later(path, state, read)
            if known is not None:
                entry.before[path] = replace(
                    state, digest=known.digest, pack=known.pack, offset=known.offset, not_kept=known.not_kept
                )
            elif state.digest and state.stamp:
                read[path, state.stamp, state.size] = state


def _read_later(path: str, state: FileState, read: Mapping[tuple[str, str, int], FileState]) -> FileState | None:
    return read.get((path, state.stamp, state.size)) if state.kind == "file" and not state.digest else None


def _end(entry: JournalEntry, event: SnapshotAfter, order: int) -> None:
    entry.after = {one.path: one.state for one in event.files}
    entry.ended_order = order
    entry.notes = (*entry.notes, *event.notes)
    for path in entry.after:
        # The call created what only appeared afterwards.
        entry.before.setdefault(path, FileState(kind="missing"))


def _mark(entries: dict[str, JournalEntry], event: ChangesUndone | ChangesRedone) -> None:
    for entry_id, path in event.changes:
        entry = entries.get(entry_id)
        if entry is None:
            continue
        if isinstance(event, ChangesUndone):
            entry.undone.add(path)
        else:
            entry.undone.discard(path)


def _events(lines: Iterable[bytes]) -> list[JournalEvent]:
    found: list[JournalEvent] = []
    for line in lines:
        # A killed process may leave an incomplete line.
        with contextlib.suppress(ValueError, msgspec.MsgspecError):
            found += [msgspec.convert(json.loads(line), JournalEvent)] if line else []
    return found
