"""The history of file changes: lists which calls changed what, shows the differences, and undoes and redoes them."""

from __future__ import annotations

import contextlib
import difflib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolcrib.config.os_errors import current_folder
from toolcrib.config.settings import UndoSettings
from toolcrib.core.context import TerminalPort
from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.undo.files import FileState, LocalFiles
from toolcrib.undo.path_snapshot import PathSnapshot
from toolcrib.undo.records import CallRecord, ChangedFile, changes_of, kind_of, records_of, without_implied
from toolcrib.undo.remote_files import SnapshotFiles, reopen_environment
from toolcrib.undo.restore import Restoration, UndoneFile
from toolcrib.undo.store import REDO, UNDO, StoredCall, StoredChange, UndoStore, is_below
from toolcrib.undo.workspace import Workspace

MAX_COMPARED_BYTES = 1_000_000


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
        terminal: Callable[[], TerminalPort] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = UndoStore(folder, settings, clock=clock)
        self._terminal = terminal

    # Inspect

    def calls(self, session_id: str, folder: str = "") -> list[CallRecord]:
        """The calls that changed files, or may have, oldest first; with a folder, those that did so in it."""
        stored = self._settled(session_id)
        found = records_of(stored, self._present_state)
        return [one for one in found if _is_any_in(folder, [file.path for file in one.files])]

    def changed(self, session_id: str) -> list[ChangedFile]:
        """The files that differ from what they were before the session, in the order of their first change."""
        found: list[ChangedFile] = []
        changed = changes_of(one for one in self._settled(session_id) if one.is_call)
        here = [path for path, changes in changed.items() if changes[0].call.started.environment is None]
        present = self._present(LocalFiles(), here)
        for path, changes in changed.items():
            before, now = changes[0].before, present.get(path) or changes[-1].after or changes[-1].before
            if not before.is_same(now):
                calls = tuple(dict.fromkeys(change.call.started.call_id for change in changes))
                is_folder = (now if before.kind == "missing" else before).kind == "folder"
                during, kind = all(change.during for change in changes), kind_of(before, now)
                found.append(ChangedFile(path=path, kind=kind, call_ids=calls, is_folder=is_folder, during=during))
        return without_implied(found)

    def diff(self, session_id: str, path: str) -> str:
        """A unified diff of a file from before the session to now; "" if they are equal."""
        files, here = LocalFiles(), current_folder()
        above, name = os.path.split(os.path.normpath(here / Path(path).expanduser()))
        wanted = f"{files.real(above).rstrip('/')}/{name}"
        calls = [one for one in self.store.calls(session_id) if one.started.environment is None and one.is_call]
        changes = changes_of(calls).get(wanted)
        now = self._present(files, [wanted])[wanted]
        if not changes or changes[0].before.is_same(now):
            return ""
        before, old, new = changes[0].before, None, None
        with contextlib.suppress(OSError):
            old = _text(self.store.content(before)) if before.has_copy else None
            new = _text(files.read(wanted, now, MAX_COMPARED_BYTES)[1] if now.kind == "file" else b"")
        if old is None or new is None:
            return f"{wanted} differs, but cannot be shown as text.\n"
        shown = wanted.removeprefix(f"{files.real(str(here)).rstrip('/')}/")
        old_name, new_name = ("/dev/null" if state.kind == "missing" else shown for state in (before, now))
        lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), old_name, new_name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def latest_session(self, folder: str, *, undone_too: bool = False) -> str | None:
        """The last session that changed files in a folder; skips fully undone ones unless `undone_too`."""
        return next(iter(self.store.sessions(LocalFiles().real(folder), undone_too=undone_too)), None)

    def forget(self, session_id: str) -> None:
        """Remove all copies of a session."""
        self.store.forget(session_id)

    def _settled(self, session_id: str) -> list[StoredCall]:
        """The calls, after a look at the workspaces of those whose end is not recorded: what they changed is there."""
        for folder in self.store.open_workspaces(session_id):
            with contextlib.suppress(OSError, ToolcribError):
                Workspace(self.store, folder, [str(self.store.folder.parent.parent)]).scan()
        return self.store.calls(session_id)

    # Undo and redo

    def undo_calls(
        self, session_id: str, count: int = 1, *, folder: str = "", force: bool = False, dry_run: bool = False
    ) -> UndoResult:
        """Undo the latest calls that changed files, or that did so in a folder."""
        chosen = [one for one in reversed(self.calls(session_id, folder)) if one.can_be_undone]
        return self._undo(session_id, chosen[:count], force=force, dry_run=dry_run)

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
        return self._undo(session_id, chosen, force=force, dry_run=dry_run)

    def undo_turn(self, session_id: str, turn_id: str | None = None, *, force: bool = False) -> UndoResult:
        """Undo what one turn of a session did to files, or all of them; leaves alone what has changed since."""
        calls = [one for one in reversed(self.calls(session_id)) if one.can_be_undone]
        chosen = [one for one in calls if turn_id in (None, one.turn_id)]
        return self._undo(session_id, chosen, force=force, dry_run=False)

    def redo(self, session_id: str, *, folder: str = "", force: bool = False, dry_run: bool = False) -> UndoResult:
        """Redo: undo the latest undo, or the latest in a folder."""
        calls = self.store.calls(session_id)
        undos = [one for one in calls if one.started.tool == UNDO and changes_of([one])]
        undos = [one for one in undos if _is_any_in(folder, [change.path for change in one.changes])]
        if not undos:
            return UndoResult()
        # An interrupted undo and the one that finished it count as one.
        latest = set(undos[-1].started.undoes)
        chosen = [one for one in undos if not latest.isdisjoint(one.started.undoes)]
        return UndoResult(files=self._restore(session_id, calls, chosen, REDO, force=force, dry_run=dry_run))

    def _undo(self, session_id: str, chosen: Sequence[CallRecord], *, force: bool, dry_run: bool) -> UndoResult:
        ids = {entry_id for one in chosen for entry_id in one.entry_ids}
        calls = self.store.calls(session_id)
        wanted = [one for one in calls if one.id in ids]
        files = self._restore(session_id, calls, wanted, UNDO, force=force, dry_run=dry_run)
        return UndoResult(calls=tuple(chosen), files=files)

    def _restore(
        self,
        session_id: str,
        calls: Sequence[StoredCall],
        chosen: Sequence[StoredCall],
        tool: str,
        *,
        force: bool,
        dry_run: bool,
    ) -> tuple[UndoneFile, ...]:
        done: list[UndoneFile] = []
        unfinished = [one for one in calls if one.started.tool == tool and one.outcome != "finished"]
        for spec in dict.fromkeys(repr(one.started.environment) for one in chosen):
            here = [one for one in chosen if repr(one.started.environment) == spec]
            others = [one for one in calls if one.is_call and one not in here]
            others = [one for one in others if repr(one.started.environment) == spec]
            try:
                work = Restoration(self.store, self._files_of(here[0]), here, changes_of(others), unfinished)
            except OSError as error:
                done += [UndoneFile(path=path, what="refused", reason=str(error)) for path in changes_of(here)]
                continue
            done += work.run(session_id, tool, force=force, dry_run=dry_run)
        # Without folders that were created or removed along with their contents.
        above = {one.path.rpartition("/")[0] for one in done}
        return tuple(one for one in done if one.kind != "folder" or one.what == "refused" or one.path not in above)

    def _files_of(self, call: StoredCall) -> SnapshotFiles:
        if call.started.environment is None:
            return LocalFiles()
        return reopen_environment(call.started.environment, self._terminal() if self._terminal is not None else None)

    def _present_state(self, change: StoredChange) -> FileState:
        return self._present(self._files_of(change.call), [change.path])[change.path]

    def _present(self, files: SnapshotFiles, paths: Sequence[str]) -> dict[str, FileState]:
        """What is at these paths now, with the digests of files."""
        present = PathSnapshot(files, self.store)
        present.take_recorded(paths)
        return {path: present.states.get(path, FileState(kind="special")) for path in paths}


def _is_any_in(folder: str, paths: Sequence[str]) -> bool:
    """Whether one of the paths is this folder or in it; without a folder, always."""
    return not folder or any(is_below(path, [LocalFiles().real(folder)]) for path in paths)


def _text(content: bytes | None) -> str | None:
    """The content as text to compare; None when it is binary or too long."""
    if content is None or b"\0" in content or len(content) > MAX_COMPARED_BYTES:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
