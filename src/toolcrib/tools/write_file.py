"""Writes a whole file where the session's commands run."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry


async def write_file(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.files.write(args, ctx)


async def preview(args: JsonObject, ctx: ToolContext) -> str:
    """The change as a diff."""
    return await ctx.services.files.preview_write(args, ctx)


def effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """A write to the file's real path."""
    return ctx.services.files.write_effects(args, ctx)


WRITE_FILE_SCHEMA: JsonObject = {
    "name": "write_file",
    "description": (
        "Create a file or replace all of its content; missing folders are made. Line ends and encoding of an old file "
        "are kept. A file that changed since you read it is not overwritten. The syntax is checked after the write. "
        "Use patch for small changes."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "minLength": 1,
                "description": "The file, absolute or relative to the working folder",
            },
            "content": {"type": "string", "description": "The whole new content"},
        },
        "required": ["path", "content"],
    },
}

registry.register(
    name="write_file",
    toolset="file",
    schema=WRITE_FILE_SCHEMA,
    handler=write_file,
    is_async=True,
    emoji="📝",
    max_result_size_chars=100_000,
    effects=effects,
    preview=preview,
)
