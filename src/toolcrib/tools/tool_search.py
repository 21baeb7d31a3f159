"""The three tools that find, describe and call tools which the model does not see by name."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import SEARCH_TOOLS, TOOL_CALL, TOOL_DESCRIBE, TOOL_SEARCH, JsonObject
from toolcrib.registry import registry, tool_error, tool_result

TOOLSET = "tool_search"
MAX_DESCRIPTION_CHARS = 400


def search(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    """The tools of this session that match the query best, with their descriptions."""
    catalog = ctx.services.tool_catalog
    limit = min(args.get("limit") or catalog.default_limit, catalog.max_limit)
    index = catalog.index(ctx)
    matches = [
        {"name": hit.name, "description": hit.description[:MAX_DESCRIPTION_CHARS]}
        for hit in index.search(args["query"], limit)
    ]
    advice = f"Use {TOOL_DESCRIBE} for a tool's parameters, {TOOL_CALL} to call it."
    if not matches:
        advice = "Nothing matches; try other words for what the tool should do."
    return tool_result(query=args["query"], total_available=len(index), matches=matches, advice=advice)


def describe(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    """The whole definition of one tool of this session."""
    name = args["name"]
    catalog = ctx.services.tool_catalog
    definition = catalog.definition(ctx, name)
    if definition is not None:
        return tool_result(definition["function"])
    nearest = [hit.name for hit in catalog.index(ctx).search(name, 3)]
    return tool_error(f"This session has no tool {name!r}", did_you_mean=nearest)


def call(args: JsonObject, **_: Any) -> str:
    """Runs only for a call without a usable inner call: the pipeline has already unwrapped all others."""
    if args.get("name") in SEARCH_TOOLS:
        return tool_error(f"{TOOL_CALL} cannot call {args['name']!r}; call that tool directly")
    return tool_error(f'{TOOL_CALL} needs the name of a tool and its arguments: {{"name": "…", "arguments": {{…}}}}')


registry.register(
    name=TOOL_SEARCH,
    toolset=TOOLSET,
    schema={
        "description": "Find further tools by what they do. Returns names and descriptions of the best matches.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "A few words about what the tool should do"},
                "limit": {"type": "integer", "minimum": 1, "description": "How many tools to return"},
            },
            "required": ["query"],
        },
    },
    handler=search,
    emoji="🔎",
    effects=(),
)
registry.register(
    name=TOOL_DESCRIBE,
    toolset=TOOLSET,
    schema={
        "description": "Show the parameters of a tool that tool_search found.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "The tool's name"}},
            "required": ["name"],
        },
    },
    handler=describe,
    emoji="📖",
    effects=(),
)
registry.register(
    name=TOOL_CALL,
    toolset=TOOLSET,
    schema={
        "description": "Call a tool that tool_search found.",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The tool's name"},
                "arguments": {"type": "object", "description": "The arguments that tool_describe showed"},
            },
            "required": ["name"],
        },
    },
    handler=call,
    emoji="🛠️",
)
