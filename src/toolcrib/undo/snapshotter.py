"""Finds out which files calls change: the FileSnapshots of a Runtime.

A call that names the files it writes is recorded with their states. A command may change anything, so the workspace is
scanned before and after it, unless the gate reads it as one that only reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolcrib.approval.calls import CommandReading
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.named_files import NamedFiles
from toolcrib.config.os_errors import reason_of
from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.errors import ToolcribError
from toolcrib.core.lazy import lazy
from toolcrib.core.types import Effect, ToolEntry
from toolcrib.undo.files import MISSING, FileState, LocalFiles
from toolcrib.undo.path_snapshot import ANYWHERE, PathSnapshot, SnapshotLimits, UndoScope
from toolcrib.undo.remote_files import RemoteFiles, SnapshotFiles, environment_as_json
from toolcrib.undo.store import MEGABYTE, CallStart, UndoStore, UndoStoreError, is_below
from toolcrib.undo.workspace import Scan, Workspace, WorkspaceBeyondLimits, why_not_scanned

if TYPE_CHECKING:
    from toolcrib.core.context import Services

logger = logging.getLogger(__name__)

KEPT_KINDS = frozenset({"write", "delete", "exec"})
SUMMARY_CHARS = 200
MENTIONED = SnapshotLimits(max_files=500, max_bytes=16_000_000, seconds=2.0)
"""For what a program may change because its command line mentions it."""
# Another environment is reached over a connection, so less is saved there.
THERE = SnapshotLimits(max_files=2_000, max_bytes=8_000_000, seconds=10.0)
THERE_SECONDS = 5.0
CANCEL_SECONDS = 1.0
ONLY_NAMED = "only files that the call names are saved"


@dataclass(kw_only=True)
class _OpenCall:
    """A running call, and what is known from before it."""

    session_id: str
    start: CallStart
    commands: tuple[str, ...]
    files: SnapshotFiles
    certain: list[str]
    """Paths that it writes, moves or deletes."""
    mentioned: list[str]
    """Paths that it may write to."""
    workspace: Workspace | None = None
    tree: str = ""
    """The workspace in another environment."""
    states: dict[str, FileState] = field(default_factory=dict)
    is_complete: bool = True
    head: tuple[str, str] = ("", "")
    notices: list[str] = field(default_factory=list)
    """What the person should know about it at once."""

    def note(self, *notes: str) -> None:
        self.start = replace(self.start, notes=tuple(dict.fromkeys((*self.start.notes, *notes))))

    @property
    def is_recorded(self) -> bool:
        return bool(self.states or self.start.notes or self.start.workspace)


class Snapshotter:
    """Records the files that one Runtime's calls change. No failure here reaches a call."""

    def __init__(self, settings: Settings, services: Services, workspace: str) -> None:
        self.store = UndoStore(settings.home.undo_dir, settings.undo)
        self._settings = settings
        self._services = services
        self._workspace = workspace
        self._lock = threading.Lock()
        self._workspaces: dict[str, Workspace] = {}
        self._running: dict[int, tuple[ToolContext, list[_OpenCall]]] = {}
        self._listed: dict[str, dict[str, FileState]] = {}
        """What is known of the files in other environments."""
        self._told: set[str] = set()
        """Why something is not saved, as the person was told."""
        self._detached: dict[str, tuple[tuple[str, ...], str]] = {}
        """Calls whose commands continue in the background, with the key of their session."""

    def close(self) -> None:
        self.store.close()

    def wants(self, effects: tuple[Effect, ...], ctx: ToolContext, /) -> bool:
        for effect in effects:
            reading = _reading(effect, ctx) if effect.kind == "exec" else None
            if effect.kind in KEPT_KINDS and (reading is None or not reading.files.reads_only):
                return True
        return False

    async def before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, /) -> None:
        # Not `to_thread`, which would need a task of its own to be shielded.
        work = asyncio.get_running_loop().run_in_executor(None, self._open_calls, entry, effects, ctx)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and `after` must find its result.
            await asyncio.wait([work], timeout=CANCEL_SECONDS)
            raise

    async def after(self, ctx: ToolContext, /) -> tuple[str, ...]:
        with self._lock:
            _, opened = self._running.pop(id(ctx), (ctx, []))
        for call in opened:
            try:
                await asyncio.to_thread(self._end, call, ctx)
            except (OSError, ToolcribError) as error:
                self._tell_unsaved(call, error)
        return tuple(what for call in opened for what in call.notices)

    # Before a call

    def _open_calls(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext) -> None:
        for is_there in (False, True):
            some = [one for one in effects if one.kind in KEPT_KINDS and bool(one.backend) is is_there]
            try:
                call = self._opened(entry, some, ctx) if some else None
            except (OSError, ToolcribError) as error:
                logger.warning("cannot save the files that %s changes: %s", entry.name, error, exc_info=error)
                continue
            if call is not None:
                self._begin_call(call, ctx)

    def _begin_call(self, call: _OpenCall, ctx: ToolContext) -> None:
        try:
            if call.workspace is not None:
                call.head = call.workspace.git.head()
                progress = partial(_report, ctx)
                call.workspace.scan(partial(self._begin_scanned, call), ended=self._ended(), progress=progress)
            else:
                with self.store.write() as connection:
                    self._begin(call, connection)
        except WorkspaceBeyondLimits as error:
            text = f"{error}, so undo covers only files that calls name; `undo.ignore` leaves out folders"
            self._tell_once(call, text)
            self._begin_without_scan(call, f"not saved: {error}; {ONLY_NAMED}")
        except (OSError, UndoStoreError) as error:
            # On a full disk, the space of what was not saved is enough for a line that says so.
            call.certain, call.mentioned, call.tree = [], [], ""
            self._begin_without_scan(call, f"not saved: {self._tell_unsaved(call, error)}")
        if call.is_recorded:
            with self._lock:
                self._running.setdefault(id(ctx), (ctx, []))[1].append(call)

    def _tell_once(self, call: _OpenCall, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            call.notices.append(text)

    def _tell_unsaved(self, call: _OpenCall, error: Exception) -> str:
        """Tell the person that undo does not work, because a tool call must not fail for that; gives the reason."""
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        logger.warning("cannot save the files that %s changes: %s", call.start.tool, error)
        self._tell_once(call, f"undo cannot save what calls change: {why}")
        return why

    def _opened(self, entry: ToolEntry, effects: Sequence[Effect], ctx: ToolContext) -> _OpenCall | None:
        """What is to be saved for a call; None if that is nothing."""
        is_there = bool(effects[0].backend)
        folder = "" if is_there else os.path.realpath(ctx.cwd or self._workspace or "/")
        cwd = next((effect.cwd for effect in effects if effect.cwd), "") or folder
        commands = [effect for effect in effects if effect.kind == "exec"]
        named = [_named_by(one, ctx, one.cwd or cwd or "/") for one in commands]
        writing = [one for one in named if not one.reads_only]
        targets = [(one.cwd or cwd, one.target) for one in effects if one.kind != "exec" and one.target]
        paths = [os.path.join(at, one if is_there else os.path.expanduser(one)) for at, one in targets]  # noqa: PTH118, PTH111
        if not writing and not paths:
            return None
        call = _OpenCall(
            session_id=ctx.session_id,
            start=CallStart(
                id=secrets.token_hex(6),
                at=self.store.clock(),
                tool=entry.name,
                summary=_summary(entry.name, effects),
                call_id=ctx.call_id,
                turn_id=ctx.turn_id,
            ),
            commands=tuple(one.target for one in commands),
            files=LocalFiles(ctx.memo),
            certain=[path for path in (*paths, *(path for one in writing for path in one.certain)) if "\0" not in path],
            mentioned=[path for one in writing for path in one.mentioned],
        )
        if is_there:
            self._open_there(call, effects, ctx, cwd, scans=bool(writing))
        elif writing:
            self._open_workspace(call, writing, folder, cwd)
        return call

    def _open_workspace(self, call: _OpenCall, writing: list[NamedFiles], folder: str, cwd: str) -> None:
        """Find the workspace that is scanned for a call, or note why none is."""
        why = why_not_scanned(folder, self._scope.home)
        if why:
            call.note(f"not saved: {why}, which is not scanned; {ONLY_NAMED}")
            if not all(one.is_exact for one in writing):
                self._tell_once(call, f"{why}, so undo covers only files that calls name")
            return
        if cwd != folder and not is_below(os.path.realpath(cwd), [folder]):
            call.note(f"not saved: the command ran in {cwd}, outside of the workspace; {ONLY_NAMED}")
        with self._lock:
            workspace = self._workspaces.get(folder)
            if workspace is None:
                own = self._scope.excluded, self._scope.included
                workspace = self._workspaces[folder] = Workspace(self.store, folder, own)
        call.workspace = workspace
        named = [os.path.normpath(path) for path in (*call.certain, *(path for one in writing for path in one.owned))]
        call.start = replace(
            call.start,
            workspace=folder,
            is_opaque=not all(one.is_exact for one in writing),
            named=tuple(dict.fromkeys(one for path in named for one in (path, os.path.realpath(path)))),
        )

    def _open_there(
        self, call: _OpenCall, effects: Sequence[Effect], ctx: ToolContext, cwd: str, *, scans: bool
    ) -> None:
        """Find the files of another environment, and the workspace there."""
        terminal = self._services.terminal
        spec = terminal.execution_target(ctx).spec
        files = call.files = RemoteFiles(terminal, spec, seconds=THERE_SECONDS)
        folder = files.real(next((effect.workspace for effect in effects if effect.workspace), "") or cwd or ".")
        call.start = replace(call.start, environment=environment_as_json(spec, files))
        call.tree = folder if scans else ""
        call.certain = [
            path for path in call.certain if path.startswith("/") and not (call.tree and is_below(path, [folder]))
        ]
        call.mentioned = []

    def _begin_scanned(self, call: _OpenCall, connection: sqlite3.Connection, scan: Scan) -> None:
        for path, reason in list(scan.unsaved.items())[:1]:
            more = f" and {len(scan.unsaved) - 1:,} more" if len(scan.unsaved) > 1 else ""
            call.note(f"not saved: {path}{more}: {reason}")
            call.notices.append(call.start.notes[-1])
        self._begin(call, connection)

    def _begin(self, call: _OpenCall, connection: sqlite3.Connection) -> None:
        """Save what the call names, and record it; from then on it survives the end of the process."""
        snapshot = self._snapshot(call, connection)
        call.states, call.is_complete = snapshot.states, snapshot.is_complete
        call.note(*snapshot.notes)
        if snapshot.unsaved or not call.is_complete:
            call.notices += snapshot.notes
        if call.is_recorded:
            self.store.begin(connection, call.session_id, call.start, call.states)

    def _begin_without_scan(self, call: _OpenCall, note: str) -> None:
        """Record a call whose workspace cannot be scanned, or for which nothing can be saved."""
        call.note(note)
        call.start, call.workspace = replace(call.start, workspace=""), None
        with contextlib.suppress(OSError, ToolcribError), self.store.write() as connection:
            self._begin(call, connection)

    def _snapshot(self, call: _OpenCall, connection: sqlite3.Connection | None) -> PathSnapshot:
        """What is at the paths that the call names; in another environment, also in its workspace if that is small."""
        files, store = call.files, self.store
        scope = ANYWHERE if isinstance(files, RemoteFiles) else self._scope
        snapshot = PathSnapshot(
            files, store, scope, workspace=call.workspace, connection=connection, earlier=call.states
        )
        if not isinstance(files, RemoteFiles):
            snapshot.take(call.certain, SnapshotLimits(max_bytes=int(store.settings.max_workspace_mb * MEGABYTE)))
            there = [path for path in call.mentioned if files.look(path).kind != "missing" or path in call.states]
            snapshot.take(there, MENTIONED)
            return snapshot
        files.refresh()
        snapshot.take(call.certain, THERE)
        known = self._listed.setdefault(f"{call.tree} {call.start.environment}", {})
        listed = files.tree(call.tree, known, THERE.max_bytes) if call.tree else {}
        if listed is None:
            snapshot.is_complete = False
            snapshot.notes[f"not saved: the workspace in this environment is too large to scan; {ONLY_NAMED}"] = None
            return snapshot
        for path, (state, content) in listed.items():
            snapshot.states[path] = replace(state, stamp="")
            if connection is not None and state.kind == "file":
                if content:
                    store.add_content(connection, state.digest, content)
                known[path] = state
        return snapshot

    # After a call

    def _end(self, call: _OpenCall, ctx: ToolContext) -> None:
        key = str(self._services.terminal.execution_target(ctx).spec.session) if call.commands else ""
        if self._runs_on(call.commands, key):
            self.store.set_detached(call.start.id)
            with self._lock:
                self._detached[call.start.id] = call.commands, key
            return
        why = []
        if call.workspace is not None:
            try:
                call.workspace.scan(lambda at, scan: self._finish(at, call, scan.lost), ended=self._ended())
                return
            except WorkspaceBeyondLimits as error:
                why = [f"not saved: {error}"]
        with self.store.write() as connection:
            self._finish(connection, call, {}, *why)

    def _finish(self, connection: sqlite3.Connection, call: _OpenCall, lost: dict[str, str], *notes: str) -> None:
        """Record what the call left at the paths that it names, and that it has ended."""
        after = self._snapshot(call, None)
        after.take_recorded(path for path in call.states if path not in after.states)
        # A path without an earlier state counts as new only if certainly nothing was there: an undo would remove it.
        changes = {
            path: (call.states.get(path, MISSING), state)
            for path, state in after.states.items()
            if path in call.states or call.is_complete
        }
        head = call.workspace.git.head() if call.workspace is not None else call.head
        has_changed = any(not old.is_same(new) for old, new in changes.values())
        if head != call.head and (has_changed or self.store.has_changes(connection, call.start.id)):
            notes = (*notes, f"HEAD stays at {head[0]}: undo restores files, not what git has checked out")
        unsaved = [what for path, what in lost.items() if path not in call.states]
        call.notices += [f"{what}; undo cannot restore that" for what in unsaved]
        notes = (*notes, *(f"not recorded: {what}" for what in unsaved))
        self.store.end(connection, call.start.id, changes, notes)

    def _ended(self) -> list[str]:
        """The calls whose commands have ended in the background since."""
        with self._lock:
            detached = list(self._detached.items())
        ended = [call for call, (commands, key) in detached if not self._runs_on(commands, key)]
        with self._lock:
            for call in ended:
                self._detached.pop(call, None)
        return ended

    def _runs_on(self, commands: tuple[str, ...], session_key: str) -> bool:
        return any(self._services.terminal.runs_on(session_key, command) for command in commands)

    @lazy
    def _scope(self) -> UndoScope:
        """Everything but toolcrib's own home, except for the skills in it; nothing moves them while toolcrib runs."""
        own = self._settings.home
        try:
            home = os.path.realpath(Path.home())
        except RuntimeError:  # The user has none.
            home = ""
        return UndoScope(excluded=os.path.realpath(own.root), included=os.path.realpath(own.skills_dir), home=home)


def _named_by(effect: Effect, ctx: ToolContext, cwd: str) -> NamedFiles:
    """The files that a command names, as the gate has read it."""
    reading = _reading(effect, ctx)
    if reading is None:
        reading = read_command(effect.target, cwd=cwd, home=str(Path.home()), here=not effect.backend)
    return reading.files


def _reading(effect: Effect, ctx: ToolContext) -> CommandReading | None:
    reading: CommandReading | None = ctx.memo.readings.get(effect.target) if ctx.memo is not None else None
    return reading


def _report(ctx: ToolContext, text: str) -> None:
    """Report the progress of a call, from a thread that does not know which one it works for."""
    token = current_context.set(ctx)
    try:
        ctx.progress(text)
    finally:
        current_context.reset(token)


def _summary(tool: str, effects: Sequence[Effect]) -> str:
    """The call in one line: its command, or what it does to which paths."""
    parts = [effect.target if effect.kind == "exec" else f"{effect.kind} {effect.target}" for effect in effects]
    text = " ".join(", ".join(parts).split()) or tool
    return text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 1]}…"
