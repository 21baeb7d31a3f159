"""`toolsets`: the catalog itself, and lookups that answer with nothing where a name is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.compat import tools_registry
from toolcrib.registry.default import registry as default_registry
from toolcrib.toolsets.catalog import CORE_TOOLS, TOOLSETS, ToolsetEntry, create_custom_toolset
from toolcrib.toolsets.resolve import ToolsetResolver

__all__ = [
    "TOOLSETS",
    "bundle_non_core_tools",
    "create_custom_toolset",
    "get_all_toolsets",
    "get_toolset",
    "get_toolset_info",
    "get_toolset_names",
    "resolve_multiple_toolsets",
    "resolve_toolset",
    "validate_toolset",
]

_HERMES_CORE_TOOLS = CORE_TOOLS


def get_toolset(name: str, *, include_registry: bool = True) -> ToolsetEntry | None:
    """The definition of a toolset, as a copy; None if the name is unknown."""
    return _resolver(include_registry).get(name)


def resolve_toolset(name: str, visited: set[str] | None = None, *, include_registry: bool = True) -> list[str]:
    """The sorted tools of a toolset and of all that it includes; [] if the name is unknown or already visited."""
    if visited is not None:
        if name in visited:
            return []
        visited.add(name)
    return _resolver(include_registry).resolve(name)


def resolve_multiple_toolsets(toolset_names: Iterable[str]) -> list[str]:
    """The sorted tools of several toolsets together."""
    return _resolver().resolve_many(toolset_names)


def get_all_toolsets() -> dict[str, ToolsetEntry]:
    """Every toolset by name, those of plugins and MCP servers included."""
    resolver = _resolver()
    found = ((name, resolver.get(name)) for name in resolver.names())
    return {name: entry for name, entry in found if entry is not None}


def get_toolset_names() -> list[str]:
    """The sorted names of all toolsets."""
    return _resolver().names()


def validate_toolset(name: str) -> bool:
    """Whether there is a toolset of that name."""
    return _resolver().validate(name)


def get_toolset_info(name: str) -> dict[str, Any] | None:
    """All about one toolset; None if the name is unknown."""
    resolver = _resolver()
    info = resolver.info(name) if resolver.validate(name) else None
    if info is None:
        return None
    return {
        "name": name,
        "description": info.description,
        "direct_tools": list(info.tools),
        "includes": list(info.includes),
        "resolved_tools": list(info.resolved),
        "tool_count": len(info.resolved),
        "is_composite": bool(info.includes),
    }


def bundle_non_core_tools(name: str) -> set[str]:
    """What a toolset adds to the core tools."""
    return _resolver().bundle_non_core_tools(name)


def _resolver(include_registry: bool = True) -> ToolsetResolver:
    # Looked up at call time: whoever replaced `tools.registry.registry` means the toolsets of the replacement.
    registry = tools_registry.registry
    resolver = default_runtime().toolsets if registry is default_registry else ToolsetResolver(registry)
    return resolver if include_registry else resolver.without_registry()
