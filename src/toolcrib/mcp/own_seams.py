"""What this program does for a server that asks: a model, a person, the workspace, a login, resources and prompts.

Each is built when a server is connected, on the loop of the hub, so that nothing of the SDK is loaded before.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from toolcrib.mcp.seams import Contexts, Seams

if TYPE_CHECKING:
    from toolcrib.mcp.connection import Connection
    from toolcrib.mcp.hub import McpHub
    from toolcrib.mcp.sampling import SamplingDesk
    from toolcrib.mcp.servers import Server


def own_seams(hub: McpHub) -> Seams:
    """The callbacks of a runtime's servers."""

    @cache
    def desk() -> SamplingDesk:
        from toolcrib.mcp.sampling import SamplingDesk  # noqa: PLC0415 - needs the SDK

        return SamplingDesk(hub.settings, hub.services, hub.gate)

    def elicitation(server: Server, contexts: Contexts) -> Any:
        from toolcrib.mcp.elicitation import Elicitation  # noqa: PLC0415 - needs the SDK

        return Elicitation(server, contexts, hub.services)

    def roots(server: Server, _: Contexts) -> Any:
        from toolcrib.mcp.roots import Roots  # noqa: PLC0415 - needs the SDK

        return Roots(server, hub.workspace)

    def auth(server: Server, contexts: Contexts) -> Any:
        from toolcrib.mcp.oauth import kept_login  # noqa: PLC0415 - needs the SDK

        del contexts
        return kept_login(server, hub.settings.home)

    async def close() -> None:
        if desk.cache_info().currsize:
            await desk().close()

    def more_tools(server: Server, connection: Connection) -> list[Any]:
        from toolcrib.mcp.offers import more_tools  # noqa: PLC0415 - needs the SDK

        return more_tools(hub, server, connection)

    return Seams(
        sampling=lambda server, contexts: desk().callback(server, contexts),
        sampling_capabilities=lambda server, contexts: desk().capabilities(server, contexts),
        elicitation=elicitation,
        roots=roots,
        auth=auth,
        more_tools=more_tools,
        close=close,
    )
