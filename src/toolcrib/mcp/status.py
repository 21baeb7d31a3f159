"""How a server is, for people."""

from __future__ import annotations

from typing import Literal

import msgspec

from toolcrib.mcp.servers import Transport

State = Literal["starting", "ready", "degraded", "waiting", "disabled", "needs_login"]


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One server at one moment."""

    name: str
    state: State
    last_error: str = ""
    since: float = 0.0
    """When it came into this state, in seconds since the epoch."""
    next_retry: float | None = None
    """When it is tried again, likewise."""
    tools: int = 0
    set_aside: tuple[tuple[str, str], ...] = ()
    """Tools that are not offered, each with the reason."""
    protocol_version: str = ""
    transport: Transport = "stdio"
    address: str = ""
    """Its command line or its address."""
    pid: int | None = None
    instructions: str = ""
    """What the server says about itself; untrusted."""
