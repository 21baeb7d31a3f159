"""Tools of servers as entries of the registry: named, described and judged by what the user trusts."""

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
from toolcrib.mcp.client.servers import Server, is_wanted
from toolcrib.mcp.client.trust import TrustStore
from toolcrib.mcp.client.untrusted_text import one_line, shown
from toolcrib.mcp.names import MAX_NAME_CHARS, Original, offered_names, plain_name, toolset_name
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import tool_error
from toolcrib.toolsets.catalog import SHORT_NAMES, TOOLSETS

if TYPE_CHECKING:
    from mcp_types import Tool

logger = logging.getLogger(__name__)

MAX_DESCRIPTION_CHARS = 2000
MAX_LABEL_CHARS = 80
_LOST = re.compile(r"[^\x00-\x7f]")
"""What has no place in a name of ours."""
_CHANGED = (
    "the MCP server has changed this tool since the call was made, so nothing was sent to it; "
    "look at the tool as it is now before you call it again"
)
_GONE = "the MCP server does not offer this tool any more, so nothing was sent to it"
Call = Callable[[JsonObject, ToolContext], Awaitable[str | JsonObject]]


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of a server, ready to be registered. Equal ones need not be registered again."""

    original: Original
    description: str
    """In the server's own words."""
    schema: JsonObject
    reads_only: bool = False
    """The server says so; whether that counts is for the user to say."""
    is_ours: bool = False
    """Made and described by us, not by the server, to reach what it offers besides tools."""

    @property
    def text(self) -> str:
        """The description for the model: marked with where it comes from, nothing hidden, not too long."""
        server, tool = (one_line(name, MAX_LABEL_CHARS) for name in self.original)
        # A name that had to be cut, or lost letters, could not be found by its own words.
        is_whole = len(plain_name(*self.original)) <= MAX_NAME_CHARS and not _LOST.search(self.original.tool)
        mark = f"[{server}]" if is_whole else f"[{server}: {tool}]"
        return f"{mark} {_cut(shown(self.description))}".rstrip()


def offered(tool: Tool, server: Server) -> Offered:
    """A tool as its server lists it."""
    hints = tool.annotations
    return Offered(
        original=Original(server.name, tool.name),
        description=tool.description or tool.title or (hints.title if hints else None) or "",
        schema=tool.input_schema,
        reads_only=hints is not None and hints.read_only_hint is True,
    )


class Shelf:
    """The tools of all servers of one runtime in its registry. Safe from any thread."""

    def __init__(self, registry: ToolRegistry, trust: TrustStore, forget_grants: Callable[[str], None] | None) -> None:
        # Whoever drops a runtime without closing it must not be kept from that by the thread of the hub.
        self._registry = weakref.ref(registry)
        self._trust = trust
        self._forget_grants = forget_grants
        self._lock = threading.RLock()
        self._servers: dict[str, Server] = {}
        self._offered: dict[Original, tuple[Offered, Call]] = {}
        self._registered: dict[str, tuple[Offered, Call, tuple[Effect, ...] | None]] = {}
        self._approved: set[Original] = set()

    def put(self, server: Server, tools: Iterable[tuple[Offered, Call]]) -> None:
        """Offer these tools of a server, and no others of it."""
        with self._lock:
            self._servers[server.name] = server
            self._drop(server.name)
            for tool, call in tools:
                if tool.is_ours:
                    tool = self._beside_the_servers_own(tool)
                elif not is_wanted(tool.original.tool, server.settings.tools):
                    continue
                self._offered[tool.original] = (tool, call)
            self._refresh()

    def remove(self, server: str) -> None:
        """Offer nothing of a server any more."""
        with self._lock:
            self._drop(server)
            self._servers.pop(server, None)
            self._refresh()

    def names_of(self, server: str) -> dict[str, str]:
        """From the server's own names of its tools to ours."""
        with self._lock:
            return {
                tool.original.tool: name
                for name, (tool, _, _) in self._registered.items()
                if tool.original.server == server
            }

    def original(self, name: str) -> Original | None:
        """The tool behind a name of ours."""
        with self._lock:
            known = self._registered.get(name)
            return known[0].original if known is not None else None

    def _drop(self, server: str) -> None:
        for original in [one for one in self._offered if one.server == server]:
            del self._offered[original]

    def _beside_the_servers_own(self, tool: Offered) -> Offered:
        """The tool under a name that no tool of the server has; ours make room."""
        while tool.original in self._offered:
            tool = replace(tool, original=Original(tool.original.server, f"{tool.original.tool} "))
        return tool

    def _refresh(self) -> None:
        """Registers what is new or different, takes back what is gone; the rest stays as it is."""
        registry = self._registry()
        if registry is None:
            return
        names = offered_names(self._offered)
        wanted = {name: self._offered[original] for original, name in names.items()}
        for name in [name for name in self._registered if name not in wanted]:
            del self._registered[name]
            registry.deregister(name)
        for name, (tool, call) in wanted.items():
            effects = self._effects(name, tool)
            if self._registered.get(name) != (tool, call, effects):
                self._register(registry, name, tool, call, effects)

    def _register(
        self, registry: ToolRegistry, name: str, tool: Offered, call: Call, effects: tuple[Effect, ...] | None
    ) -> None:
        server = tool.original.server
        toolset = toolset_name(server)
        with registry.loading(Source("mcp", server, tool=one_line(tool.original.tool, MAX_LABEL_CHARS))) as loading:
            registry.register(
                name=name,
                toolset=toolset,
                schema={"description": tool.text, "parameters": _without_hidden(tool.schema)},
                handler=self._handler(name, tool, call),
                is_async=True,
                effects=effects,
            )
            if not loading.registered:
                return  # Somebody else has that name; the registry said so.
            self._registered[name] = (tool, call, effects)
            if alias_is_free(server):
                registry.register_toolset_alias(server, toolset)

    def _handler(self, name: str, tool: Offered, call: Call) -> Callable[..., Awaitable[str | JsonObject]]:
        original, approved, registered = tool.original, self._approved, self._registered

        async def handler(arguments: JsonObject, *, ctx: ToolContext) -> str | JsonObject:
            now = registered.get(name)
            is_other = now is None or (now[0] is not tool and now[0] != tool)
            # It runs, so that somebody or something has agreed to it as it was when the call was made.
            if is_other or original not in approved:
                self._approve(name, tool)
            if is_other:
                # A person may think for long about a question, and what he agreed to is not there any more.
                return tool_error(_GONE if now is None else _CHANGED)
            return await call(arguments, ctx)

        return handler

    def _effects(self, name: str, tool: Offered) -> tuple[Effect, ...] | None:
        """What the gate goes by: nothing for what is trusted, None for what must be asked about."""
        settings = self._servers[tool.original.server].settings
        if settings.trust == "all":
            return ()
        if tool.is_ours:
            return () if tool.reads_only and settings.trust == "read_only" else None
        change = self._trust.change(name, tool.original, tool.description, tool.schema)
        if change:
            self._approved.discard(tool.original)
            if self._forget_grants is not None:
                self._forget_grants(name)
            return (Effect("changed", change),)
        if tool.original.tool in settings.trusted_tools:
            return ()
        return () if tool.reads_only and settings.trust == "read_only" else None

    def _is_trusted(self, server: str) -> bool:
        known = self._servers.get(server)
        return known is not None and known.settings.trust == "all"

    def _approve(self, name: str, tool: Offered) -> None:
        with self._lock:
            self._approved.add(tool.original)
            if tool.is_ours or self._is_trusted(tool.original.server):
                return  # Nothing is compared there.
            self._trust.approve(name, tool.original, tool.description, tool.schema)
            self._refresh()


def alias_is_free(server: str) -> bool:
    """Whether a server's own name may stand for its toolset; it must not take the place of one that exists."""
    return server not in TOOLSETS and server not in SHORT_NAMES


def _cut(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 1] + "…"


def _without_hidden(schema: Any) -> Any:
    """The schema with nothing hidden in the words that a model reads; what arguments are compared with stays."""
    if isinstance(schema, list):
        return [_without_hidden(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _cut(shown(value))
        if key in ("description", "title") and isinstance(value, str)
        else _without_hidden(value)
        for key, value in schema.items()
    }
