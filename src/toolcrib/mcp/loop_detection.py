"""Keeps a toolcrib that serves MCP from becoming its own client in an endless loop.

A server that we start learns from its environment how many toolcribs started each other above it. A toolcrib started
by another one does not start `toolcrib mcp serve` again; anything hidden behind another command stops at a maximum
depth. An HTTP server recognises requests from its own process.
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
PROCESS_HEADER = "toolcrib-process"
PROCESS_TOKEN = secrets.token_hex(16)
"""Unique for each process."""
LOOP_DETECTED = 508
_TOOLCRIB_SERVE = re.compile(r"(?:^|[\s/\\'\"])toolcrib\b.*\bmcp['\"]?\s+['\"]?serve\b", re.IGNORECASE | re.DOTALL)


def nesting_depth(environ: Mapping[str, str]) -> int:
    """How many toolcribs above this one started each other as MCP servers."""
    text = environ.get(DEPTH_VARIABLE, "")
    return min(int(text), 1_000) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def start_problem(settings: McpServerSettings, environ: Mapping[str, str]) -> str:
    """Why a program must not be started as a server; empty if it may be."""
    depth = nesting_depth(environ)
    if depth and _TOOLCRIB_SERVE.search(" ".join([settings.command, *settings.args])):
        return "it would start toolcrib again, and this toolcrib was itself started as an MCP server by another one"
    if depth >= MAX_DEPTH:
        return f"{depth} toolcribs have already started each other as MCP servers"
    return ""


def process_headers(url: str) -> dict[str, str]:
    """The header by which our own server recognises us; nothing for a URL that cannot be ours."""
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return {}
    return {PROCESS_HEADER: PROCESS_TOKEN} if _may_be_local(host) else {}


def _may_be_local(host: str) -> bool:
    if host in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
