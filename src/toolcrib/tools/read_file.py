"""Reads lines of a file where the session's commands run."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry


async def read_file(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.files.read(args, ctx)


def effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """A read of the file's real path."""
    return ctx.services.files.read_effects(args, ctx)


READ_FILE_SCHEMA: JsonObject = {
    "name": "read_file",
    "description": (
        "Read a file. Each line comes as its number, a bar and its text (`    12|text`); number and bar are not part "
        "of the file. If there is more, continue at next_offset. Images are shown; PDFs, notebooks, Word, Excel and "
        "PowerPoint files and speech in audio files come as text. Use this instead of cat, head or tail."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "minLength": 1,
                "description": "The file, absolute or relative to the working folder",
            },
            "offset": {"type": "integer", "minimum": 1, "default": 1, "description": "The first line to read"},
            "limit": {"type": "integer", "minimum": 1, "description": "How many lines (2000 unless set otherwise)"},
        },
        "required": ["path"],
    },
}

registry.register(
    name="read_file",
    toolset="file",
    schema=READ_FILE_SCHEMA,
    handler=read_file,
    is_async=True,
    emoji="📖",
    # It has its own limits, and a preview of a file would only make the model read it again.
    max_result_size_chars=float("inf"),
    effects=effects,
)
