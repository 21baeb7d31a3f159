"""The MCP servers of the config for the commands that look at them: by name, and as they are when connected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click
import msgspec

from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt_async
from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.mcp.client.manager import McpClientManager
from toolcrib.mcp.client.servers import ServerStatus, is_tool_enabled
from toolcrib.mcp.names import component
from toolcrib.registry.registry import ToolRegistry

if TYPE_CHECKING:
    from toolcrib.mcp.client.connection import Connection
    from toolcrib.mcp.client.tool_list import ToolListing

LIST_SECONDS = 20.0
NO_SERVERS = "There are no MCP servers; `toolcrib mcp add NAME -- COMMAND` adds one."
STATES = {"waiting": "waiting to retry", "needs_login": "needs login"}
"""States that people read as more than one word."""


class UnknownServer(UnknownName):
    kind = "MCP server"


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of a server, offered or not."""

    server: str
    tool: str
    """As the server calls it."""
    name: str = ""
    """As we call it; empty when it is not offered."""
    description: str = ""
    reads_only: bool = False
    asks: bool = True
    """Whether somebody is asked before each call."""
    why_hidden: str = ""


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """One server at one moment, with its tools."""

    status: ServerStatus
    tools: tuple[ToolView, ...] = ()

    @property
    def offered(self) -> list[ToolView]:
        return [tool for tool in self.tools if tool.name]

    @property
    def hidden(self) -> list[ToolView]:
        return [tool for tool in self.tools if not tool.name]


def require_servers(settings: Settings, names: Iterable[str]) -> dict[str, McpServerSettings]:
    """The servers of these names; raises UnknownServer with the nearest ones."""
    known = settings.mcp_servers
    chosen = dict.fromkeys(names)
    for name in chosen:
        if name not in known:
            advice = "`toolcrib mcp list --no-connect` shows all of them" if known else NO_SERVERS
            raise UnknownServer(name, known, advice=advice)
    return {name: known[name] for name in chosen}


def complete_servers(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of servers for the shell."""
    try:
        return [name for name in load_settings().mcp_servers if name.startswith(incomplete)]
    except (ToolcribError, OSError):
        return []  # there is no place for a message while somebody is typing


def look_at(settings: Settings, servers: Mapping[str, McpServerSettings], seconds: float) -> list[ServerView]:
    """How these servers are, each tried once, all at the same time; one that takes longer is still starting."""
    registry = ToolRegistry()
    hub = McpClientManager(settings, registry)
    try:
        hub.start(servers)
        hub.wait_ready_sync(seconds)
        return asyncio.run(_views(hub, registry))
    finally:
        hub.close()


async def _views(hub: McpClientManager, registry: ToolRegistry) -> list[ServerView]:
    statuses = [_as_tried(status) for status in hub.servers()]
    tools = await asyncio.gather(*(tools_of(hub, registry, status) for status in statuses))
    return [ServerView(status=status, tools=found) for status, found in zip(statuses, tools, strict=True)]


def _as_tried(status: ServerStatus) -> ServerStatus:
    """How the first try went, also if the next one has begun meanwhile."""
    is_retrying = status.state == "starting" and bool(status.last_error)
    return msgspec.structs.replace(status, state="waiting") if is_retrying else status


async def tools_of(hub: McpClientManager, registry: ToolRegistry, status: ServerStatus) -> tuple[ToolView, ...]:
    """The tools of a server that is connected, those that are not offered with the reason."""
    if status.state != "ready":
        return ()
    listing, _ = await attempt_async(hub.use(status.name, _listing, LIST_SECONDS))
    if listing is None:
        return ()
    names = hub.tool_names(status.name)
    settings = hub.settings.mcp_servers[status.name]
    found = []
    for tool in listing.tools:
        hints = tool.annotations
        why_hidden = ""
        if tool.name not in names:
            wanted = is_tool_enabled(tool.name, settings.tools)
            why_hidden = "another tool has its name" if wanted else "the config leaves it out (include, exclude)"
        found.append(
            ToolView(
                server=status.name,
                tool=tool.name,
                name=names.get(tool.name, ""),
                description=tool.description or tool.title or "",
                reads_only=hints is not None and hints.read_only_hint is True,
                asks=_asks(registry, names.get(tool.name, "")),
                why_hidden=why_hidden,
            )
        )
    listed = {tool.name for tool in listing.tools}
    # Made here for its resources and prompts.
    for own, name in names.items():
        if own not in listed:
            found.append(_made_here(registry, status.name, own, name))
    found += [ToolView(server=status.name, tool=one.tool, why_hidden=one.reason) for one in listing.rejected]
    return tuple(found)


def _made_here(registry: ToolRegistry, server: str, tool: str, name: str) -> ToolView:
    entry = registry.get_entry(name)
    description = entry.description.removeprefix(f"[{server}]").strip() if entry is not None else ""
    asks = _asks(registry, name)
    # As it stands in our name, so that people can type it.
    tool = component(tool)
    return ToolView(server=server, tool=tool, name=name, description=description, reads_only=not asks, asks=asks)


def _asks(registry: ToolRegistry, name: str) -> bool:
    entry = registry.get_entry(name) if name else None
    return entry is None or entry.effects != ()


async def _listing(connection: Connection) -> ToolListing:
    return await connection.list_tools()
