"""Which tools clients are offered, as the registry has them now."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mcp_types import ListToolsResult, Tool, ToolAnnotations
from mcp_types.methods import serialize_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.core.types import AGENT_LOOP_TOOLS, EffectKind, JsonObject, ToolEntry, ToolResult
from toolcrib.registry.registry import ToolRegistry

logger = logging.getLogger(__name__)

# Of our own tools whose effects depend on their arguments: those that only ever read.
READERS = frozenset({"read_file", "search_files", "skills_list", "skill_view"})
CHANGING: frozenset[EffectKind] = frozenset({"exec", "write", "delete"})
REACHING_OUT: frozenset[EffectKind] = frozenset({"exec", "network", "publish", "spend"})
ASKS_THE_PERSON = "clarify"


class OfferedDefinitions(Protocol):
    @property
    def tools(self) -> list[JsonObject]: ...


class ToolRuntime(Protocol):
    """A Runtime, as far as a server needs it."""

    settings: Settings
    registry: ToolRegistry

    def definitions(
        self,
        enabled_toolsets: Sequence[str] | None = None,
        disabled_toolsets: Sequence[str] | None = None,
        *,
        defer: bool = True,
    ) -> OfferedDefinitions: ...

    def context(self, **surroundings: Any) -> ToolContext: ...

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, *, ctx: ToolContext | None = None
    ) -> ToolResult: ...

    def has_agent_loop_stub(self, name: str) -> bool: ...


class ToolShelf:
    """The tools of some toolsets; built again when the registry has changed."""

    def __init__(self, runtime: ToolRuntime, toolsets: Sequence[str] | None) -> None:
        """`toolsets`: None for those of the config and what the user's own tools, plugins and servers bring along."""
        self._runtime = runtime
        self._toolsets = toolsets
        self._generation = -1
        self._tools: dict[str, Tool] = {}

    @property
    def is_stale(self) -> bool:
        return self._generation != self._runtime.registry.generation

    def refreshed(self) -> dict[str, Tool]:
        """The tools by name, as they are now. May take a moment: tools are asked whether they can be used."""
        generation = self._runtime.registry.generation
        disabled = self._runtime.settings.agent.disabled_toolsets
        offered = self._runtime.definitions(self._names(), disabled, defer=False).tools
        tools = (self._tool(definition["function"]) for definition in offered)
        self._tools = {tool.name: tool for tool in tools if tool is not None and _can_be_listed(tool)}
        self._generation = generation
        return self._tools

    def latest(self) -> dict[str, Tool]:
        """The tools by name; looked up again only when the registry has changed."""
        return self.refreshed() if self.is_stale else self._tools

    def known(self, name: str) -> Tool | None:
        """The tool as it was when they were last looked up."""
        return self._tools.get(name)

    def _names(self) -> list[str]:
        if self._toolsets is not None:
            return list(self._toolsets)
        chosen = self._runtime.settings.toolsets
        if not chosen:
            return []
        brought = {entry.toolset for entry in self._runtime.registry.entries() if not entry.is_ours}
        return list(dict.fromkeys([*chosen, *sorted(brought)]))

    def _tool(self, function: JsonObject) -> Tool | None:
        name = str(function["name"])
        entry = self._runtime.registry.get_entry(name)
        if entry is None or not self._is_served(entry):
            return None
        return Tool(
            name=name,
            description=str(function.get("description") or ""),
            input_schema=_object_schema(function.get("parameters")),
            annotations=annotations_of(entry),
        )

    def _is_served(self, entry: ToolEntry) -> bool:
        """Whether a tool that belongs to an agent's loop has here what it needs."""
        if entry.name in AGENT_LOOP_TOOLS and self._runtime.has_agent_loop_stub(entry.name):
            return self._has(entry.name)
        return entry.name != ASKS_THE_PERSON or not entry.is_ours or self._has("asker")

    def _has(self, service: str) -> bool:
        try:
            self._runtime.context().services.get(service)
        except UsageError:
            return False
        return True


def annotations_of(entry: ToolEntry) -> ToolAnnotations | None:
    """What a tool declares about its effects, as hints; None where it declares nothing."""
    declared = entry.effects
    if declared is None:
        return None
    if callable(declared):
        if entry.is_ours and entry.name in READERS:
            return ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return ToolAnnotations(read_only_hint=False, destructive_hint=True)
    kinds = {effect.kind for effect in declared}
    if kinds <= {"read", "interactive"}:
        return ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return ToolAnnotations(
        read_only_hint=False,
        destructive_hint=not kinds.isdisjoint(CHANGING),
        open_world_hint=not kinds.isdisjoint(REACHING_OUT),
    )


def _can_be_listed(tool: Tool) -> bool:
    """Whether a tool fits into what clients take; one that does not would cost them all the others too."""
    listed = ListToolsResult(tools=[tool])
    try:
        listed.model_dump_json()
        wire = listed.model_dump(by_alias=True, mode="json", exclude_none=True)
        for version in (LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION):
            serialize_server_result("tools/list", version, wire)
    except (ValueError, RecursionError) as error:
        logger.error(
            "tool %r is not offered to MCP clients, its schema is not one that they take: %s", tool.name, error
        )
        return False
    return True


def _object_schema(parameters: Any) -> JsonObject:
    """The schema of the arguments; the protocol wants an object in any case."""
    schema = dict(parameters) if isinstance(parameters, dict) else {}
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}
