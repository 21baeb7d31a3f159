"""Keeps a toolcrib that serves MCP from being its own client, which would have no end.

A server that we start finds in its environment how many toolcribs stand above it. One that was started by another
does not start `toolcrib mcp serve` again; whatever hides behind some other command ends at a depth. A server that is
reached by HTTP recognises its own process.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from toolcrib.config.mcp_settings import McpServerSettings

DEPTH_VARIABLE = "TOOLCRIB_MCP_DEPTH"
MAX_DEPTH = 3
HEADER = "toolcrib-process"
PROCESS = secrets.token_hex(16)
"""Another one for each process."""
LOOP_DETECTED = 508
_OURSELVES = re.compile(r"(?:^|[\s/\\'\"])toolcrib\b.*\bmcp['\"]?\s+['\"]?serve\b", re.IGNORECASE | re.DOTALL)


def depth_of(environ: Mapping[str, str]) -> int:
    """How many toolcribs have started each other, as MCP servers, until this one."""
    text = environ.get(DEPTH_VARIABLE, "")
    return min(int(text), 1_000) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def why_not_started(settings: McpServerSettings, environ: Mapping[str, str]) -> str:
    """Why a program must not be started as a server, as a sentence; empty when it may be."""
    depth = depth_of(environ)
    if depth and _OURSELVES.search(" ".join([settings.command, *settings.args])):
        return "it would start toolcrib again, and this toolcrib was started as an MCP server by another one"
    if depth >= MAX_DEPTH:
        return f"{depth} toolcribs have started each other as MCP servers, which is enough"
    return ""


def headers_for(url: str) -> dict[str, str]:
    """What tells our own server who we are; nothing for an address that cannot be ours."""
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return {}
    return {HEADER: PROCESS} if _may_be_here(host) else {}


def _may_be_here(host: str) -> bool:
    if host in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
