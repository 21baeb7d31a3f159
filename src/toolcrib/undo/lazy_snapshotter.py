"""A Snapshotter that is built by the first call that may change files."""

from __future__ import annotations

import sys
import threading

from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.ports import FileSnapshots
from toolcrib.core.types import Effect, ToolEntry


def snapshotter_for(settings: Settings, services: Services, workspace: str) -> FileSnapshots | None:
    """What snapshots files before calls change them; None if the settings or the platform rule it out."""
    on = settings.undo.enabled and sys.platform != "win32"
    return _LazySnapshotter(settings, services, workspace) if on else None


class _LazySnapshotter:
    """Snapshots files before calls change them."""

    def __init__(self, settings: Settings, services: Services, workspace: str) -> None:
        self._options = settings, services, workspace
        self._building = threading.Lock()
        self._built: FileSnapshots | None = None

    def wants(self, effects: tuple[Effect, ...], ctx: ToolContext, /) -> bool:
        if self._built is None:
            return any(effect.kind in ("write", "delete", "exec") for effect in effects)
        return self._built.wants(effects, ctx)

    async def before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, /) -> None:
        snapshotter = self._snapshotter()
        if snapshotter.wants(effects, ctx):
            await snapshotter.before(entry, effects, ctx)

    async def after(self, ctx: ToolContext, /) -> None:
        await self._snapshotter().after(ctx)

    def _snapshotter(self) -> FileSnapshots:
        with self._building:
            if self._built is None:
                # Most processes change no files, and the shell evaluator would double their start-up time.
                from toolcrib.undo.snapshotter import Snapshotter  # noqa: PLC0415

                self._built = Snapshotter(*self._options)
            return self._built
