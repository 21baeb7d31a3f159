"""Registers the tools of MCP servers: names, descriptions, and the effects that follow from what the user trusts."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, Source
from toolcrib.mcp.client.servers import Server, is_tool_enabled
from toolcrib.mcp.client.trust import TrustStore
from toolcrib.mcp.client.untrusted_text import one_line, shown
from toolcrib.mcp.names import MAX_NAME_CHARS, ToolOrigin, plain_name, registered_names, toolset_name
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import tool_error
from toolcrib.toolsets.catalog import SHORT_NAMES, TOOLSETS

if TYPE_CHECKING:
    from mcp_types import Tool

logger = logging.getLogger(__name__)

MAX_DESCRIPTION_CHARS = 2000
MAX_LABEL_CHARS = 80
_LOST = re.compile(r"[^\x00-\x7f]")
"""Characters that registered names cannot contain."""
_CHANGED = (
    "the MCP server changed this tool after the call was made, so nothing was sent to it; "
    "look at the tool's current definition before you call it again"
)
_GONE = "the MCP server no longer offers this tool, so nothing was sent to it"
ToolHandler = Callable[[JsonObject, ToolContext], Awaitable[str | JsonObject]]


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of a server, ready to be registered. Equal ones need not be registered again."""

    origin: ToolOrigin
    description: str
    """In the server's own words."""
    schema: JsonObject
    reads_only: bool = False
    """The server claims so; the user decides whether that counts."""
    is_ours: bool = False
    """Defined by us, not by the server, to reach its resources and prompts."""

    @property
    def text(self) -> str:
        """The description for the model: labelled with its source, without hidden characters, and bounded."""
        server, tool = (one_line(name, MAX_LABEL_CHARS) for name in self.origin)
        # If the registered name was cut or lost letters, searching for the original name would find nothing.
        is_whole = len(plain_name(*self.origin)) <= MAX_NAME_CHARS and not _LOST.search(self.origin.tool)
        mark = f"[{server}]" if is_whole else f"[{server}: {tool}]"
        return f"{mark} {_cut(shown(self.description))}".rstrip()


def to_mcp_tool(tool: Tool, server: Server) -> McpTool:
    """A tool as listed by its server."""
    hints = tool.annotations
    return McpTool(
        origin=ToolOrigin(server.name, tool.name),
        description=tool.description or tool.title or (hints.title if hints else None) or "",
        schema=tool.input_schema,
        reads_only=hints is not None and hints.read_only_hint is True,
    )


class ToolRegistrar:
    """Keeps the tools of all servers of one runtime in its registry. Safe from any thread."""

    def __init__(self, registry: ToolRegistry, trust: TrustStore, forget_grants: Callable[[str], None] | None) -> None:
        # Weak, so that the manager's thread does not keep a runtime alive that was dropped without being closed.
        self._registry = weakref.ref(registry)
        self._trust = trust
        self._forget_grants = forget_grants
        self._lock = threading.RLock()
        self._servers: dict[str, Server] = {}
        self._offered: dict[ToolOrigin, tuple[McpTool, ToolHandler]] = {}
        self._registered: dict[str, tuple[McpTool, ToolHandler, tuple[Effect, ...] | None]] = {}
        self._approved: set[ToolOrigin] = set()

    def set_tools(self, server: Server, tools: Iterable[tuple[McpTool, ToolHandler]]) -> None:
        """Register these tools of a server and remove all its others."""
        with self._lock:
            self._servers[server.name] = server
            self._drop(server.name)
            for tool, call in tools:
                if tool.is_ours:
                    tool = self._with_free_origin(tool)
                elif not is_tool_enabled(tool.origin.tool, server.settings.tools):
                    continue
                self._offered[tool.origin] = (tool, call)
            self._refresh()

    def remove_tools(self, server: str) -> None:
        """Remove all tools of a server."""
        with self._lock:
            self._drop(server)
            self._servers.pop(server, None)
            self._refresh()

    def names_of(self, server: str) -> dict[str, str]:
        """Maps the server's own tool names to the registered ones."""
        with self._lock:
            return {
                tool.origin.tool: name
                for name, (tool, _, _) in self._registered.items()
                if tool.origin.server == server
            }

    def origin(self, name: str) -> ToolOrigin | None:
        """The server and tool behind a registered name."""
        with self._lock:
            known = self._registered.get(name)
            return known[0].origin if known is not None else None

    def _drop(self, server: str) -> None:
        for origin in [one for one in self._offered if one.server == server]:
            del self._offered[origin]

    def _with_free_origin(self, tool: McpTool) -> McpTool:
        """The tool under an origin that no tool of the server has: the server's own tools come first."""
        while tool.origin in self._offered:
            tool = replace(tool, origin=ToolOrigin(tool.origin.server, f"{tool.origin.tool} "))
        return tool

    def _refresh(self) -> None:
        """Register new and changed tools and remove the others; unchanged ones stay registered."""
        registry = self._registry()
        if registry is None:
            return
        names = registered_names(self._offered)
        wanted = {name: self._offered[origin] for origin, name in names.items()}
        for name in [name for name in self._registered if name not in wanted]:
            del self._registered[name]
            registry.deregister(name)
        for name, (tool, call) in wanted.items():
            effects = self._effects(name, tool)
            if self._registered.get(name) != (tool, call, effects):
                self._register(registry, name, tool, call, effects)

    def _register(
        self, registry: ToolRegistry, name: str, tool: McpTool, call: ToolHandler, effects: tuple[Effect, ...] | None
    ) -> None:
        server = tool.origin.server
        toolset = toolset_name(server)
        with registry.loading(Source("mcp", server, tool=one_line(tool.origin.tool, MAX_LABEL_CHARS))) as loading:
            registry.register(
                name=name,
                toolset=toolset,
                schema={"description": tool.text, "parameters": _escape_hidden(tool.schema)},
                handler=self._handler(name, tool, call),
                is_async=True,
                effects=effects,
                origin="trusted" if self._is_trusted(server) else "untrusted",
            )
            if not loading.registered:
                return  # The name is taken; the registry has logged it.
            self._registered[name] = (tool, call, effects)
            if is_alias_free(server):
                registry.register_toolset_alias(server, toolset)

    def _handler(self, name: str, tool: McpTool, call: ToolHandler) -> Callable[..., Awaitable[str | JsonObject]]:
        origin, approved, registered = tool.origin, self._approved, self._registered

        async def handler(arguments: JsonObject, *, ctx: ToolContext) -> str | JsonObject:
            now = registered.get(name)
            is_outdated = now is None or (now[0] is not tool and now[0] != tool)
            # The handler runs, so the tool was approved as it was when the call was made.
            if is_outdated or origin not in approved:
                self._approve(name, tool)
            if is_outdated:
                # The tool may change while a person thinks about the question, and they approved the old one.
                return tool_error(_GONE if now is None else _CHANGED)
            return await call(arguments, ctx)

        return handler

    def _effects(self, name: str, tool: McpTool) -> tuple[Effect, ...] | None:
        """The effects for the gate: none for a trusted tool, None for one that needs approval."""
        settings = self._servers[tool.origin.server].settings
        if settings.trust == "all":
            return ()
        if tool.is_ours:
            return () if tool.reads_only and settings.trust == "read_only" else None
        change = self._trust.describe_change(name, tool.origin, tool.description, tool.schema)
        if change:
            self._approved.discard(tool.origin)
            if self._forget_grants is not None:
                self._forget_grants(name)
            return (Effect("changed", change),)
        if tool.origin.tool in settings.trusted_tools:
            return ()
        return () if tool.reads_only and settings.trust == "read_only" else None

    def _is_trusted(self, server: str) -> bool:
        known = self._servers.get(server)
        return known is not None and known.settings.trust == "all"

    def _approve(self, name: str, tool: McpTool) -> None:
        with self._lock:
            self._approved.add(tool.origin)
            if tool.is_ours or self._is_trusted(tool.origin.server):
                return  # Those are never compared with what was approved.
            self._trust.approve(name, tool.origin, tool.description, tool.schema)
            self._refresh()


def is_alias_free(server: str) -> bool:
    """Whether a server's name can be an alias for its toolset: it must not shadow an existing toolset."""
    return server not in TOOLSETS and server not in SHORT_NAMES


def _cut(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 1] + "…"


def _escape_hidden(schema: Any) -> Any:
    """The schema with hidden characters escaped in the texts a model reads; constraints stay as they are."""
    if isinstance(schema, list):
        return [_escape_hidden(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _cut(shown(value)) if key in ("description", "title") and isinstance(value, str) else _escape_hidden(value)
        for key, value in schema.items()
    }
