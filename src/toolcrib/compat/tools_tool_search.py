"""`tools.tool_search`: finding tools that are not offered by name."""

from __future__ import annotations

from typing import Any

from toolcrib.api import default_runtime
from toolcrib.config.settings import ToolSearchSettings
from toolcrib.core.types import SEARCH_TOOLS, TOOL_CALL, TOOL_DESCRIBE, TOOL_SEARCH, JsonObject
from toolcrib.definitions.search import ToolIndex, estimate_tokens, should_defer
from toolcrib.registry.default import registry
from toolcrib.toolsets.catalog import CORE_TOOLS

__all__ = [
    "BRIDGE_TOOL_NAMES",
    "TOOL_CALL_NAME",
    "TOOL_DESCRIBE_NAME",
    "TOOL_SEARCH_NAME",
    "ToolIndex",
    "deferrable_tool_names",
    "estimate_tokens",
    "is_deferrable",
    "load_config",
    "search_tools",
    "should_defer",
]

TOOL_SEARCH_NAME, TOOL_DESCRIBE_NAME, TOOL_CALL_NAME = TOOL_SEARCH, TOOL_DESCRIBE, TOOL_CALL
BRIDGE_TOOL_NAMES = SEARCH_TOOLS


def load_config() -> ToolSearchSettings:
    """The settings under `tools.tool_search`."""
    return default_runtime().settings.tools.tool_search


def is_deferrable(name: str) -> bool:
    """Whether a tool may be put behind the search: every registered tool outside the core."""
    return registry.get_entry(name) is not None and name not in CORE_TOOLS and name not in SEARCH_TOOLS


def deferrable_tool_names() -> list[str]:
    """The sorted names of all tools that may be put behind the search."""
    return [name for name in registry.get_all_tool_names() if is_deferrable(name)]


def search_tools(
    query: str, limit: int | None = None, definitions: list[JsonObject] | None = None
) -> list[dict[str, Any]]:
    """Name and description of the tools that answer a query, best first; by default of all that can be deferred."""
    settings = load_config()
    if definitions is None:
        definitions = registry.get_definitions(deferrable_tool_names())
    wanted = min(limit or settings.search_default_limit, settings.max_search_limit)
    return [{"name": hit.name, "description": hit.description} for hit in ToolIndex(definitions).search(query, wanted)]
