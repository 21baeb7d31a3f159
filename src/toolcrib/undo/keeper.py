"""Keeps what files are before a call changes them: the FileKeeper of a Runtime."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt
from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, ToolEntry
from toolcrib.undo.area import Area, Target, Touched
from toolcrib.undo.commands import may_change_files, touched_by_command
from toolcrib.undo.disk import Disk, Files
from toolcrib.undo.journal import Began, RunsOn
from toolcrib.undo.places import Nowhere, PlaceFiles, place_as_json
from toolcrib.undo.snapshot import Limits, Snapshot
from toolcrib.undo.store import UndoStore

if TYPE_CHECKING:
    from toolcrib.core.services import Services

logger = logging.getLogger(__name__)

KEPT_KINDS = frozenset({"write", "delete", "exec"})
SUMMARY_CHARS = 200
# Another place is asked over a connection, so that less is kept there.
THERE_FILES = 300
THERE_BYTES = 8_000_000
THERE_SECONDS = 2.0
CANCEL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class _Open:
    """A call that runs, and what was taken down before it."""

    session_id: str
    entry_id: str
    commands: tuple[str, ...]
    area: Area
    folder: str
    targets: tuple[Target, ...]
    before: Snapshot
    limits: Limits


class UndoKeeper:
    """Keeps the files of one Runtime's calls. Nothing that goes wrong here reaches a call."""

    def __init__(self, settings: Settings, services: Services, workspace: str) -> None:
        self.store = UndoStore(settings.home.undo_dir, settings.undo)
        self._home = settings.home
        self._services = services
        self._workspace = workspace
        self._lock = threading.Lock()
        self._running: dict[int, tuple[ToolContext, list[_Open]]] = {}

    def wants(self, effects: tuple[Effect, ...], ctx: ToolContext, /) -> bool:
        return any(
            effect.kind in KEPT_KINDS and (effect.kind != "exec" or may_change_files(effect.target))
            for effect in effects
        )

    async def before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, /) -> None:
        work = asyncio.ensure_future(asyncio.to_thread(self._before, entry, effects, ctx))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and `after` must find what it did.
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
            _survive(entry.name, self._keep, entry, here, ctx, Disk(), None, self.store.limits())
        if there:
            _survive(entry.name, self._keep_there, entry, there, ctx)

    def _keep_there(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext) -> None:
        folder = next((effect.cwd for effect in effects if effect.cwd), "")
        workspace = next((effect.workspace for effect in effects if effect.workspace), "") or folder or "/"
        nowhere = Nowhere()
        words = _touched(effects, Area(files=nowhere, workspace=workspace), folder or workspace, is_here=False)
        if not words.targets and not words.notes and not nowhere.was_read:
            # Most commands with a quote in them change nothing, and it takes a while to ask another place.
            return
        terminal = self._services.terminal
        spec = terminal.execution_target(ctx).spec
        limits = self.store.limits(max_files=THERE_FILES, max_bytes=THERE_BYTES, seconds=THERE_SECONDS)
        files = PlaceFiles(terminal, spec, seconds=THERE_SECONDS)
        inside = f"{workspace.rstrip('/')}/"
        paths = [os.path.normpath(os.path.join(folder, one.path)) for one in words.targets] if folder else []  # noqa: PTH118
        wanted = [path for path in paths if path.startswith(inside)][:THERE_FILES]
        files.survey((workspace, folder or ".", "~"), wanted, limits.max_bytes)
        self._keep(entry, effects, ctx, files, place_as_json(spec, files), limits)

    def _keep(
        self,
        entry: ToolEntry,
        effects: tuple[Effect, ...],
        ctx: ToolContext,
        files: Files,
        place: dict[str, Any] | None,
        limits: Limits,
    ) -> None:
        area, folder = self._area(effects, ctx, files, is_here=place is None)
        touched = _touched(effects, area, folder, is_here=place is None)
        if not touched.targets and not touched.notes:
            return
        pack = self.store.new_pack(ctx.session_id)
        before = Snapshot(area, limits, pack=pack, kept=self.store.kept(ctx.session_id))
        before.notes.update(dict.fromkeys(touched.notes))
        began = Began(
            id=pack.name,
            at=self.store.clock(),
            tool=entry.name,
            summary=_summary(entry.name, effects),
            call_id=ctx.call_id,
            turn_id=ctx.turn_id,
            workspace=area.workspace,
            place=place,
        )
        try:
            before.take_all(touched.targets, folder)
            if not before.states and not before.notes:
                return
            self.store.begin(ctx.session_id, began, before, pack)
        except BaseException as error:
            pack.discard()
            if isinstance(error, OSError):
                # Where the disk is full, the room that the copies took is enough for a line that says so.
                self.store.say(ctx.session_id, began, f"not kept: {error.strerror or error}")
            raise
        opened = _Open(
            session_id=ctx.session_id,
            entry_id=began.id,
            commands=tuple(effect.target for effect in effects if effect.kind == "exec"),
            area=area,
            folder=folder,
            targets=touched.targets,
            before=before,
            limits=limits,
        )
        with self._lock:
            self._running.setdefault(id(ctx), (ctx, []))[1].append(opened)

    def _after(self, opened: list[_Open], ctx: ToolContext) -> None:
        for one in opened:
            _survive("a call", self._end, one, ctx)

    def _end(self, opened: _Open, ctx: ToolContext) -> None:
        if opened.commands and self._runs_on(opened.commands, ctx):
            self.store.append(opened.session_id, RunsOn(id=opened.entry_id))
            return
        opened.area.files.begin_anew()
        self.store.end(opened.session_id, opened.entry_id, opened.before, _look_again(opened))

    def _runs_on(self, commands: tuple[str, ...], ctx: ToolContext) -> bool:
        terminal = self._services.terminal
        session_key = terminal.execution_target(ctx).spec.session
        return any(terminal.runs_on(session_key, command) for command in commands)

    def _area(self, effects: tuple[Effect, ...], ctx: ToolContext, files: Files, *, is_here: bool) -> tuple[Area, str]:
        """What is kept, and the folder that relative paths start from."""
        folder = next((effect.cwd for effect in effects if effect.cwd), "")
        if is_here:
            workspace = files.real(ctx.cwd or self._workspace or str(Path.cwd()))
            home = files.real(str(self._home.root))
            area = Area(
                files=files, workspace=workspace, others=(files.real(str(self._home.skills_dir)),), excluded=(home,)
            )
            return area, folder or workspace
        workspace = next((effect.workspace for effect in effects if effect.workspace), "") or folder or files.real(".")
        return Area(files=files, workspace=files.real(workspace)), folder or workspace


def _survive(name: str, function: Callable[..., None], *arguments: Any) -> None:
    """Call the function; no call of a tool fails because its files cannot be kept."""
    _, error = attempt(function, *arguments)
    if error is not None:
        logger.warning("what %s touches cannot be kept for undo: %s", name, error, exc_info=error)


def _touched(effects: tuple[Effect, ...], area: Area, folder: str, *, is_here: bool) -> Touched:
    targets: list[Target] = []
    notes: list[str] = []
    for effect in effects:
        start = effect.cwd or folder
        if effect.kind == "exec":
            found = touched_by_command(effect.target, cwd=start, area=area, is_here=is_here)
            targets += found.targets
            notes += found.notes
        elif effect.target:
            path = os.path.join(start, os.path.expanduser(effect.target) if is_here else effect.target)  # noqa: PTH118, PTH111
            targets.append(Target(path, "tree" if effect.kind == "delete" else "path"))
    # Elsewhere a guess would take longer than the call; the note says that something is not kept.
    chosen = [one for one in targets if is_here or one.how != "guess"]
    return Touched(tuple(dict.fromkeys(chosen)), tuple(dict.fromkeys(notes)))


def _look_again(opened: _Open) -> Snapshot:
    """What is there after a call: what was taken down before it, and what it made."""
    after = Snapshot(opened.area, opened.limits, earlier=opened.before)
    after.take_all(opened.targets, opened.folder)
    after.take_paths(path for path in opened.before.states if path not in after.states)
    made = [
        Target(path, "tree")
        for path, state in list(after.states.items())
        if state.kind == "folder" and opened.before.states.get(path, state).kind != "folder"
    ]
    after.take_all(made, opened.folder)
    return after


def _summary(tool: str, effects: tuple[Effect, ...]) -> str:
    """The call in one line: the command, or what it does to which paths."""
    parts = [effect.target if effect.kind == "exec" else f"{effect.kind} {effect.target}" for effect in effects]
    text = " ".join(", ".join(parts).split()) or tool
    return text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 1]}…"
