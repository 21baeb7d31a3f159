"""When something is to be done about an open connection."""

from __future__ import annotations

import msgspec

from toolcrib.mcp.servers import Server


class Due(msgspec.Struct, frozen=True):
    """Times on the monotonic clock; None means never."""

    keepalive: float | None
    idle: float | None
    renew: float | None

    @property
    def soonest(self) -> float | None:
        return min((at for at in (self.keepalive, self.idle, self.renew) if at is not None), default=None)


def due(server: Server, *, born: float, last_used: float, checked: float) -> Due:
    """By the settings of the server, and by when its connection was made, used and last known to be good."""
    return Due(
        keepalive=None if server.transport == "stdio" else max(last_used, checked) + server.settings.keepalive_interval,
        idle=last_used + server.idle_seconds if server.idle_seconds else None,
        renew=born + server.lifetime_seconds if server.lifetime_seconds else None,
    )
