"""Changes parts of files where the session's commands run."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry


async def patch(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.files.patch(args, ctx)


async def preview(args: JsonObject, ctx: ToolContext) -> str:
    """The change as a diff."""
    return await ctx.services.files.preview_patch(args, ctx)


def effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """A write or delete for each path that the patch names; none for a patch that cannot be read."""
    return ctx.services.files.patch_effects(args, ctx)


PATCH_SCHEMA: JsonObject = {
    "name": "patch",
    "description": (
        "Change parts of files. mode 'replace': old_string must occur exactly once in the file (or set replace_all). "
        "mode 'patch': add, update, delete and move several files, all or nothing:\n"
        "*** Begin Patch\n*** Update File: src/app.py\n@@ def run():\n     start()\n-    work()\n+    work(2)\n"
        "*** Add File: notes.txt\n+text\n*** Delete File: old.txt\n*** End Patch\n"
        "('*** Move to: PATH' may follow an Update line; unified diffs work too). Old text must match exactly; "
        "where it does not, nothing changes and near matches are shown."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "mode": {"type": "string", "enum": ["replace", "patch"], "description": "What to do"},
            "path": {"type": "string", "description": "replace: the file"},
            "old_string": {"type": "string", "description": "replace: the text to find, exactly as in the file"},
            "new_string": {"type": "string", "description": "replace: the text to put there; may be empty"},
            "replace_all": {"type": "boolean", "description": "replace: change every occurrence", "default": False},
            "patch": {"type": "string", "description": "patch: the text of the patch"},
        },
        "required": ["mode"],
        "if": {"properties": {"mode": {"const": "replace"}}},
        "then": {"required": ["path", "old_string", "new_string"]},
        "else": {"required": ["patch"]},
    },
}

registry.register(
    name="patch",
    toolset="file",
    schema=PATCH_SCHEMA,
    handler=patch,
    is_async=True,
    emoji="🔧",
    max_result_size_chars=100_000,
    effects=effects,
    preview=preview,
)
