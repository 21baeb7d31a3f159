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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from toolcrib.approval.calls import CommandReading
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.named_files import NamedFiles
from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.errors import ToolcribError
from toolcrib.core.lazy import lazy
from toolcrib.core.types import Effect, ToolEntry
from toolcrib.undo.files import MISSING, FileState, LocalFiles, SnapshotFiles, with_content
from toolcrib.undo.path_snapshot import ANYWHERE, PathSnapshot, SnapshotLimits, UndoScope, real_home
from toolcrib.undo.remote_files import RemoteFiles, environment_as_json
from toolcrib.undo.store import MEGABYTE, CallStart, UndoStore, UndoStoreError, is_below
from toolcrib.undo.workspace import Workspace, WorkspaceBeyondLimits, why_not_scanned

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
    scope: UndoScope = ANYWHERE
    certain: list[str] = field(default_factory=list)
    """Paths that it writes, moves or deletes."""
    mentioned: list[str] = field(default_factory=list)
    """Paths that it may write to."""
    files: SnapshotFiles = field(default_factory=LocalFiles)
    tree: str = ""
    """The workspace in another environment."""
    workspace: Workspace | None = None
    """The workspace that is scanned again after the call."""
    states: dict[str, FileState] = field(default_factory=dict)
    is_complete: bool = True
    head: tuple[str, str] = ("", "")


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
        """What is known of the files in other environments, by their workspace there."""
        self._told: set[str] = set()
        """Workspaces that are not scanned, as the person was told."""
        self._detached: dict[str, tuple[tuple[str, ...], str]] = {}
        """Calls whose commands continue in the background, with the key of their session."""

    def close(self) -> None:
        self.store.close()

    def wants(self, effects: tuple[Effect, ...], ctx: ToolContext, /) -> bool:
        return any(
            effect.kind in KEPT_KINDS and not (effect.kind == "exec" and _reads_only(effect, ctx)) for effect in effects
        )

    async def before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, /) -> None:
        # Not `to_thread`, which would need a task of its own to be shielded.
        work = asyncio.get_running_loop().run_in_executor(None, self._before, entry, effects, ctx)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and `after` must find its result.
            await asyncio.wait([work], timeout=CANCEL_SECONDS)
            raise

    async def after(self, ctx: ToolContext, /) -> None:
        with self._lock:
            _, opened = self._running.pop(id(ctx), (ctx, []))
        if opened:
            await asyncio.to_thread(self._after, opened, ctx)

    def _before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext) -> None:
        kept = [effect for effect in effects if effect.kind in KEPT_KINDS]
        here = tuple(effect for effect in kept if not effect.backend)
        there = tuple(effect for effect in kept if effect.backend)
        if here:
            _survive(entry.name, self._keep, entry, here, ctx)
        if there:
            _survive(entry.name, self._keep_there, entry, there, ctx)

    def _keep(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext) -> None:
        folder = os.path.realpath(ctx.cwd or self._workspace or "/")
        call = self._opened(entry, effects, ctx, folder)
        if call is None:
            return
        try:
            if call.workspace is not None:
                call.head = call.workspace.git.head()
                call.workspace.scan(partial(self._begin, call), ended=self._ended(), progress=partial(_report, ctx))
            else:
                with self.store.write() as connection:
                    self._begin(call, connection)
        except WorkspaceBeyondLimits as error:
            self._tell_once(ctx, folder, str(error))
            call = self._without_scan(call, f"not saved: {error}; {ONLY_NAMED}")
        except (OSError, UndoStoreError) as error:
            # On a full disk, the space of what was not saved is enough for a line that says so.
            call = self._without_scan(call, f"not saved: {getattr(error, 'strerror', None) or error}", empty=True)
            logger.warning("cannot save the files that %s changes: %s", entry.name, error)
        if call.states or call.start.notes or call.workspace is not None:
            with self._lock:
                self._running.setdefault(id(ctx), (ctx, []))[1].append(call)

    def _opened(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, folder: str) -> _OpenCall | None:
        """What is to be saved for a call; None if that is nothing."""
        commands = [effect for effect in effects if effect.kind == "exec"]
        cwd = next((effect.cwd for effect in effects if effect.cwd), "") or folder
        read = [named_by(one, ctx, one.cwd or cwd) for one in commands]
        writing = [named for named in read if not named.reads_only]
        paths = [
            os.path.join(effect.cwd or cwd, os.path.expanduser(effect.target))  # noqa: PTH118, PTH111
            for effect in effects
            if effect.kind != "exec" and effect.target and "\0" not in effect.target
        ]
        if not writing and not paths:
            return None
        call = self._new_call(entry, effects, ctx, folder)
        home, skills = self._own_folders
        call.scope = UndoScope(excluded=(home,), included=(skills,), home=real_home())
        call.certain = [*paths, *(path for named in writing for path in named.certain)]
        call.mentioned = [path for named in writing for path in named.mentioned]
        return self._with_workspace(call, writing, folder, cwd) if writing else call

    def _new_call(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, folder: str) -> _OpenCall:
        start = CallStart(
            id=secrets.token_hex(6),
            at=self.store.clock(),
            tool=entry.name,
            summary=_summary(entry.name, effects),
            call_id=ctx.call_id,
            turn_id=ctx.turn_id,
            folder=folder,
        )
        commands = tuple(effect.target for effect in effects if effect.kind == "exec")
        return _OpenCall(session_id=ctx.session_id, start=start, commands=commands)

    def _keep_there(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext) -> None:
        """Save what a call in another environment names, and its workspace there if that is small."""
        commands = [effect for effect in effects if effect.kind == "exec"]
        terminal = self._services.terminal
        spec = terminal.execution_target(ctx).spec
        files = RemoteFiles(terminal, spec, seconds=THERE_SECONDS)
        cwd = next((effect.cwd for effect in effects if effect.cwd), "")
        root = next((effect.workspace for effect in effects if effect.workspace), "") or cwd
        read = [named_by(one, ctx, one.cwd or cwd or "/") for one in commands]
        writing = [named for named in read if not named.reads_only]
        paths = [os.path.join(one.cwd or cwd, one.target) for one in effects if one.kind != "exec"]  # noqa: PTH118
        if not writing and not paths:
            return
        folder = files.real(root or ".")
        call = self._new_call(entry, effects, ctx, folder)
        call.files, call.tree = files, folder if writing else ""
        call.start = replace(call.start, environment=environment_as_json(spec, files))
        call.certain = [path for path in paths if path.startswith("/")]
        call.certain += [one for named in writing for one in named.certain if not is_below(one, [folder])]
        with self.store.write() as connection:
            self._begin(call, connection)
        if call.states or call.start.notes:
            with self._lock:
                self._running.setdefault(id(ctx), (ctx, []))[1].append(call)

    def _with_workspace(self, call: _OpenCall, writing: list[NamedFiles], folder: str, cwd: str) -> _OpenCall:
        """The call with the workspace that is scanned for it, or a note that says why none is."""
        why = why_not_scanned(folder, real_home())
        if why:
            return self._noted(call, f"not saved: {why}, which is not scanned; {ONLY_NAMED}")
        if not is_below(os.path.realpath(cwd), [folder]):
            call = self._noted(call, f"not saved: the command ran in {cwd}, outside of the workspace; {ONLY_NAMED}")
        with self._lock:
            call.workspace = self._workspaces.get(folder)
            if call.workspace is None:
                call.workspace = self._workspaces[folder] = Workspace(self.store, folder, self._own_folders)
        call.scope = UndoScope(
            excluded=call.scope.excluded,
            included=call.scope.included,
            home=call.scope.home,
            follows=call.workspace.follows,
            unfollowed=call.workspace.unfollowed,
        )
        owned = [path for one in writing for path in one.owned]
        named = [os.path.normpath(path) for path in (*call.certain, *owned)]
        call.start = replace(
            call.start,
            workspace=folder,
            is_opaque=not all(one.is_exact for one in writing),
            named=tuple(dict.fromkeys(one for path in named for one in (path, os.path.realpath(path)))),
        )
        return call

    def _begin(self, call: _OpenCall, connection: sqlite3.Connection) -> None:
        """Save what the call names, and record it; from then on it survives the end of the process."""
        snapshot = self._snapshot(call, connection)
        call.states, call.is_complete = snapshot.states, snapshot.is_complete
        call.start = replace(call.start, notes=tuple(dict.fromkeys((*call.start.notes, *snapshot.notes))))
        if call.states or call.start.notes or call.workspace is not None:
            self.store.begin(connection, call.session_id, call.start, call.states)

    def _snapshot(self, call: _OpenCall, connection: sqlite3.Connection | None) -> PathSnapshot:
        files = call.files
        if isinstance(files, RemoteFiles):
            return self._snapshot_there(call, files, connection)
        limits = SnapshotLimits(max_bytes=int(self._settings.undo.max_workspace_mb * MEGABYTE))
        snapshot = PathSnapshot(
            files, self.store, call.scope, limits, connection=connection, earlier=call.states or None
        )
        snapshot.take(call.certain)
        there = [path for path in call.mentioned if files.look(path).kind != "missing" or path in call.states]
        if there:
            more = PathSnapshot(
                files, self.store, call.scope, MENTIONED, connection=connection, earlier=call.states or None
            )
            more.take(there)
            snapshot.states = {**more.states, **snapshot.states}
            snapshot.notes.update(more.notes)
            snapshot.is_complete = snapshot.is_complete and more.is_complete
        return snapshot

    def _snapshot_there(
        self, call: _OpenCall, files: RemoteFiles, connection: sqlite3.Connection | None
    ) -> PathSnapshot:
        """What the call names in another environment, and the workspace there if that is small."""
        files.refresh()
        snapshot = PathSnapshot(files, self.store, call.scope, THERE, connection=connection)
        snapshot.take(call.certain)
        listed = files.tree(call.tree) if call.tree else {}
        if listed is None:
            snapshot.is_complete = False
            snapshot.notes[f"not saved: the workspace in this environment is too large to scan; {ONLY_NAMED}"] = None
            return snapshot
        known = self._listed.setdefault(call.tree + str(call.start.environment), {})
        unread = [
            path for path, state in listed.items() if state.kind == "file" and not _is_known(state, known.get(path))
        ]
        files.fetch(unread, THERE.max_bytes)
        for path, state in listed.items():
            if state.kind == "file":
                read = (
                    known[path] if path not in unread else with_content(state, files.read(path, THERE.max_bytes) or b"")
                )
                if connection is not None and path in unread and read.size:
                    self.store.add_content(connection, read.digest, files.read(path, THERE.max_bytes) or b"")
                if state.stamp and connection is not None:
                    known[path] = replace(read, stamp=state.stamp)
                state = replace(read, mode=state.mode, stamp="")
            snapshot.states[path] = state
        return snapshot

    def _without_scan(self, call: _OpenCall, note: str, *, empty: bool = False) -> _OpenCall:
        """Record a call whose workspace cannot be scanned, or for which nothing can be saved."""
        call = self._noted(call, note)
        call.workspace = None
        call.start = replace(call.start, workspace="")
        call.scope = UndoScope(excluded=call.scope.excluded, included=call.scope.included, home=call.scope.home)
        if empty:
            call.certain, call.mentioned = [], []
        with contextlib.suppress(OSError, ToolcribError), self.store.write() as connection:
            self._begin(call, connection)
        return call

    def _tell_once(self, ctx: ToolContext, folder: str, why: str) -> None:
        """Say once that a workspace is not scanned."""
        if folder not in self._told:
            self._told.add(folder)
            _report(ctx, f"{why}, so undo covers only files that calls name; `undo.ignore` leaves out folders")

    @staticmethod
    def _noted(call: _OpenCall, note: str) -> _OpenCall:
        call.start = replace(call.start, notes=(*call.start.notes, note))
        return call

    def _after(self, opened: list[_OpenCall], ctx: ToolContext) -> None:
        for one in opened:
            _survive("a call", self._end, one, ctx)

    def _end(self, call: _OpenCall, ctx: ToolContext) -> None:
        if call.commands and self._runs_on(call.commands, self._session_key(ctx)):
            self.store.set_detached(call.start.id)
            with self._lock:
                self._detached[call.start.id] = call.commands, self._session_key(ctx)
            return
        if call.workspace is None:
            with self.store.write() as connection:
                self._finish(connection, call)
            return
        try:
            call.workspace.scan(lambda connection: self._finish(connection, call), ended=self._ended())
        except WorkspaceBeyondLimits as error:
            with self.store.write() as connection:
                self._finish(connection, call, f"not saved: {error}")

    def _finish(self, connection: sqlite3.Connection, call: _OpenCall, *notes: str) -> None:
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
        self.store.end(connection, call.start.id, changes, notes=notes)

    def _ended(self) -> list[str]:
        """The calls whose commands have ended in the background since."""
        with self._lock:
            detached = list(self._detached.items())
        ended = [call for call, (commands, key) in detached if not self._runs_on(commands, key)]
        with self._lock:
            for call in ended:
                self._detached.pop(call, None)
        return ended

    def _session_key(self, ctx: ToolContext) -> str:
        return str(self._services.terminal.execution_target(ctx).spec.session)

    def _runs_on(self, commands: tuple[str, ...], session_key: str) -> bool:
        return any(self._services.terminal.runs_on(session_key, command) for command in commands)

    @lazy
    def _own_folders(self) -> tuple[str, str]:
        """The real paths of toolcrib's home and of the skills in it; nothing moves them while toolcrib runs."""
        home = self._settings.home
        return os.path.realpath(home.root), os.path.realpath(home.skills_dir)


def _reads_only(effect: Effect, ctx: ToolContext) -> bool:
    """Whether the gate has read a command as one that only reads."""
    reading = _reading(effect, ctx)
    return reading is not None and reading.files.reads_only


def named_by(effect: Effect, ctx: ToolContext, cwd: str) -> NamedFiles:
    """The files that a command names, as the gate has read it."""
    reading = _reading(effect, ctx)
    if reading is None:
        reading = read_command(effect.target, cwd=cwd, home=str(Path.home()), here=not effect.backend)
    return reading.files


def _reading(effect: Effect, ctx: ToolContext) -> CommandReading | None:
    reading: CommandReading | None = ctx.memo.readings.get(effect.target) if ctx.memo is not None else None
    return reading


def _is_known(state: FileState, known: FileState | None) -> bool:
    return known is not None and bool(state.stamp) and (state.stamp, state.size) == (known.stamp, known.size)


def _report(ctx: ToolContext, text: str) -> None:
    """Report the progress of a call, from a thread that does not know which one it works for."""
    token = current_context.set(ctx)
    try:
        ctx.progress(text)
    finally:
        current_context.reset(token)


def _survive(name: str, function: Callable[..., None], *arguments: Any) -> None:
    """Call the function; a tool call must not fail because its files cannot be saved."""
    try:
        function(*arguments)
    except (OSError, ToolcribError) as error:
        logger.warning("cannot save the files that %s changes: %s", name, error, exc_info=error)


def _summary(tool: str, effects: tuple[Effect, ...]) -> str:
    """The call in one line: its command, or what it does to which paths."""
    parts = [effect.target if effect.kind == "exec" else f"{effect.kind} {effect.target}" for effect in effects]
    text = " ".join(", ".join(parts).split()) or tool
    return text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 1]}…"
