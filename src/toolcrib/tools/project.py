"""Projects: folders with names, which sessions create, list and switch to."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import JsonObject
from toolcrib.registry import registry


async def project(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.projects.handle(args, ctx)


CREATE_SCHEMA: JsonObject = {
    "name": "project_create",
    "description": "Give a folder a name as a project of the user. Creates the folder if it is missing.",
    "parameters": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "description": "How the user calls the project"},
            "path": {"type": "string", "description": "Its folder; default: one of that name in the current folder"},
        },
        "required": ["name"],
    },
}
LIST_SCHEMA: JsonObject = {
    "name": "project_list",
    "description": "List the user's projects, with the one that this session works in.",
    "parameters": {"type": "object", "properties": {}},
}
SWITCH_SCHEMA: JsonObject = {
    "name": "project_switch",
    "description": "Work in another project: later commands and file tools start in its folder.",
    "parameters": {
        "type": "object",
        "properties": {"project": {"type": "string", "minLength": 1, "description": "Its name or its folder"}},
        "required": ["project"],
    },
}

registry.register(
    name="project_create",
    toolset="project",
    schema=CREATE_SCHEMA,
    handler=project,
    is_async=True,
    emoji="📁",
    effects=(),
)
registry.register(
    name="project_list", toolset="project", schema=LIST_SCHEMA, handler=project, is_async=True, emoji="🗂️", effects=()
)
registry.register(
    name="project_switch",
    toolset="project",
    schema=SWITCH_SCHEMA,
    handler=project,
    is_async=True,
    emoji="📂",
    effects=(),
)
