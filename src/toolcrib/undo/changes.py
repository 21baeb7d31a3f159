"""What calls did to one path, and whether that can be taken back without losing what somebody else did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolcrib.undo.journal import Entry
from toolcrib.undo.states import SPECIAL, FileState

CUT_SHORT = "the call was cut short, so that it is not known whether what is there now is its doing"
RUNS_ON = "the command went on in the background, so that it is not known whether what is there now is its doing"
SOMEBODY = "somebody else changed it since"
LATER = "a later call of this session changed it too; take that back first"


@dataclass(frozen=True, slots=True)
class Change:
    """One path and one call."""

    entry: Entry
    path: str

    @property
    def before(self) -> FileState:
        return self.entry.before[self.path]

    @property
    def after(self) -> FileState | None:
        """What the call left; None where nobody saw its end."""
        return None if self.entry.after is None else self.entry.after.get(self.path, self.before)

    @property
    def key(self) -> tuple[str, str]:
        return self.entry.id, self.path


def changes_of(entries: Sequence[Entry]) -> list[Change]:
    """What calls did and was not taken back, oldest first."""
    return [Change(one, path) for one in entries for path in one.changed_paths() if path not in one.undone]


def by_path(changes: Sequence[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.path, []).append(change)
    return found


def why_not(now: FileState, changes: Sequence[Change], others: Sequence[Change]) -> str:
    """Why a path must not be taken back unasked; "" when it may. `others` are later changes that are not chosen."""
    if now.kind == "special":
        return SPECIAL
    unseen = [change for change in changes if change.after is None]
    if unseen:
        return RUNS_ON if all(change.entry.runs_on for change in unseen) else CUT_SHORT
    last = max(changes, key=lambda change: change.entry.ended_order)
    if any(change.entry.order > last.entry.order for change in others):
        return LATER
    if last.after is None or not now.is_same(last.after):
        return SOMEBODY
    return "" if _is_unbroken(changes) else SOMEBODY


def _is_unbroken(changes: Sequence[Change]) -> bool:
    """Whether each call found what the one before it had left. A call inside another finds it in the middle."""
    events = [(change.entry.order, True, change.before) for change in changes]
    events += [(change.entry.ended_order, False, change.after or change.before) for change in changes]
    running, left = 0, None
    for _, begins, state in sorted(events, key=lambda event: event[0]):
        if begins and running == 0 and left is not None and not state.is_same(left):
            return False
        running += 1 if begins else -1
        left = state
    return True
