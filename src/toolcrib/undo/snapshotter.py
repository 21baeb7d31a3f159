"""Snapshots files before a call changes them: the FileSnapshots of a Runtime."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolcrib.approval.calls import CommandReading
from toolcrib.config.settings import Settings
from toolcrib.core.context import CallMemo, ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.lazy import lazy
from toolcrib.core.types import Effect, ToolEntry
from toolcrib.undo.commands import may_change_files, targets_of_command
from toolcrib.undo.file_snapshot import CallTargets, FileSnapshot, SnapshotLimits, TargetPath, UndoScope
from toolcrib.undo.files import FileState, LocalFiles, SnapshotFiles
from toolcrib.undo.journal import CallDetached, SnapshotBefore
from toolcrib.undo.remote_files import AssumedFiles, RemoteFiles, environment_as_json
from toolcrib.undo.store import UndoStore

if TYPE_CHECKING:
    from toolcrib.core.context import Services

logger = logging.getLogger(__name__)

KEPT_KINDS = frozenset({"write", "delete", "exec"})
SUMMARY_CHARS = 200
# Another environment is reached over a connection, so less is saved there.
THERE_FILES = 300
THERE_BYTES = 8_000_000
THERE_SECONDS = 2.0
CANCEL_SECONDS = 1.0
SMALL_FILES = 4
SMALL_BYTES = 64_000


@dataclass(frozen=True, kw_only=True)
class _OpenCall:
    """A running call, and the snapshot from before it."""

    session_id: str
    entry_id: str
    commands: tuple[str, ...]
    scope: UndoScope
    folder: str
    targets: tuple[TargetPath, ...]
    before: FileSnapshot
    limits: SnapshotLimits

    def is_small(self) -> bool:
        """Whether it is about a few small files of this machine that are still there, and about nothing else."""
        files, states = self.scope.files, self.before.states
        if files.is_remote or len(states) > SMALL_FILES or any(target.how != "path" for target in self.targets):
            return False
        try:
            # A call may have put a folder in the place of a file.
            return all(map(_is_small_file, states.values())) and all(_is_small_file(files.look(one)) for one in states)
        except OSError:
            return False


class Snapshotter:
    """Snapshots the files that one Runtime's calls change. No failure here reaches a call."""

    def __init__(self, settings: Settings, services: Services, workspace: str) -> None:
        self.store = UndoStore(settings.home.undo_dir, settings.undo)
        self._home = settings.home
        self._services = services
        self._workspace = workspace
        self._lock = threading.Lock()
        self._running: dict[int, tuple[ToolContext, list[_OpenCall]]] = {}

    def wants(self, effects: tuple[Effect, ...], ctx: ToolContext, /) -> bool:
        return any(
            effect.kind in KEPT_KINDS and (effect.kind != "exec" or may_change_files(effect.target))
            for effect in effects
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
        if all(one.is_small() for one in opened):
            # Another thread would take longer than looking at a few files.
            self._after(opened, ctx)
        else:
            await asyncio.to_thread(self._after, opened, ctx)

    def _before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext) -> None:
        kept = [effect for effect in effects if effect.kind in KEPT_KINDS]
        here = tuple(effect for effect in kept if not effect.backend)
        there = tuple(effect for effect in kept if effect.backend)
        if here:
            _survive(entry.name, self._keep, entry, here, ctx, LocalFiles(), None, self.store.limits())
        if there:
            _survive(entry.name, self._keep_there, entry, there, ctx)

    def _keep_there(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext) -> None:
        folder = next((effect.cwd for effect in effects if effect.cwd), "")
        workspace = next((effect.workspace for effect in effects if effect.workspace), "") or folder or "/"
        assumed = AssumedFiles()
        words = _call_targets(
            effects, UndoScope(files=assumed, workspace=workspace), folder or workspace, ctx.memo, is_here=False
        )
        if not words.targets and not words.notes and not assumed.was_read:
            # Most commands with a quote in them change nothing, and asking another environment takes a while.
            return
        terminal = self._services.terminal
        spec = terminal.execution_target(ctx).spec
        limits = self.store.limits(max_files=THERE_FILES, max_bytes=THERE_BYTES, seconds=THERE_SECONDS)
        files = RemoteFiles(terminal, spec, seconds=THERE_SECONDS)
        inside = f"{workspace.rstrip('/')}/"
        paths = [os.path.normpath(os.path.join(folder, one.path)) for one in words.targets] if folder else []  # noqa: PTH118
        wanted = [path for path in paths if path.startswith(inside)][:THERE_FILES]
        files.survey((workspace, folder or ".", "~"), wanted, limits.max_bytes)
        self._keep(entry, effects, ctx, files, environment_as_json(spec, files), limits)

    def _keep(
        self,
        entry: ToolEntry,
        effects: tuple[Effect, ...],
        ctx: ToolContext,
        files: SnapshotFiles,
        environment: dict[str, Any] | None,
        limits: SnapshotLimits,
    ) -> None:
        scope, folder = self._scope(effects, ctx, files, is_here=environment is None)
        targets_found = _call_targets(effects, scope, folder, ctx.memo, is_here=environment is None)
        if not targets_found.targets and not targets_found.notes:
            return
        pack = self.store.new_pack(ctx.session_id)
        before = FileSnapshot(scope, limits, pack=pack, kept=self.store.kept(ctx.session_id))
        before.notes.update(dict.fromkeys(targets_found.notes))
        started = SnapshotBefore(
            id=pack.name,
            at=self.store.clock(),
            tool=entry.name,
            summary=_summary(entry.name, effects),
            call_id=ctx.call_id,
            turn_id=ctx.turn_id,
            workspace=scope.workspace,
            environment=environment,
        )
        try:
            with contextlib.ExitStack() as on_error:
                on_error.callback(pack.discard)
                before.take_all(targets_found.targets, folder)
                if before.states or before.notes:
                    self.store.begin(ctx.session_id, started, before, pack)
                on_error.pop_all()
        except OSError as error:
            # On a full disk, the space of the discarded copies is enough for a line that says so.
            self.store.say(ctx.session_id, started, f"not saved: {error.strerror or error}")
            raise
        if not before.states and not before.notes:
            return
        opened = _OpenCall(
            session_id=ctx.session_id,
            entry_id=started.id,
            commands=tuple(effect.target for effect in effects if effect.kind == "exec"),
            scope=scope,
            folder=folder,
            targets=targets_found.targets,
            before=before,
            limits=limits,
        )
        with self._lock:
            self._running.setdefault(id(ctx), (ctx, []))[1].append(opened)

    def _after(self, opened: list[_OpenCall], ctx: ToolContext) -> None:
        for one in opened:
            _survive("a call", self._end, one, ctx)

    def _end(self, opened: _OpenCall, ctx: ToolContext) -> None:
        if opened.commands and self._runs_on(opened.commands, ctx):
            self.store.append(opened.session_id, CallDetached(id=opened.entry_id))
            return
        opened.scope.files.refresh()
        self.store.end(opened.session_id, opened.entry_id, opened.before, _look_again(opened))

    def _runs_on(self, commands: tuple[str, ...], ctx: ToolContext) -> bool:
        terminal = self._services.terminal
        session_key = terminal.execution_target(ctx).spec.session
        return any(terminal.runs_on(session_key, command) for command in commands)

    @lazy
    def _own_folders(self) -> tuple[str, str]:
        """The real paths of toolcrib's home and of the skills in it; nothing moves them while toolcrib runs."""
        files = LocalFiles()
        return files.real(str(self._home.root)), files.real(str(self._home.skills_dir))

    def _scope(
        self, effects: tuple[Effect, ...], ctx: ToolContext, files: SnapshotFiles, *, is_here: bool
    ) -> tuple[UndoScope, str]:
        """What undo covers, and the folder that relative paths start from."""
        folder = next((effect.cwd for effect in effects if effect.cwd), "")
        if is_here:
            workspace = files.real(ctx.cwd or self._workspace or "/")
            home, skills = self._own_folders
            scope = UndoScope(files=files, workspace=workspace, others=(skills,), excluded=(home,))
            return scope, folder or workspace
        workspace = next((effect.workspace for effect in effects if effect.workspace), "") or folder or files.real(".")
        return UndoScope(files=files, workspace=files.real(workspace)), folder or workspace


def _is_small_file(state: FileState) -> bool:
    return state.kind == "file" and state.size <= SMALL_BYTES


def _survive(name: str, function: Callable[..., None], *arguments: Any) -> None:
    """Call the function; a tool call must not fail because its files cannot be saved."""
    try:
        function(*arguments)
    except (OSError, ToolcribError) as error:
        logger.warning("cannot snapshot the files that %s changes: %s", name, error, exc_info=error)


def _call_targets(
    effects: tuple[Effect, ...], scope: UndoScope, folder: str, memo: CallMemo | None, *, is_here: bool
) -> CallTargets:
    targets: list[TargetPath] = []
    notes: list[str] = []
    for effect in effects:
        start = effect.cwd or folder
        if effect.kind == "exec":
            reading: CommandReading | None = memo.readings.get(effect.target) if memo is not None else None
            found = targets_of_command(effect.target, cwd=start, scope=scope, is_here=is_here, reading=reading)
            targets += found.targets
            notes += found.notes
        elif effect.target:
            path = os.path.join(start, os.path.expanduser(effect.target) if is_here else effect.target)  # noqa: PTH118, PTH111
            targets.append(TargetPath(path, "tree" if effect.kind == "delete" else "path"))
    # In another environment, guessing would take longer than the call; a note says that something is not saved.
    chosen = [one for one in targets if is_here or one.how != "guess"]
    return CallTargets(tuple(dict.fromkeys(chosen)), tuple(dict.fromkeys(notes)))


def _look_again(opened: _OpenCall) -> FileSnapshot:
    """The state after a call: of the paths recorded before it, and of what it created."""
    after = FileSnapshot(opened.scope, opened.limits, earlier=opened.before)
    after.take_all(opened.targets, opened.folder)
    after.take_paths(path for path in opened.before.states if path not in after.states)
    made = [
        TargetPath(path, "tree")
        for path, state in list(after.states.items())
        if state.kind == "folder" and opened.before.states.get(path, state).kind != "folder"
    ]
    after.take_all(made, opened.folder)
    return after


def _summary(tool: str, effects: tuple[Effect, ...]) -> str:
    """The call in one line: its command, or what it does to which paths."""
    parts = [effect.target if effect.kind == "exec" else f"{effect.kind} {effect.target}" for effect in effects]
    text = " ".join(", ".join(parts).split()) or tool
    return text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 1]}…"
