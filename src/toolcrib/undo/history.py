"""What calls did to files, for people: which, what is different now, and how it is taken back."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolcrib.config.settings import UndoSettings
from toolcrib.core.errors import UnknownName
from toolcrib.undo.area import Area
from toolcrib.undo.changes import SOMEBODY, Change, by_path, changes_of, why_not
from toolcrib.undo.disk import Disk, Files
from toolcrib.undo.journal import REDO, UNDO, Began, Ended, Entry, Revived, Seen, TakenBack
from toolcrib.undo.places import Terminal, place_again
from toolcrib.undo.records import CallRecord, ChangedFile, calls_in, kind_of, without_implied
from toolcrib.undo.restoring import Restorer, Step, UndoneFile
from toolcrib.undo.snapshot import Snapshot
from toolcrib.undo.states import FileState
from toolcrib.undo.store import UndoStore

MAX_COMPARED_CHARS = 1_000_000


class UnknownCall(UnknownName):
    kind = "call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What was taken back, or would be."""

    calls: tuple[CallRecord, ...] = ()
    """Newest first."""
    files: tuple[UndoneFile, ...] = ()

    @property
    def refused(self) -> list[UndoneFile]:
        return [one for one in self.files if one.what == "refused"]


class FileHistory:
    """The changes of files of one home. Safe from any thread."""

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

    # Looking

    def calls(self, session_id: str, folder: str = "") -> list[CallRecord]:
        """The calls that changed files, or may have; oldest first. With a folder, those that did so in it."""
        found = calls_in(self.store.entries(session_id), lambda entry, path: self._now(self._files_of(entry), path))
        return [one for one in found if not folder or _any_in(folder, [file.path for file in one.files])]

    def changed(self, session_id: str) -> list[ChangedFile]:
        """The files that are not what they were before the session, in the order of their first change."""
        found: list[ChangedFile] = []
        entries = [one for one in self.store.entries(session_id) if one.is_call]
        for path, changes in by_path(changes_of(entries)).items():
            if changes[0].entry.began.place is None:
                now = self._now(Disk(), path)
            else:
                now = changes[-1].after or changes[-1].before
            before = changes[0].before
            if not before.is_same(now):
                calls = tuple(dict.fromkeys(change.entry.began.call_id for change in changes))
                kind = now.kind if before.kind == "missing" else before.kind
                found.append(
                    ChangedFile(path=path, kind=kind_of(before, now), call_ids=calls, is_folder=kind == "folder")
                )
        return without_implied(found)

    def diff(self, session_id: str, path: str) -> str:
        """The difference between a file before the session and now, as a unified diff; "" when there is none."""
        files = Disk()
        wanted = Area(files=files, workspace=str(Path.cwd())).placed(str(Path(path).expanduser()))
        entries = [one for one in self.store.entries(session_id) if one.began.place is None and one.is_call]
        changes = by_path(changes_of(entries)).get(wanted)
        if not changes:
            return ""
        before, now = changes[0].before, self._now(files, wanted)
        if before.is_same(now):
            return ""
        try:
            old = _text(self.store.content(session_id, before)) if before.has_copy else None
            new = _text(files.read(wanted, MAX_COMPARED_CHARS) if now.kind == "file" else b"")
        except OSError:
            old = new = None
        if old is None or new is None:
            return f"{wanted} differs, and cannot be shown as text.\n"
        old_name, new_name = ("/dev/null" if state.kind == "missing" else wanted for state in (before, now))
        lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), old_name, new_name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def latest_session(self, folder: str, *, undone_too: bool = False) -> str | None:
        """The session that changed files in a folder last; one that was taken back as a whole only if wanted."""
        latest: tuple[float, str] | None = None
        for session_id in self.store.sessions():
            for entry in self.store.entries(session_id):
                paths = [path for path in entry.changed_paths() if undone_too or path not in entry.undone]
                counts = entry.is_call or undone_too
                if counts and _any_in(folder, paths):
                    latest = max(latest or (0.0, ""), (entry.began.at, session_id))
        return latest[1] if latest is not None else None

    # Taking back

    def undo_calls(
        self, session_id: str, count: int = 1, *, folder: str = "", force: bool = False, dry_run: bool = False
    ) -> Undone:
        """Take back the latest calls that changed files, or that did so in a folder."""
        chosen = [one for one in reversed(self.calls(session_id, folder)) if one.can_be_undone][:count]
        return self._undo_records(session_id, chosen, force=force, dry_run=dry_run)

    def undo_to(
        self, session_id: str, call_id: str, *, folder: str = "", force: bool = False, dry_run: bool = False
    ) -> Undone:
        """Take back everything from the latest call back to the one of that id, and that one too."""
        calls = self.calls(session_id, folder)
        at = next((number for number, one in enumerate(calls) if call_id in (one.call_id, *one.entry_ids)), None)
        if at is None:
            ids = [one.call_id for one in calls]
            raise UnknownCall(call_id, ids, advice="`toolcrib undo --list` shows all of them")
        chosen = [one for one in reversed(calls[at:]) if one.can_be_undone]
        return self._undo_records(session_id, chosen, force=force, dry_run=dry_run)

    def undo(self, session_id: str, *, turn_id: str | None = None, force: bool = False) -> list[UndoneFile]:
        """Take back what the session, or one turn of it, did to files; what somebody else changed since is refused."""
        entries = self.store.entries(session_id)
        chosen = [one for one in entries if one.is_call and turn_id in (None, one.began.turn_id)]
        return self._take_back(session_id, entries, chosen, UNDO, force=force)

    def redo(self, session_id: str, *, folder: str = "", force: bool = False, dry_run: bool = False) -> Undone:
        """Take back the latest undo, or the latest in a folder."""
        entries = self.store.entries(session_id)
        undos = [one for one in entries if one.began.tool == UNDO and changes_of([one])]
        undos = [one for one in undos if not folder or _any_in(folder, one.changed_paths())]
        if not undos:
            return Undone()
        # One that was cut short and the one that finished it are one.
        latest = set(undos[-1].began.takes_back)
        chosen = [one for one in undos if not latest.isdisjoint(one.began.takes_back)]
        files = self._take_back(session_id, entries, chosen, REDO, force=force, dry_run=dry_run)
        return Undone(files=tuple(files))

    def forget(self, session_id: str) -> None:
        """Remove all copies of a session."""
        self.store.forget(session_id)

    def _undo_records(self, session_id: str, chosen: Sequence[CallRecord], *, force: bool, dry_run: bool) -> Undone:
        ids = {entry_id for one in chosen for entry_id in one.entry_ids}
        entries = self.store.entries(session_id)
        wanted = [one for one in entries if one.id in ids]
        files = self._take_back(session_id, entries, wanted, UNDO, force=force, dry_run=dry_run)
        return Undone(calls=tuple(chosen), files=tuple(files))

    def _take_back(
        self,
        session_id: str,
        entries: Sequence[Entry],
        chosen: Sequence[Entry],
        tool: str,
        *,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[UndoneFile]:
        done: list[UndoneFile] = []
        for place in dict.fromkeys(_place_key(one) for one in chosen):
            here = [one for one in chosen if _place_key(one) == place]
            others = [one for one in entries if _place_key(one) == place and one not in here and one.is_call]
            try:
                files = self._files_of(here[0])
            except OSError as error:
                paths = by_path(changes_of(here))
                done += [UndoneFile(path=path, what="refused", reason=str(error)) for path in paths]
                continue
            unfinished = [one for one in entries if one.began.tool == tool and one.after is None]
            work = _Work(self.store, session_id, files, here, changes_of(others), tool, unfinished)
            done += work.run(force=force, dry_run=dry_run)
        return _without_implied_folders(done)

    def _files_of(self, entry: Entry) -> Files:
        if entry.began.place is None:
            return Disk()
        return place_again(entry.began.place, self._terminal() if self._terminal is not None else None)

    def _now(self, files: Files, path: str) -> FileState:
        """What is at a path now, its digest included."""
        present = Snapshot(_anywhere(files), self.store.limits())
        present.take_paths([path])
        return present.states.get(path, FileState(kind="special"))


class _Work:
    """The taking back of calls that worked in one place."""

    def __init__(
        self,
        store: UndoStore,
        session_id: str,
        files: Files,
        chosen: Sequence[Entry],
        others: Sequence[Change],
        tool: str,
        unfinished: Sequence[Entry],
    ) -> None:
        self._store, self._session_id, self._files, self._tool = store, session_id, files, tool
        self._chosen = chosen
        self._changes = by_path(changes_of(chosen))
        keys = set(self._keys(list(self._changes)))
        self._resumed = [one for one in unfinished if not keys.isdisjoint(one.began.takes_back)]
        """Earlier attempts at the same that were cut short."""
        self._begun = {path for one in self._resumed for path in one.before}
        self._others = by_path(others)
        folders = frozenset(path for path, changes in self._changes.items() if changes[0].before.kind == "folder")
        self._restorer = Restorer(files, store, session_id, folders)

    def run(self, *, force: bool, dry_run: bool) -> list[UndoneFile]:
        if not self._changes:
            return []
        area, limits = _anywhere(self._files), self._store.limits()
        pack = None if dry_run else self._store.new_pack(self._session_id)
        present = Snapshot(area, limits, pack=pack, kept=self._store.kept(self._session_id) if pack else None)
        present.take_paths(self._changes)
        steps, refused = self._plan(present, force=force)
        if dry_run or pack is None:
            return self._in_order([_would(step) for step in steps] + refused)
        began = Began(
            id=pack.name,
            at=self._store.clock(),
            tool=self._tool,
            place=self._chosen[0].began.place,
            takes_back=self._keys([path for path in self._changes if path not in {one.path for one in refused}]),
        )
        needed = frozenset(step.target.pack for step in steps)
        self._store.begin(self._session_id, began, present, pack, needed=needed, wait=True)
        done = self._restorer.carry_out(steps) + refused
        self._files.settle()
        after = Snapshot(area, limits, earlier=present)
        after.take_paths(present.states)
        self._store.end(self._session_id, began.id, present, after)
        for one in self._resumed:
            seen = tuple(Seen(path=path, state=after.states[path]) for path in one.before if path in after.states)
            self._store.append(self._session_id, Ended(id=one.id, files=seen))
        self._mark([one.path for one in done if one.what == "refused"])
        return self._in_order(done)

    def _in_order(self, files: list[UndoneFile]) -> list[UndoneFile]:
        """In the order of the first change of each path."""
        places = {path: place for place, path in enumerate(self._changes)}
        return sorted(files, key=lambda one: places[one.path])

    def _plan(self, present: Snapshot, *, force: bool) -> tuple[list[Step], list[UndoneFile]]:
        """What is to be done, and what must not be."""
        steps: list[Step] = []
        refused: list[UndoneFile] = []
        wanted = [
            Step(path=path, target=changes[0].before, now=present.states.get(path, FileState(kind="special")))
            for path, changes in self._changes.items()
        ]
        self._restorer.find_moved(wanted)
        for step in wanted:
            if step.now.is_same(step.target):
                continue
            reason = self._restorer.why_impossible(step)
            if not reason and not force:
                reason = why_not(step.now, self._changes[step.path], self._others.get(step.path, []))
                if reason == SOMEBODY and step.path in self._begun and _is_half_done(step):
                    reason = ""
            if reason:
                refused.append(UndoneFile(path=step.path, what="refused", reason=reason, size=step.target.size))
            else:
                steps.append(step)
        return steps, refused

    def _keys(self, paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return tuple(change.key for path in paths for change in self._changes[path])

    def _mark(self, refused: Sequence[str]) -> None:
        """Put on record which changes do not count any more, and which do again."""
        left = set(refused)
        paths = [path for path in self._changes if path not in left]
        keys = self._keys(paths)
        if keys:
            self._store.append(self._session_id, TakenBack(changes=keys))
        again = [key for one in self._chosen for key in one.began.takes_back if key[1] not in left]
        if again:
            self._store.append(self._session_id, Revived(changes=tuple(again)))


def _anywhere(files: Files) -> Area:
    """What the journal names was in the workspace of its call; no folder is looked for again."""
    return Area(files=files, workspace="/")


def _without_implied_folders(files: Sequence[UndoneFile]) -> list[UndoneFile]:
    """The outcome without the folders that came or went with something in them."""
    above = {one.path.rpartition("/")[0] for one in files}
    return [one for one in files if one.kind != "folder" or one.what == "refused" or one.path not in above]


def _place_key(entry: Entry) -> str:
    return json.dumps(entry.began.place, sort_keys=True) if entry.began.place is not None else ""


def _any_in(folder: str, paths: Sequence[str]) -> bool:
    """Whether one of the paths is a folder or in it."""
    inside = f"{Disk().real(folder).rstrip('/')}/"
    return any(f"{path}/".startswith(inside) for path in paths)


def _is_half_done(step: Step) -> bool:
    """Whether a path may be what an undo leaves in the middle of its work; no content is lost where it goes on."""
    return step.now.kind == "missing" or step.now.kind == step.target.kind == "folder"


def _would(step: Step) -> UndoneFile:
    is_gone = step.target.kind == "missing"
    kind = step.now.kind if is_gone else step.target.kind
    return UndoneFile(path=step.path, what="removed" if is_gone else "restored", size=step.target.size, kind=kind)


def _text(content: bytes | None) -> str | None:
    """The content as text that can be compared; None when it is none, or too much."""
    if content is None or b"\0" in content or len(content) > MAX_COMPARED_CHARS:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
