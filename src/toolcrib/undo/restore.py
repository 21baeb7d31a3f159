"""Restores files from the store: what an undo changes, what it leaves alone, and how it is recorded."""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from toolcrib.config.files import OWNER_FOLDER
from toolcrib.config.os_errors import reason_of
from toolcrib.undo.files import SPECIAL, FileState
from toolcrib.undo.path_snapshot import PathSnapshot
from toolcrib.undo.records import CHANGED_SINCE, changes_of, why_refused
from toolcrib.undo.remote_files import SnapshotFiles
from toolcrib.undo.store import DROPPED, CallStart, ChangeKey, StoredCall, StoredChange, UndoStore

What = Literal["restored", "removed", "refused"]
IN_THE_WAY = "other files are in it now"
NO_CONTENT = "only its mode was saved, and its content has changed"
NOT_MOVED = "it cannot be moved back"
NOT_SAVED = "what is there now cannot be saved: {}"
LINKED = "its folder is now a link"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneFile:
    """What an undo did to a path, or would do."""

    path: str
    what: What
    reason: str = ""
    """Why it was left alone, for `refused`."""
    size: int = 0
    kind: str = "file"


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """A path to restore."""

    path: str
    target: FileState
    now: FileState

    def result(self, reason: str = "") -> UndoneFile:
        is_gone = self.target.kind == "missing"
        what: What = "refused" if reason else "removed" if is_gone else "restored"
        kind = self.now.kind if is_gone else self.target.kind
        return UndoneFile(path=self.path, what=what, reason=reason, size=self.target.size, kind=kind)

    @property
    def must_go(self) -> bool:
        """Whether the current file has to be removed first. Files and links replace each other atomically."""
        if self.now.kind == "missing" or self.target.kind == "missing":
            return self.now.kind != "missing"
        return self.now.kind != self.target.kind and "folder" in (self.now.kind, self.target.kind)

    @property
    def is_half_done(self) -> bool:
        """Whether an interrupted undo may have left it like this; going on loses no content."""
        return self.now.kind == "missing" or self.now.kind == self.target.kind == "folder"


class Restoration:
    """Undoes calls that worked in one environment."""

    def __init__(
        self,
        store: UndoStore,
        files: SnapshotFiles,
        chosen: Sequence[StoredCall],
        others: Mapping[str, Sequence[StoredChange]],
        unfinished: Sequence[StoredCall],
    ) -> None:
        self._store, self._files, self._chosen, self._others = store, files, chosen, others
        self._changes = changes_of(chosen)
        keys = set(self._keys(()))
        self._resumed = [one for one in unfinished if not keys.isdisjoint(one.started.undoes)]
        """Earlier, interrupted attempts at the same undo."""
        self._moved: dict[str, str] = {}
        """The current paths of files to move back."""

    def run(self, session_id: str, tool: str, *, force: bool, dry_run: bool) -> list[UndoneFile]:
        if not self._changes:
            return []
        if dry_run:
            present = PathSnapshot(self._files, self._store)
            present.take_recorded(self._changes)
            steps, refused = self._plan(present, force=force)
            return self._in_order([step.result() for step in steps] + refused)
        environment, now = self._chosen[0].started.environment, self._store.clock()
        with self._store.write(durable=True) as connection:
            present = PathSnapshot(self._files, self._store, connection=connection)
            present.take_recorded(self._changes)
            steps, refused = self._plan(present, force=force)
            undoes = self._keys({one.path for one in refused})
            start = CallStart(id=secrets.token_hex(6), at=now, tool=tool, environment=environment, undoes=undoes)
            self._store.begin(connection, session_id, start, present.states)
        done = self._restore(steps) + refused
        self._files.sync()
        self._record(start, present.states, {one.path for one in done if one.what == "refused"})
        return self._in_order(done)

    def _keys(self, left: Sequence[str] | set[str]) -> tuple[ChangeKey, ...]:
        """The changes that are undone, except for paths that are left alone."""
        return tuple(one.key for path, changes in self._changes.items() if path not in left for one in changes)

    def _in_order(self, files: list[UndoneFile]) -> list[UndoneFile]:
        """The files in the order of their first change."""
        by_path = {one.path: one for one in files}
        return [by_path[path] for path in self._changes if path in by_path]

    def _record(self, start: CallStart, present: Mapping[str, FileState], left: set[str]) -> None:
        """Record what an undo has done, and which changes are undone or redone by that."""
        after = PathSnapshot(self._files, self._store, earlier=present)
        after.take_recorded(present)
        again = [key for one in self._chosen for key in one.started.undoes if key[1] not in left]
        earlier = [(one.id, {path: change.before for path, change in one.paths.items()}) for one in self._resumed]
        with self._store.write() as connection:
            for call, before in ((start.id, present), *earlier):
                states = {path: (before[path], after.states[path]) for path in before if path in after.states}
                self._store.end(connection, call, states)
            self._store.mark(connection, self._keys(left), undone=True)
            self._store.mark(connection, again, undone=False)

    # What to restore

    def _plan(self, present: PathSnapshot, *, force: bool) -> tuple[list[RestoreStep], list[UndoneFile]]:
        """What to restore, and what to leave alone."""
        wanted = [
            RestoreStep(path, changes[0].before, present.states.get(path, FileState(kind="special")))
            for path, changes in self._changes.items()
        ]
        self._find_moved(wanted)
        begun = {path for one in self._resumed for path in one.paths}
        steps: list[RestoreStep] = []
        refused: list[UndoneFile] = []
        for step in wanted:
            if step.now.is_same(step.target):
                continue
            reason = self._why_impossible(step)
            if not reason and step.path in present.unsaved:
                reason = NOT_SAVED.format(present.unsaved[step.path])
            if not reason and not force:
                reason = why_refused(step.now, self._changes[step.path], self._others.get(step.path, ()))
                if reason == CHANGED_SINCE and step.path in begun and step.is_half_done:
                    reason = ""
            if reason:
                refused.append(UndoneFile(path=step.path, what="refused", reason=reason, size=step.target.size))
            else:
                steps.append(step)
        return steps, refused

    def _find_moved(self, steps: Sequence[RestoreStep]) -> None:
        """Find files without a copy that were only moved, so they can be moved back."""
        made = {step.now.stamp: step for step in steps if step.target.kind == "missing" and step.now.stamp}
        for step in steps:
            source = made.get(step.target.stamp) if step.target.not_kept else None
            if source is not None and step.now.kind == "missing" and source.now.size == step.target.size:
                self._moved[step.path] = source.path

    def _why_impossible(self, step: RestoreStep) -> str:
        """Why a path cannot be restored even by force; "" when it can."""
        target = step.target
        if target.kind == "special" or step.now.kind == "special":
            return SPECIAL
        if not self._is_plain(step.path) and not self._makes_way(step.path):
            return LINKED
        if target.kind != "file" or step.now.has_content_of(target) or step.path in self._moved:
            return ""
        if target.not_kept or not target.has_copy:
            return target.not_kept or NO_CONTENT
        return "" if self._store.is_kept(target) else DROPPED

    def _is_plain(self, path: str) -> bool:
        """Whether the path contains no link."""
        above = path.rpartition("/")[0] or "/"
        return self._files.real(above) == above

    def _makes_way(self, path: str) -> bool:
        """Whether a link in the path disappears when the folder that it replaced is restored."""
        above = path.rpartition("/")[0]
        while above and not self._is_plain(above):
            above = above.rpartition("/")[0]
        return above in self._changes and self._changes[above][0].before.kind == "folder"

    # How

    def _restore(self, steps: Sequence[RestoreStep]) -> list[UndoneFile]:
        """Restore the paths; a path that fails is left alone, and reported with the reason."""
        done: dict[str, UndoneFile] = {}
        deepest_first = sorted(steps, key=lambda step: step.path.count("/"), reverse=True)
        for step in reversed(deepest_first):
            if step.now.kind == "folder" and step.now.mode & OWNER_FOLDER != OWNER_FOLDER:
                # We may not be allowed to enter it, but must reach its contents; its own mode comes last.
                with contextlib.suppress(OSError):
                    self._files.set_access(step.path, replace(step.now, mode=step.now.mode | OWNER_FOLDER))
        sources = {self._moved[step.path]: step for step in steps if step.path in self._moved}
        going = [step for step in deepest_first if step.must_go]
        for step in going:
            if step.path in sources:
                moved = sources[step.path]
                self._try(moved, done, self._move_back)
                done[step.path] = step.result(NOT_MOVED if done[moved.path].what == "refused" else "")
        for step in going:
            if step.path not in sources:
                self._try(step, done, lambda one: self._files.remove(one.path))
        for step in reversed(deepest_first):
            is_refused = step.path in done and done[step.path].what == "refused"
            if step.target.kind != "missing" and not is_refused and step.path not in self._moved:
                self._try(step, done, self._put)
        # The mode of a folder comes last: it may lock us out.
        for step in deepest_first:
            if step.target.kind == "folder" and done[step.path].what != "refused":
                self._try(step, done, lambda one: self._files.set_access(one.path, one.target))
        return [done[step.path] for step in steps]

    @staticmethod
    def _try(step: RestoreStep, done: dict[str, UndoneFile], action: Callable[[RestoreStep], None]) -> None:
        try:
            action(step)
            done[step.path] = step.result()
        except OSError as error:
            reason = IN_THE_WAY if error.errno == errno.ENOTEMPTY else reason_of(error)
            done[step.path] = step.result(reason)

    def _move_back(self, step: RestoreStep) -> None:
        self._files.move(self._moved[step.path], step.path)
        self._files.set_access(step.path, step.target)

    def _put(self, step: RestoreStep) -> None:
        target = step.target
        if target.kind == "file" and step.now.has_content_of(target):
            self._files.set_access(step.path, target)
        elif not target.kind == step.now.kind == "folder":
            self._files.put(step.path, target, self._store.content(target))
            if step.now.kind == "missing" and target.kind == "file":
                # As if never deleted. A changed file gets the current time, because builds made from it are stale.
                self._files.set_time(step.path, target)
