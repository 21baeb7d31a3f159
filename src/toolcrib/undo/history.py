"""The history of file changes: lists which calls changed what, shows the differences, and undoes and redoes them."""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from toolcrib.config.files import OWNER_FOLDER
from toolcrib.config.os_errors import current_folder
from toolcrib.config.settings import UndoSettings
from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.undo.files import SPECIAL, FileState, LocalFiles, SnapshotFiles
from toolcrib.undo.path_snapshot import PathSnapshot
from toolcrib.undo.records import (
    CHANGED_SINCE,
    CallRecord,
    ChangedFile,
    PathChange,
    by_path,
    calls_in,
    changes_of,
    kind_of,
    why_refused,
    without_implied,
)
from toolcrib.undo.remote_files import Terminal, reopen_environment
from toolcrib.undo.store import DROPPED, REDO, UNDO, CallStart, StoredCall, UndoStore
from toolcrib.undo.workspace import Workspace

What = Literal["restored", "removed", "refused"]
IN_THE_WAY = "other files are in it now"
NO_CONTENT = "only its mode was saved, and its content has changed"
NOT_MOVED = "it cannot be moved back"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreStep:
    """A path to restore."""

    path: str
    target: FileState
    now: FileState


class Restorer:
    """Restores files of one environment from the store."""

    def __init__(self, files: SnapshotFiles, store: UndoStore, folders: frozenset[str]) -> None:
        self._files = files
        self._store = store
        self._folders = folders
        """Paths that become folders again, whatever they are now."""
        self._moved: dict[str, str] = {}
        """The current paths of files to move back."""

    def find_moved(self, steps: Sequence[RestoreStep]) -> None:
        """Find files without a copy that were only moved, so they can be moved back."""
        made = {step.now.stamp: step for step in steps if step.target.kind == "missing" and step.now.stamp}
        for step in steps:
            source = made.get(step.target.stamp) if step.target.not_kept else None
            if source is not None and step.now.kind == "missing" and source.now.size == step.target.size:
                self._moved[step.path] = source.path

    def why_impossible(self, step: RestoreStep) -> str:
        """Why a path cannot be restored even by force; "" when it can."""
        target = step.target
        if target.kind == "special" or step.now.kind == "special":
            return SPECIAL
        if not is_plain(self._files, step.path) and not self._makes_way(step.path):
            return LINKED
        if target.kind != "file" or step.now.has_content_of(target) or step.path in self._moved:
            return ""
        if target.not_kept:
            return target.not_kept
        if not target.has_copy:
            return NO_CONTENT
        return "" if self._store.is_kept(target) else DROPPED

    def _makes_way(self, path: str) -> bool:
        """Whether a link in the path disappears when the folder that it replaced is restored."""
        above = path.rpartition("/")[0]
        while above and not is_plain(self._files, above):
            above = above.rpartition("/")[0]
        return above in self._folders

    def restore(self, steps: Sequence[RestoreStep]) -> list[UndoneFile]:
        """Restore the paths; a path that fails is left alone, and reported with the reason."""
        done: dict[str, UndoneFile] = {}
        deepest_first = sorted(steps, key=lambda step: step.path.count("/"), reverse=True)
        going = [step for step in deepest_first if _must_go(step)]
        coming = [step for step in reversed(deepest_first) if step.target.kind != "missing"]
        for step in reversed(deepest_first):
            if step.now.kind == "folder" and step.now.mode & OWNER_FOLDER != OWNER_FOLDER:
                # We may not be allowed to enter it, but must reach its contents; its own mode comes last.
                with contextlib.suppress(OSError):
                    self._files.set_access(step.path, replace(step.now, mode=step.now.mode | OWNER_FOLDER))
        sources = {self._moved[step.path]: step for step in steps if step.path in self._moved}
        for step in going:
            if step.path in sources:
                self._try(sources[step.path], done, self._move_back)
                gone = done[sources[step.path].path].what != "refused"
                done[step.path] = UndoneFile(
                    path=step.path, what="removed" if gone else "refused", reason="" if gone else NOT_MOVED
                )
        for step in going:
            if step.path not in sources:
                self._try(step, done, self._remove)
        for step in coming:
            if step.path not in done or (done[step.path].what != "refused" and step.path not in self._moved):
                self._try(step, done, self._put)
        # The mode of a folder comes last: it may lock us out.
        for step in deepest_first:
            if step.target.kind == "folder" and done[step.path].what != "refused":
                self._try(step, done, self._close)
        return [done[step.path] for step in steps]

    def _try(self, step: RestoreStep, done: dict[str, UndoneFile], action: Callable[[RestoreStep], None]) -> None:
        what: What = "removed" if step.target.kind == "missing" else "restored"
        try:
            action(step)
            reason = ""
        except OSError as error:
            what, reason = "refused", error.strerror or str(error)
            if error.errno == errno.ENOTEMPTY:
                reason = IN_THE_WAY
        kind = step.now.kind if step.target.kind == "missing" else step.target.kind
        done[step.path] = UndoneFile(path=step.path, what=what, reason=reason, size=step.target.size, kind=kind)

    def _remove(self, step: RestoreStep) -> None:
        self._files.remove(step.path)

    def _move_back(self, step: RestoreStep) -> None:
        self._files.move(self._moved[step.path], step.path)
        self._files.set_access(step.path, step.target)

    def _put(self, step: RestoreStep) -> None:
        target = step.target
        if target.kind == "file" and step.now.has_content_of(target):
            self._files.set_access(step.path, target)
            return
        if target.kind == "folder" and step.now.kind == "folder":
            return
        self._files.put(step.path, target, self._store.content(target))
        if step.now.kind == "missing" and target.kind == "file":
            # As if never deleted. A changed file gets the current time, because builds made from it are stale.
            self._files.set_time(step.path, target)

    def _close(self, step: RestoreStep) -> None:
        self._files.set_access(step.path, step.target)


def is_plain(files: SnapshotFiles, path: str) -> bool:
    """Whether the path contains no link."""
    above = path.rpartition("/")[0] or "/"
    return files.real(above) == above


def _must_go(step: RestoreStep) -> bool:
    """Whether the current file has to be removed first. Files and links replace each other atomically."""
    if step.now.kind == "missing":
        return False
    if step.target.kind == "missing":
        return True
    return step.now.kind != step.target.kind and "folder" in (step.now.kind, step.target.kind)


MAX_COMPARED_CHARS = 1_000_000


class UnknownCall(UnknownName):
    kind = "call"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """What an undo or redo did, or would do."""

    calls: tuple[CallRecord, ...] = ()
    """Newest first."""
    files: tuple[UndoneFile, ...] = ()

    @property
    def refused(self) -> list[UndoneFile]:
        return [one for one in self.files if one.what == "refused"]


class FileHistory:
    """The file changes of all sessions of one home. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        settings: UndoSettings | None = None,
        *,
        terminal: Callable[[], Terminal] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = UndoStore(folder, settings, clock=clock)
        self._terminal = terminal

    # Inspect

    def calls(self, session_id: str, folder: str = "") -> list[CallRecord]:
        """The calls that changed files, or may have, oldest first; with a folder, those that did so in it."""
        self._settle(session_id)
        found = calls_in(self.store.calls(session_id), lambda entry, path: self._now(self._files_of(entry), path))
        return [one for one in found if not folder or _any_in(folder, [file.path for file in one.files])]

    def changed(self, session_id: str) -> list[ChangedFile]:
        """The files that differ from what they were before the session, in the order of their first change."""
        found: list[ChangedFile] = []
        self._settle(session_id)
        entries = [one for one in self.store.calls(session_id) if one.is_call]
        for path, changes in by_path(changes_of(entries)).items():
            if changes[0].entry.started.environment is None:
                now = self._now(LocalFiles(), path)
            else:
                now = changes[-1].after or changes[-1].before
            before = changes[0].before
            if not before.is_same(now):
                calls = tuple(dict.fromkeys(change.entry.started.call_id for change in changes))
                kind = now.kind if before.kind == "missing" else before.kind
                found.append(
                    ChangedFile(
                        path=path,
                        kind=kind_of(before, now),
                        call_ids=calls,
                        is_folder=kind == "folder",
                        during=all(path in change.entry.during for change in changes),
                    )
                )
        return without_implied(found)

    def diff(self, session_id: str, path: str) -> str:
        """A unified diff of a file from before the session to now; "" if they are equal."""
        files = LocalFiles()
        wanted = str(Path(os.path.normpath(current_folder() / Path(path).expanduser())))
        wanted = f"{files.real(wanted.rpartition('/')[0] or '/').rstrip('/')}/{wanted.rpartition('/')[2]}"
        entries = [one for one in self.store.calls(session_id) if one.started.environment is None and one.is_call]
        changes = by_path(changes_of(entries)).get(wanted)
        if not changes:
            return ""
        before, now = changes[0].before, self._now(files, wanted)
        if before.is_same(now):
            return ""
        try:
            old = _text(self.store.content(before)) if before.has_copy else None
            new = _text(files.read(wanted, MAX_COMPARED_CHARS) if now.kind == "file" else b"")
        except OSError:
            old = new = None
        if old is None or new is None:
            return f"{wanted} differs, but cannot be shown as text.\n"
        shown = wanted.removeprefix(f"{files.real(str(current_folder())).rstrip('/')}/")
        old_name, new_name = ("/dev/null" if state.kind == "missing" else shown for state in (before, now))
        lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), old_name, new_name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def latest_session(self, folder: str, *, undone_too: bool = False) -> str | None:
        """The last session that changed files in a folder; skips fully undone ones unless `undone_too`."""
        return next(iter(self.store.sessions(LocalFiles().real(folder), undone_too=undone_too)), None)

    def _settle(self, session_id: str) -> None:
        """Look at the workspaces of calls whose end is not recorded: what they have changed is found there."""
        for folder in self.store.open_workspaces(session_id):
            with contextlib.suppress(OSError, ToolcribError):
                Workspace(self.store, folder, [str(self.store.folder.parent.parent)]).scan()

    # Undo and redo

    def undo_calls(
        self, session_id: str, count: int = 1, *, folder: str = "", force: bool = False, dry_run: bool = False
    ) -> UndoResult:
        """Undo the latest calls that changed files, or that did so in a folder."""
        chosen = [one for one in reversed(self.calls(session_id, folder)) if one.can_be_undone][:count]
        return self._undo_records(session_id, chosen, force=force, dry_run=dry_run)

    def undo_to(
        self, session_id: str, call_id: str, *, folder: str = "", force: bool = False, dry_run: bool = False
    ) -> UndoResult:
        """Undo everything from the latest call back to the one with this id, inclusive."""
        calls = self.calls(session_id, folder)
        at = next((number for number, one in enumerate(calls) if call_id in (one.call_id, *one.entry_ids)), None)
        if at is None:
            ids = [one.call_id for one in calls]
            raise UnknownCall(call_id, ids, advice="`toolcrib undo --list` shows all of them")
        chosen = [one for one in reversed(calls[at:]) if one.can_be_undone]
        return self._undo_records(session_id, chosen, force=force, dry_run=dry_run)

    def undo(self, session_id: str, *, turn_id: str | None = None, force: bool = False) -> list[UndoneFile]:
        """Undo what the session, or one turn of it, did to files; files that changed since are left alone."""
        return list(self.undo_turn(session_id, turn_id, force=force).files)

    def undo_turn(self, session_id: str, turn_id: str | None = None, *, force: bool = False) -> UndoResult:
        """Undo what one turn of a session did to files, or all of its turns."""
        calls = [one for one in reversed(self.calls(session_id)) if one.can_be_undone]
        entries = self.store.calls(session_id)
        chosen = [one for one in entries if one.is_call and turn_id in (None, one.started.turn_id)]
        ids = {one.id for one in chosen}
        files = self._restore_calls(session_id, entries, chosen, UNDO, force=force)
        return UndoResult(calls=tuple(one for one in calls if ids.intersection(one.entry_ids)), files=tuple(files))

    def redo(self, session_id: str, *, folder: str = "", force: bool = False, dry_run: bool = False) -> UndoResult:
        """Redo: undo the latest undo, or the latest in a folder."""
        entries = self.store.calls(session_id)
        undos = [one for one in entries if one.started.tool == UNDO and changes_of([one])]
        undos = [one for one in undos if not folder or _any_in(folder, one.changed_paths())]
        if not undos:
            return UndoResult()
        # An interrupted undo and the one that finished it count as one.
        latest = set(undos[-1].started.undoes)
        chosen = [one for one in undos if not latest.isdisjoint(one.started.undoes)]
        files = self._restore_calls(session_id, entries, chosen, REDO, force=force, dry_run=dry_run)
        return UndoResult(files=tuple(files))

    def forget(self, session_id: str) -> None:
        """Remove all copies of a session."""
        self.store.forget(session_id)

    def _undo_records(self, session_id: str, chosen: Sequence[CallRecord], *, force: bool, dry_run: bool) -> UndoResult:
        ids = {entry_id for one in chosen for entry_id in one.entry_ids}
        entries = self.store.calls(session_id)
        wanted = [one for one in entries if one.id in ids]
        files = self._restore_calls(session_id, entries, wanted, UNDO, force=force, dry_run=dry_run)
        return UndoResult(calls=tuple(chosen), files=tuple(files))

    def _restore_calls(
        self,
        session_id: str,
        entries: Sequence[StoredCall],
        chosen: Sequence[StoredCall],
        tool: str,
        *,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[UndoneFile]:
        done: list[UndoneFile] = []
        for environment in dict.fromkeys(_environment_key(one) for one in chosen):
            here = [one for one in chosen if _environment_key(one) == environment]
            others = [
                one for one in entries if _environment_key(one) == environment and one not in here and one.is_call
            ]
            try:
                files = self._files_of(here[0])
            except OSError as error:
                paths = by_path(changes_of(here))
                done += [UndoneFile(path=path, what="refused", reason=str(error)) for path in paths]
                continue
            unfinished = [one for one in entries if one.started.tool == tool and one.outcome != "finished"]
            work = _Restoration(self.store, session_id, files, here, changes_of(others), tool, unfinished)
            done += work.run(force=force, dry_run=dry_run)
        return _without_implied_folders(done)

    def _files_of(self, entry: StoredCall) -> SnapshotFiles:
        if entry.started.environment is None:
            return LocalFiles()
        return reopen_environment(entry.started.environment, self._terminal() if self._terminal is not None else None)

    def _now(self, files: SnapshotFiles, path: str) -> FileState:
        """What is at a path now, with its digest."""
        present = PathSnapshot(files, self.store)
        present.take_recorded([path])
        return present.states.get(path, FileState(kind="special"))


class _Restoration:
    """Undoes calls that worked in one environment."""

    def __init__(
        self,
        store: UndoStore,
        session_id: str,
        files: SnapshotFiles,
        chosen: Sequence[StoredCall],
        others: Sequence[PathChange],
        tool: str,
        unfinished: Sequence[StoredCall],
    ) -> None:
        self._store, self._session_id, self._files, self._tool = store, session_id, files, tool
        self._chosen = chosen
        self._changes = by_path(changes_of(chosen))
        keys = set(self._keys(list(self._changes)))
        self._resumed = [one for one in unfinished if not keys.isdisjoint(one.started.undoes)]
        """Earlier, interrupted attempts at the same undo."""
        self._begun = {path for one in self._resumed for path in one.before}
        self._others = by_path(others)
        folders = frozenset(path for path, changes in self._changes.items() if changes[0].before.kind == "folder")
        self._restorer = Restorer(files, store, folders)

    def run(self, *, force: bool, dry_run: bool) -> list[UndoneFile]:
        if not self._changes:
            return []
        if dry_run:
            present = PathSnapshot(self._files, self._store)
            present.take_recorded(self._changes)
            steps, refused = self._plan(present, force=force)
            return self._in_order([_would(step) for step in steps] + refused)
        start = CallStart(
            id=secrets.token_hex(6),
            at=self._store.clock(),
            tool=self._tool,
            environment=self._chosen[0].started.environment,
        )
        with self._store.write(wait=True) as connection:
            present = PathSnapshot(self._files, self._store, connection=connection)
            present.take_recorded(self._changes)
            steps, refused = self._plan(present, force=force)
            left = {one.path for one in refused}
            start = replace(start, undoes=self._keys([path for path in self._changes if path not in left]))
            self._store.begin(connection, self._session_id, start, present.states)
        done = self._restorer.restore(steps) + refused
        self._files.sync()
        self._record(start, present, [one.path for one in done if one.what == "refused"])
        return self._in_order(done)

    def _record(self, start: CallStart, present: PathSnapshot, refused: Sequence[str]) -> None:
        """Record what an undo has done, and which changes are undone or redone by that."""
        after = PathSnapshot(self._files, self._store, earlier=present.states)
        after.take_recorded(present.states)
        left = set(refused)
        again = [key for one in self._chosen for key in one.started.undoes if key[1] not in left]
        with self._store.write() as connection:
            for call, before in ((start.id, present.states), *((one.id, one.before) for one in self._resumed)):
                states = {path: (before[path], after.states[path]) for path in before if path in after.states}
                self._store.end(connection, call, states)
            self._store.mark(connection, self._keys([path for path in self._changes if path not in left]), undone=True)
            self._store.mark(connection, again, undone=False)

    def _in_order(self, files: list[UndoneFile]) -> list[UndoneFile]:
        """The files in the order of their first change."""
        places = {path: environment for environment, path in enumerate(self._changes)}
        return sorted(files, key=lambda one: places[one.path])

    def _plan(self, present: PathSnapshot, *, force: bool) -> tuple[list[RestoreStep], list[UndoneFile]]:
        """What to restore, and what to leave alone."""
        steps: list[RestoreStep] = []
        refused: list[UndoneFile] = []
        wanted = [
            RestoreStep(path=path, target=changes[0].before, now=present.states.get(path, FileState(kind="special")))
            for path, changes in self._changes.items()
        ]
        self._restorer.find_moved(wanted)
        for step in wanted:
            if step.now.is_same(step.target):
                continue
            reason = self._restorer.why_impossible(step)
            if not reason and not force:
                reason = why_refused(step.now, self._changes[step.path], self._others.get(step.path, []))
                if reason == CHANGED_SINCE and step.path in self._begun and _is_half_done(step):
                    reason = ""
            if reason:
                refused.append(UndoneFile(path=step.path, what="refused", reason=reason, size=step.target.size))
            else:
                steps.append(step)
        return steps, refused

    def _keys(self, paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return tuple(change.key for path in paths for change in self._changes[path])


def _without_implied_folders(files: Sequence[UndoneFile]) -> list[UndoneFile]:
    """The files, without folders that were created or removed along with their contents."""
    above = {one.path.rpartition("/")[0] for one in files}
    return [one for one in files if one.kind != "folder" or one.what == "refused" or one.path not in above]


def _environment_key(entry: StoredCall) -> str:
    return json.dumps(entry.started.environment, sort_keys=True) if entry.started.environment is not None else ""


def _any_in(folder: str, paths: Sequence[str]) -> bool:
    """Whether one of the paths is this folder or in it."""
    inside = f"{LocalFiles().real(folder).rstrip('/')}/"
    return any(f"{path}/".startswith(inside) for path in paths)


def _is_half_done(step: RestoreStep) -> bool:
    """Whether a path may be in the state that an interrupted undo leaves; going on loses no content."""
    return step.now.kind == "missing" or step.now.kind == step.target.kind == "folder"


def _would(step: RestoreStep) -> UndoneFile:
    is_gone = step.target.kind == "missing"
    kind = step.now.kind if is_gone else step.target.kind
    return UndoneFile(path=step.path, what="removed" if is_gone else "restored", size=step.target.size, kind=kind)


def _text(content: bytes | None) -> str | None:
    """The content as text to compare; None when it is binary or too long."""
    if content is None or b"\0" in content or len(content) > MAX_COMPARED_CHARS:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
