"""MCP servers that the editor passes along: connected like those of the config, with the trust of the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from acp.schema import AcpMcpServer, HttpMcpServer, McpServerStdio, SseMcpServer
from msgspec import Struct

from toolcrib.config.mcp_settings import McpServerSettings

FROM_EDITOR = "-editor"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class EditorServers(Struct, frozen=True):
    """The servers to connect, and why others are left out."""

    servers: dict[str, McpServerSettings]
    """Those of the config, and the editor's."""
    problems: tuple[str, ...] = ()


def with_editor_servers(
    given: Sequence[Any],
    configured: Mapping[str, McpServerSettings],
    trust: Literal["ask", "read_only", "all"],
) -> EditorServers:
    """The servers of the config and those of the editor.

    A server that the config has already keeps the trust it has there. Another one with the same name gets another
    name: a name alone earns no trust.
    """
    servers, problems = dict(configured), []
    for one in given:
        if isinstance(one, AcpMcpServer):
            problems.append(f"the MCP server {one.name!r} is left out: servers inside the editor are not supported")
            continue
        settings = _settings(one, trust)
        if _has_variable(settings):
            # Our variables hold keys, and the editor's settings may come from a project.
            problems.append(f"the MCP server {one.name!r} is left out: its settings use a variable (`${{…}}`)")
            continue
        name = _NOT_IN_NAMES.sub("-", one.name).strip("-") or "server"
        if name in configured and _is_same(configured[name], settings):
            continue
        while name in servers:
            name += FROM_EDITOR
        servers[name] = settings
    return EditorServers(servers, tuple(problems))


def _settings(
    one: McpServerStdio | HttpMcpServer | SseMcpServer, trust: Literal["ask", "read_only", "all"]
) -> McpServerSettings:
    if isinstance(one, McpServerStdio):
        return McpServerSettings(
            command=one.command, args=list(one.args), env={each.name: each.value for each in one.env}, trust=trust
        )
    headers = {header.name: header.value for header in one.headers}
    transport: Literal["http", "sse"] = "sse" if isinstance(one, SseMcpServer) else "http"
    return McpServerSettings(url=one.url, headers=headers, transport=transport, trust=trust)


def _is_same(configured: McpServerSettings, given: McpServerSettings) -> bool:
    if given.url:
        return configured.url == given.url
    return (configured.command, configured.args) == (given.command, given.args)


def _has_variable(settings: McpServerSettings) -> bool:
    texts = (settings.command, settings.url, *settings.args, *settings.env.values(), *settings.headers.values())
    return any("${" in text for text in texts)
