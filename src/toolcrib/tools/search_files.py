"""Searches the content and the names of files where the session's commands run."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry


async def search_files(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.files.search(args, ctx)


def effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """A read of the searched folder."""
    return ctx.services.files.search_effects(args, ctx)


SEARCH_FILES_SCHEMA: JsonObject = {
    "name": "search_files",
    "description": (
        "Search the content of files by a regular expression, or find files by name; results are sorted by path. What "
        "ignore files name, .git, binary files and secrets (.env, keys) are left out. Use this instead of grep, find "
        "and ls in the terminal."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "pattern": {
                "type": "string",
                "description": (
                    "With target=content: a regular expression for one line, without lookaround and backreferences; "
                    "(?i) in front ignores case. With target=files: a glob such as *.py or src/**/*.ts, or a part of "
                    "the path"
                ),
            },
            "target": {
                "type": "string",
                "enum": ["content", "files"],
                "description": "Search in files, or for files",
                "default": "content",
            },
            "path": {"type": "string", "description": "The folder or file to search", "default": "."},
            "file_glob": {"type": "string", "description": "Only files that match this glob, such as *.{ts,tsx}"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 50},
            "offset": {
                "type": "integer",
                "minimum": 0,
                "description": "How many results to skip; next_offset of the last answer",
                "default": 0,
            },
            "output_mode": {
                "type": "string",
                "enum": ["content", "files_only", "count"],
                "description": "Matching lines, only the files that have some, or how many each has",
                "default": "content",
            },
            "context": {
                "type": "integer",
                "minimum": 0,
                "maximum": 50,
                "description": "How many lines to show before and after each match",
                "default": 0,
            },
        },
        "required": ["pattern"],
    },
}

registry.register(
    name="search_files",
    toolset="file",
    schema=SEARCH_FILES_SCHEMA,
    handler=search_files,
    is_async=True,
    emoji="🔎",
    max_result_size_chars=100_000,
    effects=effects,
)
