"""What the calls of a session did to files, and whether an undo would lose later work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from toolcrib.undo.files import SPECIAL, FileState
from toolcrib.undo.store import StoredCall

CUT_SHORT = "the call was interrupted, so it is unknown whether it left the file like this"
RUNS_ON = "the command continued in the background, so it is unknown whether it left the file like this"
CHANGED_SINCE = "it has changed since"
DURING = "it changed during the call, perhaps by something else"
LATER = "a later call of this session also changed it; undo that first"


@dataclass(frozen=True, slots=True)
class PathChange:
    """What one call did to one path."""

    entry: StoredCall
    path: str

    @property
    def before(self) -> FileState:
        return self.entry.before[self.path]

    @property
    def after(self) -> FileState | None:
        """The state after the call; None if it is unknown."""
        return self.entry.after.get(self.path)

    @property
    def key(self) -> tuple[str, str]:
        return self.entry.id, self.path


def changes_of(entries: Sequence[StoredCall]) -> list[PathChange]:
    """The changes that were not undone, oldest first."""
    return [PathChange(one, path) for one in entries for path in one.changed_paths() if path not in one.undone]


def by_path(changes: Sequence[PathChange]) -> dict[str, list[PathChange]]:
    found: dict[str, list[PathChange]] = {}
    for change in changes:
        found.setdefault(change.path, []).append(change)
    return found


def why_refused(now: FileState, changes: Sequence[PathChange], others: Sequence[PathChange]) -> str:
    """Why a path must not be restored without force, or "". `others` are changes that are not to be undone."""
    if now.kind == "special":
        return SPECIAL
    uncertain = [change.entry for change in changes if change.entry.outcome != "finished"]
    if uncertain:
        return RUNS_ON if all(entry.runs_on for entry in uncertain) else CUT_SHORT
    if any(change.path in change.entry.during for change in changes):
        return DURING
    last = max(changes, key=lambda change: change.entry.ended_order)
    if any(change.entry.order > last.entry.order for change in others):
        return LATER
    if last.after is None or not now.is_same(last.after):
        return CHANGED_SINCE
    return "" if _is_unbroken(changes) else CHANGED_SINCE


def _is_unbroken(changes: Sequence[PathChange]) -> bool:
    """Whether each call found the state that the previous one left. A nested call finds an intermediate state."""
    events = [(change.entry.order, True, change.before) for change in changes]
    events += [(change.entry.ended_order, False, change.after or change.before) for change in changes]
    running, left = 0, None
    for _, begins, state in sorted(events, key=lambda event: event[0]):
        if begins and running == 0 and left is not None and not state.is_same(left):
            return False
        running += 1 if begins else -1
        left = state
    return True


Kind = Literal["created", "changed", "deleted"]
Now = Literal["old", "new"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """A file that differs from what it was."""

    path: str
    kind: Kind
    call_ids: tuple[str, ...] = ()
    is_folder: bool = False
    during: bool = False
    """Whether something else may have changed it while the calls ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What one call did to one path."""

    path: str
    kind: Kind
    size: int
    """How many bytes the file had before the call."""
    is_folder: bool = False
    undone: bool = False
    not_kept: str = ""
    """Why it cannot be restored."""
    during: bool = False
    """Whether something else may have changed it while the call ran."""
    now: Now | None = None
    """For an interrupted call: whether the file is unchanged (`old`), or has changed, by the call or
    since (`new`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call that changed files, or may have."""

    call_id: str
    tool: str
    summary: str
    at: float
    turn_id: str
    files: tuple[FileRecord, ...]
    notes: tuple[str, ...]
    """What was not saved."""
    finished: bool
    """False when the call was interrupted, or its command continued in the background."""
    runs_on: bool
    """Its command continued in the background."""
    environment: str
    """The backend of the files; empty for this machine."""
    entry_ids: tuple[str, ...]

    @property
    def can_be_undone(self) -> bool:
        return any(not one.undone for one in self.files)

    @property
    def undone(self) -> bool:
        return bool(self.files) and not self.can_be_undone


def calls_in(entries: Sequence[StoredCall], now: Callable[[StoredCall, str], FileState]) -> list[CallRecord]:
    """The calls in a journal, oldest first. Nested entries of one call are one record."""
    groups: dict[str, list[StoredCall]] = {}
    for entry in entries:
        if entry.is_call:
            groups.setdefault(entry.started.call_id or entry.id, []).append(entry)
    records = [_record(call_id, group, now) for call_id, group in groups.items()]
    return [one for one in records if one.files or one.notes]


def _record(call_id: str, group: Sequence[StoredCall], now: Callable[[StoredCall, str], FileState]) -> CallRecord:
    first = group[0].started
    files: dict[str, FileRecord] = {}
    for entry in group:
        for path in entry.changed_paths():
            if path not in files:
                files[path] = _file_record(entry, path, now)
    environment = str(first.environment["spec"].get("backend", "")) if first.environment is not None else ""
    return CallRecord(
        call_id=call_id,
        tool=first.tool,
        summary=first.summary,
        at=first.at,
        turn_id=first.turn_id,
        files=tuple(without_implied(list(files.values()))),
        notes=tuple(dict.fromkeys(note for entry in group for note in entry.started.notes)),
        finished=all(entry.outcome == "finished" for entry in group),
        runs_on=any(entry.runs_on for entry in group),
        environment=environment,
        entry_ids=tuple(entry.id for entry in group),
    )


def _file_record(entry: StoredCall, path: str, now: Callable[[StoredCall, str], FileState]) -> FileRecord:
    before = entry.before[path]
    state: Now | None = None
    if entry.outcome == "finished":
        after = entry.after[path]
    else:
        try:
            after = now(entry, path)
        except OSError:
            after = before
        state = "old" if after.is_same(before) else "new"
    return FileRecord(
        path=path,
        kind=kind_of(before, after),
        size=before.size,
        is_folder="folder" in (before.kind, after.kind) or _would_be_folder(entry, path, after),
        undone=path in entry.undone,
        during=path in entry.during,
        not_kept=before.not_kept if not before.has_copy and not after.has_content_of(before) else "",
        now=state,
    )


def _would_be_folder(entry: StoredCall, path: str, after: FileState) -> bool:
    """Whether a path that a call did not create would only have been the parent folder of another one."""
    is_missing = entry.before[path].kind == after.kind == "missing"
    return is_missing and any(other.startswith(f"{path}/") for other in entry.before)


def kind_of(before: FileState, after: FileState) -> Kind:
    if before.kind == "missing":
        return "created"
    return "deleted" if after.kind == "missing" else "changed"


T = TypeVar("T", ChangedFile, FileRecord)


def without_implied(files: list[T]) -> list[T]:
    """The files, without folders that were created or removed along with their contents."""
    above: set[str] = set()
    for one in files:
        folder = one.path.rpartition("/")[0]
        while folder and folder not in above:
            above.add(folder)
            folder = folder.rpartition("/")[0]
    return [one for one in files if not one.is_folder or one.kind == "changed" or one.path not in above]
