"""What this program does for a server that asks: a model, a person, the workspace, a login, resources and prompts.

Each is built when a server is connected, on the loop of the hub, so that nothing of the SDK is loaded before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolcrib.mcp.seams import Seams

if TYPE_CHECKING:
    from toolcrib.mcp.hub import McpHub


def own_seams(hub: McpHub) -> Seams:
    """The callbacks of a runtime's servers."""
    del hub
    return Seams()
