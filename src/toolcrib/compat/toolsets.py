"""`toolsets`: the catalog itself, and lookups that return nothing for an unknown name.

`toolset_distributions`: the named mixtures from which a batch run samples toolsets.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.compat import tools_registry
from toolcrib.registry.default import registry as default_registry
from toolcrib.toolsets import distributions
from toolcrib.toolsets.catalog import CORE_TOOLS, PRESET_PREFIX, TOOLSETS, ToolsetEntry, create_custom_toolset
from toolcrib.toolsets.distributions import (
    DISTRIBUTIONS,
    describe_distribution,
    get_distribution,
    list_distributions,
    validate_distribution,
)
from toolcrib.toolsets.resolve import EVERYTHING, ToolsetResolver

__all__ = [
    "DISTRIBUTIONS",
    "TOOLSETS",
    "bundle_non_core_tools",
    "create_custom_toolset",
    "get_all_toolsets",
    "get_distribution",
    "get_toolset",
    "get_toolset_info",
    "get_toolset_names",
    "list_distributions",
    "print_distribution_info",
    "resolve_multiple_toolsets",
    "resolve_toolset",
    "sample_toolsets_from_distribution",
    "validate_distribution",
    "validate_toolset",
]

logger = logging.getLogger(__name__)

_HERMES_CORE_TOOLS = CORE_TOOLS


def get_toolset(name: str, *, include_registry: bool = True) -> ToolsetEntry | None:
    """The definition of a toolset, as a copy; None if the name is unknown.

    With the registry's tools among them, its tools are sorted.
    """
    resolver = _resolver(include_registry)
    entry = resolver.get(name)
    if entry is None:
        return None
    entry = _with_own_tools(name, entry, resolver)
    return {**entry, "tools": sorted(entry["tools"])} if include_registry else entry


def resolve_toolset(name: str, visited: set[str] | None = None, *, include_registry: bool = True) -> list[str]:
    """The sorted tools of a toolset and of all that it includes; [] if the name is unknown.

    Toolsets in `visited` are left out, and every toolset that was reached is added to it.
    """
    resolver = _resolver(include_registry)
    if visited is None or name in EVERYTHING:
        return resolver.resolve(name)
    tools: set[str] = set()
    pending = [name]
    while pending:
        reached = pending.pop()
        if reached in visited:
            continue
        visited.add(reached)
        entry = resolver.get(reached)
        if entry is not None:
            tools.update(entry["tools"])
            pending += entry["includes"]
        elif reached in EVERYTHING:
            tools.update(resolver.resolve(reached))
    return sorted(tools)


def resolve_multiple_toolsets(toolset_names: Iterable[str]) -> list[str]:
    """The sorted tools of several toolsets together."""
    return _resolver().resolve_many(toolset_names)


def get_all_toolsets() -> dict[str, ToolsetEntry]:
    """Every toolset by name, those of plugins and MCP servers included."""
    found = ((name, get_toolset(name)) for name in get_toolset_names())
    return {name: entry for name, entry in found if entry is not None}


def get_toolset_names() -> list[str]:
    """The sorted names of all toolsets; one that is registered with an alias is listed under that."""
    names = set(_resolver().names())
    # The first alias counts; one that is also the name of another toolset does not.
    for alias, target in tools_registry.registry.get_registered_toolset_aliases().items():
        if target in names - TOOLSETS.keys() and alias not in names:
            names = names - {target} | {alias}
    return sorted(names)


def validate_toolset(name: str) -> bool:
    """Whether there is a toolset of that name."""
    return _resolver().validate(name)


def get_toolset_info(name: str) -> dict[str, Any] | None:
    """All about one toolset; None if the name is unknown."""
    entry = get_toolset(name)
    if entry is None:
        return None
    resolved = resolve_toolset(name)
    return {
        "name": name,
        "description": entry["description"],
        "direct_tools": entry["tools"],
        "includes": entry["includes"],
        "resolved_tools": resolved,
        "tool_count": len(resolved),
        "is_composite": bool(entry["includes"]),
    }


def bundle_non_core_tools(toolset_name: str) -> set[str]:
    """What a toolset adds to the core tools."""
    return _resolver().bundle_non_core_tools(toolset_name)


def _with_own_tools(name: str, entry: ToolsetEntry, resolver: ToolsetResolver) -> ToolsetEntry:
    """A preset with the tools of its platform as its own: only presets are what a preset includes."""
    extra = [included for included in entry["includes"] if not included.startswith(PRESET_PREFIX)]
    if not extra or not name.startswith(PRESET_PREFIX):
        return entry
    tools = dict.fromkeys([*entry["tools"], *resolver.resolve_many(extra)])
    return {**entry, "tools": list(tools), "includes": [one for one in entry["includes"] if one not in extra]}


def _resolver(include_registry: bool = True) -> ToolsetResolver:
    # Looked up at call time: a replaced `tools.registry.registry` means the toolsets of the replacement.
    registry = tools_registry.registry
    resolver = default_runtime().toolsets if registry is default_registry else ToolsetResolver(registry)
    return resolver if include_registry else resolver.without_registry()


def sample_toolsets_from_distribution(distribution_name: str) -> list[str]:
    """Roll for each toolset on its own; one that does not exist is left out. Unknown names raise ValueError."""

    def known(toolset: str) -> bool:
        exists = validate_toolset(toolset)
        if not exists:
            logger.warning("distribution %r names the unknown toolset %r", distribution_name, toolset)
        return exists

    return distributions.sample_toolsets_from_distribution(distribution_name, known=known)


def print_distribution_info(distribution_name: str) -> None:
    """Print a distribution, or that no distribution has that name."""
    try:
        text = describe_distribution(distribution_name)
    except ValueError as error:
        text = str(error)
    sys.stdout.write(text + "\n")
