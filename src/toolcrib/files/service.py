"""The file tools of one Runtime, as their handlers call them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files import patching, search, writing
from toolcrib.files.reading import Reading
from toolcrib.files.views import Views

if TYPE_CHECKING:
    from toolcrib.core.services import Services


class Files:
    """What `read_file`, `write_file`, `patch` and `search_files` ask. One for each Runtime; used from any loop."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self.settings = settings
        self.services = services
        self.views = Views()
        self._reading = Reading(settings, self.views)

    async def read(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject:
        return await self._reading.read(args, ctx)

    def read_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return self._reading.effects(args, ctx)

    async def write(self, args: JsonObject, ctx: ToolContext) -> str:
        return await writing.write_file(args, ctx, self.views)

    def write_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return writing.write_effects(args, ctx)

    async def patch(self, args: JsonObject, ctx: ToolContext) -> str:
        return await patching.patch(args, ctx, self.views)

    def patch_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return patching.patch_effects(args, ctx)

    async def search(self, args: JsonObject, ctx: ToolContext) -> str:
        return await search.search_files(args, ctx)

    def search_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return search.search_effects(args, ctx)
