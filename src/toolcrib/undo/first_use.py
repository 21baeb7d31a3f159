"""The keeper of files, built by the first call that may change some."""

from __future__ import annotations

import sys
import threading

from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.ports import FileKeeper
from toolcrib.core.types import Effect, ToolEntry


def keeper_for(settings: Settings, services: Services, workspace: str) -> FileKeeper | None:
    """What keeps files before calls change them; None where the settings or the platform say no."""
    on = settings.undo.enabled and sys.platform != "win32"
    return _KeeperOnFirstUse(settings, services, workspace) if on else None


class _KeeperOnFirstUse:
    """Keeps what files are before calls change them."""

    def __init__(self, settings: Settings, services: Services, workspace: str) -> None:
        self._options = settings, services, workspace
        self._building = threading.Lock()
        self._built: FileKeeper | None = None

    def wants(self, effects: tuple[Effect, ...], ctx: ToolContext, /) -> bool:
        if self._built is None:
            return any(effect.kind in ("write", "delete", "exec") for effect in effects)
        return self._built.wants(effects, ctx)

    async def before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, /) -> None:
        keeper = self._keeper()
        if keeper.wants(effects, ctx):
            await keeper.before(entry, effects, ctx)

    async def after(self, ctx: ToolContext, /) -> None:
        await self._keeper().after(ctx)

    def _keeper(self) -> FileKeeper:
        with self._building:
            if self._built is None:
                # Most processes change no files, and what reads commands would double the start of a process.
                from toolcrib.undo.keeper import UndoKeeper  # noqa: PLC0415

                self._built = UndoKeeper(*self._options)
            return self._built
