"""What this program does for a server that asks: a model, a person, the workspace, a login, resources and prompts."""

from __future__ import annotations

from toolcrib.mcp.elicitation import Elicitation
from toolcrib.mcp.oauth import kept_login
from toolcrib.mcp.offers import more_tools
from toolcrib.mcp.roots import Roots
from toolcrib.mcp.sampling import SamplingDesk
from toolcrib.mcp.seams import HubSide, Seams


def own_seams(hub: HubSide) -> Seams:
    """The callbacks of a runtime's servers."""
    desk = SamplingDesk(hub.settings, hub.services, hub.gate)
    return Seams(
        sampling=desk.callback,
        sampling_capabilities=desk.capabilities,
        elicitation=lambda server, contexts: Elicitation(server, contexts, hub.services),
        roots=lambda server, _: Roots(server, hub.workspace),
        auth=lambda server, _: kept_login(server, hub.settings.home),
        more_tools=lambda server, connection: more_tools(hub, server, connection),
        close=desk.close,
    )
