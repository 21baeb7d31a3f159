"""The service behind the file tools."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment
from toolcrib.core.errors import PathChanged, UsageError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files import editing, patching, search
from toolcrib.files.file_types import DocumentKind
from toolcrib.files.paths import at_target, file_effects, in_words
from toolcrib.files.reading import FileReader, take_text
from toolcrib.files.views import FileViews

if TYPE_CHECKING:
    from toolcrib.core.context import Services


class FileService:
    """Does the work of `read_file`, `write_file`, `patch` and `search_files` for one Runtime, on any loop."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self.settings = settings
        self.services = services
        self.views = FileViews()
        self._reader = FileReader(settings, self.views)

    async def read(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject:
        return await self._reader.read(args, ctx)

    def read_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return self._reader.effects(args, ctx)

    async def read_bytes(self, path: str, ctx: ToolContext, max_bytes: int) -> bytes:
        """All of a file that another tool reads, under the same rules as `read`; raises ToolcribError."""
        return await self._reader.read_bytes(path, ctx, max_bytes)

    async def write_bytes(self, path: str, data: bytes, ctx: ToolContext) -> None:
        """Write a file for another tool, whose call declared the write; raises ToolcribError."""
        (effect,) = file_effects("write", [path], ctx)
        if ctx.effects is not None and effect not in ctx.effects:
            raise PathChanged(f"{path!r} leads to another file than a moment ago; try again")

        async def write(found: BackendPath, environment: Environment) -> None:
            try:
                await environment.write_file(found, data, plain=True)
            except OSError as error:
                raise UsageError(f"{path!r} cannot be written: {in_words(error, found)}") from error

        where = ctx.services.terminal.execution_target(ctx)
        await ctx.services.terminal.work_in(
            where.spec, lambda environment: at_target(effect, environment, lambda found: write(found, environment))
        )

    async def document_text(self, kind: str, data: bytes) -> tuple[str, str]:
        """The text of a document that another tool fetched, and a remark; raises DocumentFailed."""
        found = await asyncio.to_thread(take_text, cast(DocumentKind, kind), data)
        return found.text, found.note

    async def write(self, args: JsonObject, ctx: ToolContext) -> str:
        return await editing.write_file(args, ctx, self.views)

    def write_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return editing.write_effects(args, ctx)

    async def preview_write(self, args: JsonObject, ctx: ToolContext) -> str:
        return await editing.preview_write(args, ctx, self.views)

    async def preview_patch(self, args: JsonObject, ctx: ToolContext) -> str:
        return await patching.preview_patch(args, ctx, self.views)

    async def patch(self, args: JsonObject, ctx: ToolContext) -> str:
        return await patching.patch(args, ctx, self.views)

    def patch_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return patching.patch_effects(args, ctx)

    async def search(self, args: JsonObject, ctx: ToolContext) -> str:
        return await search.search_files(args, ctx)

    def search_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return search.search_effects(args, ctx)
