"""Tools and results as MCP clients see them: the catalog of tools, and the conversion of results to content blocks."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    ImageContent,
    ListToolsResult,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)
from mcp_types.methods import serialize_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic_core import to_json

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.core.messages import Image, Text, parts_of
from toolcrib.core.types import AGENT_LOOP_TOOLS, EffectKind, JsonObject, ToolEntry, ToolResult
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import sendable

logger = logging.getLogger(__name__)

# Those of our own tools with argument-dependent effects that only ever read.
READ_ONLY_TOOLS = frozenset({"read_file", "search_files", "skills_list", "skill_view"})
DESTRUCTIVE_EFFECTS: frozenset[EffectKind] = frozenset({"exec", "write", "delete", "remote"})
OPEN_WORLD_EFFECTS: frozenset[EffectKind] = frozenset({"exec", "network", "publish", "spend", "remote"})
CLARIFY_TOOL = "clarify"


class DefinitionList(Protocol):
    @property
    def tools(self) -> list[JsonObject]: ...


class ToolRuntime(Protocol):
    """The part of a Runtime that a server needs."""

    settings: Settings
    registry: ToolRegistry

    def definitions(
        self,
        enabled_toolsets: Sequence[str] | None = None,
        disabled_toolsets: Sequence[str] | None = None,
        *,
        defer: bool = True,
    ) -> DefinitionList: ...

    def context(self, **fields: Any) -> ToolContext: ...

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, *, ctx: ToolContext | None = None
    ) -> ToolResult: ...

    def has_agent_loop_stub(self, name: str) -> bool: ...


class ServerToolCatalog:
    """The tools of some toolsets as protocol definitions; rebuilt when the registry changes."""

    def __init__(self, runtime: ToolRuntime, toolsets: Sequence[str] | None) -> None:
        """`toolsets`: None for those in the config plus those of the user's own tools, plugins and servers."""
        self._runtime = runtime
        self._toolsets = toolsets
        self._generation = -1
        self._tools: dict[str, Tool] = {}

    @property
    def is_stale(self) -> bool:
        return self._generation != self._runtime.registry.generation

    def refresh(self) -> dict[str, Tool]:
        """The current tools by name. May take a moment, because their availability is checked."""
        generation = self._runtime.registry.generation
        disabled = self._runtime.settings.agent.disabled_toolsets
        offered = self._runtime.definitions(self._toolset_names(), disabled, defer=False).tools
        tools = (self._tool(definition["function"]) for definition in offered)
        self._tools = {tool.name: tool for tool in tools if tool is not None and _can_be_listed(tool)}
        self._generation = generation
        return self._tools

    def latest(self) -> dict[str, Tool]:
        """The tools by name; refreshed only if the registry has changed."""
        return self.refresh() if self.is_stale else self._tools

    def known(self, name: str) -> Tool | None:
        """The tool as of the last refresh."""
        return self._tools.get(name)

    def _toolset_names(self) -> list[str]:
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
        """Whether a tool that normally needs an agent's loop works here."""
        if entry.name in AGENT_LOOP_TOOLS and self._runtime.has_agent_loop_stub(entry.name):
            return self._has(entry.name)
        return entry.name != CLARIFY_TOOL or not entry.is_ours or self._has("asker")

    def _has(self, service: str) -> bool:
        try:
            self._runtime.context().services.get(service)
        except UsageError:
            return False
        return True


def annotations_of(entry: ToolEntry) -> ToolAnnotations | None:
    """A tool's declared effects as hints; None if it declares nothing."""
    declared = entry.effects
    if declared is None:
        return None
    if callable(declared):
        if entry.is_ours and entry.name in READ_ONLY_TOOLS:
            return ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return ToolAnnotations(read_only_hint=False, destructive_hint=True)
    kinds = {effect.kind for effect in declared}
    if kinds <= {"read", "interactive"}:
        return ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return ToolAnnotations(
        read_only_hint=False,
        destructive_hint=not kinds.isdisjoint(DESTRUCTIVE_EFFECTS),
        open_world_hint=not kinds.isdisjoint(OPEN_WORLD_EFFECTS),
    )


def _can_be_listed(tool: Tool) -> bool:
    """Whether clients accept the tool; one that they reject would break the whole list."""
    listed = ListToolsResult(tools=[tool])
    try:
        listed.model_dump_json()
        wire = listed.model_dump(by_alias=True, mode="json", exclude_none=True)
        for version in (LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION):
            serialize_server_result("tools/list", version, wire)
    except (ValueError, RecursionError) as error:
        logger.error(
            "tool %r is not offered to MCP clients, because they would reject its schema: %s", tool.name, error
        )
        return False
    return True


def _object_schema(parameters: Any) -> JsonObject:
    """The schema of the arguments; the protocol requires an object."""
    schema = dict(parameters) if isinstance(parameters, dict) else {}
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


MAX_MEDIA_CHARS = 16_000_000
"""The most base64 characters of images and sound in one result."""


def to_call_result(result: ToolResult) -> CallToolResult:
    """The result of a call: text and media as content, a JSON object also as structured content."""
    content = result.content
    if isinstance(content, str):
        return CallToolResult(
            content=[TextContent(text=content)],
            structured_content=_json_object(content),
            is_error=result.is_error,
        )
    return CallToolResult(content=list(_blocks(content)), is_error=result.is_error)


def error_result(message: str, error_type: str) -> CallToolResult:
    """The error result of a call that was not run."""
    error = {"error": message, "error_type": error_type}
    text = json.dumps(error, ensure_ascii=False)
    return CallToolResult(content=[TextContent(text=text)], structured_content=error, is_error=True)


def _json_object(text: str) -> JsonObject | None:
    """The JSON object in a text if it can be sent as structured content; None otherwise."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        # Lone surrogates and extreme nesting can be parsed but not serialized.
        if not isinstance(value, dict) or not to_json(value):
            return None
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _blocks(content: JsonObject) -> Iterator[ContentBlock]:
    left = MAX_MEDIA_CHARS
    for part in _list(content.get("content")):
        block = _audio_block(part) or _other_block(part)
        if block is None:
            continue
        size = len(block.data) if isinstance(block, (ImageContent, AudioContent)) else 0
        if size > left:
            yield TextContent(text=f"[{block.type} of {size * 3 // 4:,} bytes omitted: too large]")
            continue
        left -= size
        yield block


def _list(parts: Any) -> list[Any]:
    return parts if isinstance(parts, list) else []


def _audio_block(part: Any) -> AudioContent | None:
    if not isinstance(part, dict):
        return None
    inner = part.get("input_audio")
    if isinstance(inner, dict) and isinstance(inner.get("data"), str):
        return AudioContent(data=sendable(inner["data"]), mime_type=sendable(f"audio/{inner.get('format') or 'wav'}"))
    if part.get("type") == "audio" and isinstance(part.get("data"), str):
        return AudioContent(data=sendable(part["data"]), mime_type=sendable(str(part.get("mimeType") or "audio/wav")))
    return None


def _other_block(part: Any) -> TextContent | ImageContent | ResourceLink | None:
    for found in parts_of([part]):
        if isinstance(found, Text):
            return TextContent(text=sendable(found.text))
        if isinstance(found, Image):
            if found.data:
                return ImageContent(data=sendable(found.data), mime_type=sendable(found.media_type))
            return ResourceLink(name="image", uri=sendable(found.url))
    return None
