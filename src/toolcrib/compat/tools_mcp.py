"""`tools.mcp_tool` and `tools.mcp_oauth`: the MCP servers of the default runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from toolcrib.api import default_runtime
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.core.errors import ConfigError, ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.manager import McpClientManager
from toolcrib.registry.default import registry

MCP_TOOL_NAME_PREFIX = "mcp__"


def discover_mcp_tools() -> list[str]:
    """Connect the configured servers, wait until each has been tried, and return the names of their tools."""
    manager = _manager()
    configured = load_settings().mcp_servers
    if not configured:
        return []
    manager.reload(configured)
    manager.wait_ready_sync(_seconds(manager, configured))
    return _names(configured)


def register_mcp_servers(servers: dict[str, JsonObject]) -> list[str]:
    """Connect more servers, given as in the config, and return the names of their tools."""
    try:
        added = msgspec.convert(servers, dict[str, McpServerSettings])
    except msgspec.ValidationError as error:
        raise ConfigError(f"these are no settings of MCP servers: {error}") from error
    manager = _manager()
    manager.reload({**load_settings().mcp_servers, **added})
    manager.wait_ready_sync(_seconds(manager, added))
    return _names(added)


def shutdown_mcp_servers() -> None:
    """Close the connections to all servers."""
    _manager().close()


def reconnect_mcp_server(server_name: str) -> bool:
    """Connect a server again; False if there is none of that name or it does not answer."""
    try:
        _manager().reconnect(server_name)
    except (ToolcribError, TimeoutError):
        return False
    return True


def get_mcp_status() -> list[JsonObject]:
    """The state of each server: its name, whether it is connected, and its number of tools."""
    manager = _manager()
    return [
        {"name": one.name, "connected": one.state in ("ready", "degraded"), "tools": len(manager.tool_names(one.name))}
        for one in manager.servers()
    ]


def has_registered_mcp_tools() -> bool:
    return any(entry.source.kind == "mcp" for entry in registry.entries())


def is_mcp_tool_parallel_safe(tool_name: str) -> bool:
    """Whether calls of this tool may run at the same time."""
    origin = _manager().origin(tool_name)
    server = load_settings().mcp_servers.get(origin.server) if origin is not None else None
    return server is not None and server.supports_parallel_tool_calls


def sanitize_mcp_name_component(value: str) -> str:
    """A part of a tool's name, with `_` for everything but letters, digits and `_`."""
    return re.sub(r"[^A-Za-z0-9_]", "_", str(value or ""))


def mcp_prefixed_tool_name(server_name: str, tool_name: str) -> str:
    """The name under which a server's tool is registered."""
    return f"mcp__{sanitize_mcp_name_component(server_name)}__{sanitize_mcp_name_component(tool_name)}"


@contextmanager
def suppress_interactive_oauth() -> Iterator[None]:
    """Never open a browser to log in at a server. toolcrib does so only in `toolcrib mcp login`, so nothing changes."""
    yield


def _manager() -> McpClientManager:
    return default_runtime().mcp


def _seconds(manager: McpClientManager, servers: dict[str, McpServerSettings]) -> float:
    return max(manager.discovery_seconds, *(server.connect_timeout for server in servers.values()))


def _names(servers: dict[str, Any]) -> list[str]:
    manager = _manager()
    return sorted(name for server in servers for name in manager.tool_names(server).values())
