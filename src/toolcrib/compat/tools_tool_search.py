"""`tools.tool_search`: finds tools whose definitions are deferred."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.compat import tools_registry
from toolcrib.config.settings import ToolSearchSettings
from toolcrib.core.types import SEARCH_TOOLS, TOOL_CALL, TOOL_DESCRIBE, TOOL_SEARCH, JsonObject
from toolcrib.definitions.search import (
    UNKNOWN_CONTEXT_THRESHOLD_TOKENS,
    DeferMode,
    ToolIndex,
    estimate_tokens,
    should_defer,
)
from toolcrib.registry.results import tool_error, tool_result
from toolcrib.toolsets.catalog import CORE_TOOLS

__all__ = [
    "BRIDGE_TOOL_NAMES",
    "CHARS_PER_TOKEN",
    "TOOL_CALL_NAME",
    "TOOL_DESCRIBE_NAME",
    "TOOL_SEARCH_NAME",
    "AssemblyResult",
    "CatalogEntry",
    "ToolSearchConfig",
    "assemble_tool_defs",
    "bridge_tool_schemas",
    "build_catalog",
    "classify_tools",
    "dispatch_tool_describe",
    "dispatch_tool_search",
    "estimate_tokens_from_schemas",
    "is_bridge_tool",
    "is_deferrable_tool_name",
    "load_config",
    "resolve_underlying_call",
    "scoped_deferrable_names",
    "search_catalog",
    "should_activate",
]

TOOL_SEARCH_NAME, TOOL_DESCRIBE_NAME, TOOL_CALL_NAME = TOOL_SEARCH, TOOL_DESCRIBE, TOOL_CALL
BRIDGE_TOOL_NAMES = SEARCH_TOOLS
CHARS_PER_TOKEN = 4.0
_MOST_RESULTS = 50
_TRIO = (TOOL_SEARCH, TOOL_DESCRIBE, TOOL_CALL)


@dataclass(frozen=True)
class ToolSearchConfig:
    """Whether and from which size on tools are searched for, and how many a search gives."""

    enabled: DeferMode
    threshold_pct: float
    search_default_limit: int
    max_search_limit: int

    @classmethod
    def from_raw(cls, raw: Any) -> ToolSearchConfig:
        """The config under `tools.tool_search`, which may be a bool or a dict; what cannot be used is the default."""
        plain = ToolSearchSettings()
        if not isinstance(raw, dict):
            raw = {"enabled": "off"} if raw is False else {}
        modes: dict[Any, DeferMode] = {"auto": "auto", "on": "on", "off": "off", True: "on", False: "off"}
        enabled = raw.get("enabled")
        most = _whole(raw.get("max_search_limit"), plain.max_search_limit, _MOST_RESULTS)
        return cls(
            enabled=modes.get(enabled, plain.enabled) if isinstance(enabled, (str, bool)) else plain.enabled,
            threshold_pct=min(max(_number(raw.get("threshold_pct"), plain.threshold_pct), 0.0), 100.0),
            search_default_limit=_whole(raw.get("search_default_limit"), plain.search_default_limit, most),
            max_search_limit=most,
        )


@dataclass(frozen=True)
class CatalogEntry:
    """One tool that a search can find, and where it comes from."""

    name: str
    description: str
    schema: JsonObject
    source: str
    source_name: str


@dataclass(frozen=True)
class AssemblyResult:
    """The definitions to send, and whether some of them wait behind the search."""

    tool_defs: list[JsonObject]
    activated: bool
    deferred_count: int = 0
    deferred_tokens: int = 0
    threshold_tokens: int = 0


def load_config() -> ToolSearchConfig:
    """The settings under `tools.tool_search`."""
    settings = default_runtime().settings.tools.tool_search
    return ToolSearchConfig(
        settings.enabled, settings.threshold_pct, settings.search_default_limit, settings.max_search_limit
    )


def is_bridge_tool(name: str) -> bool:
    return name in BRIDGE_TOOL_NAMES


def is_deferrable_tool_name(name: str) -> bool:
    """Whether a tool may be put behind the search: every registered tool outside the core."""
    known = tools_registry.registry.get_entry(name) is not None
    return known and name not in CORE_TOOLS and name not in BRIDGE_TOOL_NAMES


def classify_tools(tool_defs: Sequence[JsonObject]) -> tuple[list[JsonObject], list[JsonObject]]:
    """The definitions that are always sent, and those that may be put behind the search."""
    deferrable = [definition for definition in tool_defs if is_deferrable_tool_name(_name(definition))]
    visible = [definition for definition in tool_defs if not is_deferrable_tool_name(_name(definition))]
    return visible, deferrable


def scoped_deferrable_names(tool_defs: Sequence[JsonObject]) -> frozenset[str]:
    """The names among the definitions that may be put behind the search."""
    return frozenset(map(_name, classify_tools(tool_defs)[1]))


def estimate_tokens_from_schemas(tool_defs: Sequence[JsonObject]) -> int:
    """About how many tokens the definitions take in a request."""
    return estimate_tokens(tool_defs)


def should_activate(config: ToolSearchConfig, deferrable_tokens: int, context_length: int | None) -> bool:
    """Whether that many tokens are to be put behind the search."""
    return should_defer(deferrable_tokens, context_length, config.enabled, config.threshold_pct)


def assemble_tool_defs(
    tool_defs: Sequence[JsonObject], *, context_length: int | None = None, config: ToolSearchConfig | None = None
) -> AssemblyResult:
    """The definitions as they are sent: all of them, or the core and the search."""
    config = config or load_config()
    visible, deferrable = classify_tools([one for one in tool_defs if not is_bridge_tool(_name(one))])
    tokens = estimate_tokens(deferrable)
    counts = {
        "deferred_count": len(deferrable),
        "deferred_tokens": tokens,
        "threshold_tokens": _threshold(config, context_length),
    }
    if not should_activate(config, tokens, context_length):
        return AssemblyResult(list(tool_defs), False, **counts)
    return AssemblyResult([*visible, *bridge_tool_schemas(len(deferrable))], True, **counts)


def bridge_tool_schemas(deferred_count: int) -> list[JsonObject]:  # noqa: ARG001
    """The definitions of the three tools that give access to the deferred ones."""
    found = {_name(one): one for one in tools_registry.registry.get_definitions(set(_TRIO))}
    return [found[name] for name in _TRIO if name in found]


def build_catalog(tool_defs: Sequence[JsonObject]) -> list[CatalogEntry]:
    """The definitions as entries that can be searched."""
    return [_entry(definition) for definition in tool_defs]


def search_catalog(catalog: Sequence[CatalogEntry], query: str, limit: int = 5) -> list[CatalogEntry]:
    """The entries that answer a query, best first."""
    by_name = {entry.name: entry for entry in catalog}
    return [by_name[hit.name] for hit in ToolIndex([entry.schema for entry in catalog]).search(query, limit)]


def dispatch_tool_search(
    args: JsonObject, *, current_tool_defs: Sequence[JsonObject], config: ToolSearchConfig | None = None
) -> str:
    """The answer of `tool_search` for these definitions."""
    config = config or load_config()
    query = str(args.get("query") or "").strip()
    if not query:
        return tool_error("query is required")
    catalog = build_catalog(classify_tools(current_tool_defs)[1])
    limit = _whole(args.get("limit"), config.search_default_limit, config.max_search_limit)
    found = search_catalog(catalog, query, limit)
    matches = [
        {"name": one.name, "source": one.source, "source_name": one.source_name, "description": one.description}
        for one in found
    ]
    return tool_result(query=query, total_available=len(catalog), matches=matches)


def dispatch_tool_describe(args: JsonObject, *, current_tool_defs: Sequence[JsonObject]) -> str:
    """The answer of `tool_describe` for these definitions."""
    name = str(args.get("name") or "").strip()
    if not name:
        return tool_error("name is required")
    for definition in classify_tools(current_tool_defs)[1]:
        if _name(definition) == name:
            function = definition["function"]
            return tool_result({key: function.get(key) for key in ("name", "description", "parameters")})
    return tool_error(_not_deferrable(name))


def resolve_underlying_call(args: JsonObject) -> tuple[str | None, JsonObject, str | None]:
    """The name and arguments of the call inside a `tool_call`, and None; or None, {} and why there is none."""
    name, arguments = args.get("name"), args.get("arguments")
    if not isinstance(name, str) or not name:
        return None, {}, "tool_call requires a 'name' argument"
    if is_bridge_tool(name):
        return None, {}, f"tool_call cannot invoke {name!r}; call that tool directly"
    if not is_deferrable_tool_name(name):
        return None, {}, _not_deferrable(name)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            return None, {}, f"tool_call 'arguments' is not valid JSON: {error}"
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None, {}, "tool_call 'arguments' must be an object"
    return name, arguments, None


def _not_deferrable(name: str) -> str:
    return f"{name!r} is not a deferrable tool; call it directly if it is offered, or find its name with tool_search"


def _threshold(config: ToolSearchConfig, context_length: int | None) -> int:
    if config.enabled == "off":
        return 0
    if not context_length or context_length < 0:
        return UNKNOWN_CONTEXT_THRESHOLD_TOKENS
    return int(context_length * config.threshold_pct / 100)


def _entry(definition: JsonObject) -> CatalogEntry:
    name = _name(definition)
    toolset = tools_registry.registry.get_toolset_for_tool(name) or ""
    description = str(definition["function"].get("description") or "")
    return CatalogEntry(name, description, definition, "mcp" if toolset.startswith("mcp-") else "plugin", toolset)


def _name(definition: JsonObject) -> str:
    return str((definition.get("function") or {}).get("name") or "")


def _number(value: Any, otherwise: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float(otherwise)


def _whole(value: Any, otherwise: int, most: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = otherwise
    return min(max(number, 1), most)
