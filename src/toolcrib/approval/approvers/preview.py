"""What a call would touch, counted where that is cheap: "would delete 214 files, 38 MB"."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath

import msgspec

from toolcrib.approval.approvers.escape import shortened, visible
from toolcrib.core.approvals import ApprovalRequest

MAX_ENTRIES = 20_000
MAX_SECONDS = 0.2
MAX_PATHS_SHOWN = 4
MAX_PATHS_LOOKED_AT = 200

Clock = Callable[[], float]


class _Count(msgspec.Struct):
    files: int = 0
    folders: int = 0
    size: int = 0


class _Budget:
    """Entries and time that all paths of one question share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries = MAX_ENTRIES
        self._deadline = clock() + MAX_SECONDS

    def spend(self) -> bool:
        """Whether one more entry may be looked at."""
        self._entries -= 1
        return self._entries >= 0 and self._clock() < self._deadline


def preview(request: ApprovalRequest, clock: Clock = time.monotonic) -> tuple[str, ...]:
    """One line for each path that the call would touch and that exists on this machine; none for other backends."""
    if request.backend != "local":
        return ()
    budget = _Budget(clock)
    lines: list[str] = []
    more = 0
    for path, verb in _paths(request):
        if not os.path.lexists(path):
            continue
        if len(lines) == MAX_PATHS_SHOWN:
            more += 1
            continue
        count = _Count()
        complete = _walk(path, count, budget)
        lines.append(f"{verb} {_amount(count, complete)}: {shortened(visible(path), 120)}")
    if more:
        lines.append(f"and {more} more {'path' if more == 1 else 'paths'}")
    return tuple(lines)


def _paths(request: ApprovalRequest) -> list[tuple[str, str]]:
    """Each path once, without those inside another one, and what would happen to it."""
    verbs: dict[str, str] = {}
    for danger in request.dangers:
        deletes = "delete" in danger.rule or "delete" in danger.description
        for path in danger.paths[:MAX_PATHS_LOOKED_AT]:
            if not path.startswith("/") or "\0" in path:
                continue
            place = os.path.normpath(path)
            verbs[place] = "would delete" if deletes else verbs.get(place, "would touch")
    return [(path, verb) for path, verb in verbs.items() if not _inside_any(path, verbs)]


def _inside_any(path: str, others: Iterable[str]) -> bool:
    parents = {str(parent) for parent in PurePath(path).parents}
    return any(other in parents for other in others)


def _walk(top: str, count: _Count, budget: _Budget) -> bool:
    """Count what is below a path, never through links; False when the budget ended first."""
    try:
        status = Path(top).lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        count.files += 1
        count.size += status.st_size
        return True
    folders = [top]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if not budget.spend():
                        return False
                    _add(entry, count, folders)
        except OSError:
            # A folder that we may not read; the call may not get further either, so the rest still says enough.
            continue
    return True


def _add(entry: os.DirEntry[str], count: _Count, folders: list[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        count.folders += 1
        folders.append(entry.path)
        return
    count.files += 1
    count.size += entry.stat(follow_symlinks=False).st_size


def _amount(count: _Count, complete: bool) -> str:
    files = f"{count.files:,} {'file' if count.files == 1 else 'files'}"
    if not count.files and complete:
        return "no files" if not count.folders else f"no files, {count.folders:,} empty folders"
    return f"{files}, {size(count.size)}" if complete else f"more than {files}, {size(count.size)}"


def size(count: int) -> str:
    """Bytes as people say them: 38 MB, 4.1 KB."""
    if count < 1000:
        return f"{count} bytes"
    units = ["TB", "GB", "MB", "KB"]
    amount = count / 1000
    while amount >= 999.5 and len(units) > 1:
        units.pop()
        amount /= 1000
    return f"{amount:.1f} {units[-1]}" if amount < 9.95 else f"{amount:,.0f} {units[-1]}"
