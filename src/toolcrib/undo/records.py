"""What the calls of a session did to files, and whether an undo would lose later work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from toolcrib.undo.files import SPECIAL, FileState
from toolcrib.undo.store import StoredCall, StoredChange

CUT_SHORT = "the call was interrupted, so it is unknown whether it left the file like this"
RUNS_ON = "the command continued in the background, so it is unknown whether it left the file like this"
CHANGED_SINCE = "it has changed since"
DURING = "it changed during the call, perhaps by something else"
LATER = "a later call of this session also changed it; undo that first"

Kind = Literal["created", "changed", "deleted"]
LookNow = Callable[[StoredChange], FileState]


def changes_of(calls: Iterable[StoredCall]) -> dict[str, list[StoredChange]]:
    """The changes to each path that were not undone, oldest first."""
    found: dict[str, list[StoredChange]] = {}
    for call in calls:
        for change in call.changes:
            if not change.undone:
                found.setdefault(change.path, []).append(change)
    return found


def why_refused(now: FileState, changes: Sequence[StoredChange], others: Sequence[StoredChange]) -> str:
    """Why a path must not be restored without force, or "". `others` are changes that are not to be undone."""
    if now.kind == "special":
        return SPECIAL
    uncertain = [change.call.outcome for change in changes if change.call.outcome != "finished"]
    if uncertain:
        return RUNS_ON if all(outcome == "detached" for outcome in uncertain) else CUT_SHORT
    if any(change.during for change in changes):
        return DURING
    last = max(changes, key=lambda change: change.call.ended_order)
    if any(change.call.order > last.call.order for change in others):
        return LATER
    is_as_left = last.after is not None and now.is_same(last.after)
    return "" if is_as_left and _is_unbroken(changes) else CHANGED_SINCE


def _is_unbroken(changes: Sequence[StoredChange]) -> bool:
    """Whether each call found the state that the previous one left. A nested call finds an intermediate state."""
    events = [(change.call.order, True, change.before) for change in changes]
    events += [(change.call.ended_order, False, change.after or change.before) for change in changes]
    running, left = 0, None
    for _, begins, state in sorted(events, key=lambda event: event[0]):
        if begins and running == 0 and left is not None and not state.is_same(left):
            return False
        running += 1 if begins else -1
        left = state
    return True


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
    now: Literal["old", "new"] | None = None
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
    """The call itself, and calls of tools inside it."""

    @property
    def can_be_undone(self) -> bool:
        return any(not one.undone for one in self.files)

    @property
    def undone(self) -> bool:
        return bool(self.files) and not self.can_be_undone


def records_of(calls: Iterable[StoredCall], now: LookNow) -> list[CallRecord]:
    """The calls, oldest first. Calls inside a call are one record with it."""
    groups: dict[str, list[StoredCall]] = {}
    for call in calls:
        if call.is_call:
            groups.setdefault(call.started.call_id or call.id, []).append(call)
    records = [_record(call_id, group, now) for call_id, group in groups.items()]
    return [one for one in records if one.files or one.notes]


def _record(call_id: str, group: Sequence[StoredCall], now: LookNow) -> CallRecord:
    first = group[0].started
    changes: dict[str, StoredChange] = {}
    for call in group:
        for change in call.changes:
            changes.setdefault(change.path, change)
    return CallRecord(
        call_id=call_id,
        tool=first.tool,
        summary=first.summary,
        at=first.at,
        turn_id=first.turn_id,
        files=tuple(without_implied([_file_record(change, now) for change in changes.values()])),
        notes=tuple(dict.fromkeys(note for call in group for note in call.started.notes)),
        finished=all(call.outcome == "finished" for call in group),
        runs_on=any(call.outcome == "detached" for call in group),
        environment=first.environment["spec"].get("backend", "") if first.environment is not None else "",
        entry_ids=tuple(call.id for call in group),
    )


def _file_record(change: StoredChange, now: LookNow) -> FileRecord:
    before, after, call = change.before, change.after, change.call
    is_over = call.outcome == "finished" and after is not None
    if after is None or not is_over:
        try:
            after = now(change)
        except OSError:
            after = before
    # A path that a call did not create may only have been the parent folder of another one.
    is_nothing = before.kind == after.kind == "missing"
    return FileRecord(
        path=change.path,
        kind=kind_of(before, after),
        size=before.size,
        is_folder="folder" in (before.kind, after.kind)
        or (is_nothing and any(path.startswith(f"{change.path}/") for path in call.paths)),
        undone=change.undone,
        during=change.during,
        not_kept=before.not_kept if not before.has_copy and not after.has_content_of(before) else "",
        now=None if is_over else "old" if after.is_same(before) else "new",
    )


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
