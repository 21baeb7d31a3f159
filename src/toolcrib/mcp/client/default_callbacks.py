"""What this program does for a server that asks: a model, a person, the workspace, a login, resources and prompts."""

from __future__ import annotations

import os
from pathlib import Path

from mcp.client import ClientRequestContext
from mcp_types import INTERNAL_ERROR, ErrorData, ListRootsResult, Root
from pydantic import FileUrl

from toolcrib.mcp.client.callbacks import HubSide, Seams
from toolcrib.mcp.client.elicitation import Elicitation
from toolcrib.mcp.client.oauth import kept_login
from toolcrib.mcp.client.resources_and_prompts import more_tools
from toolcrib.mcp.client.sampling import SamplingDesk
from toolcrib.mcp.client.servers import Server


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


class Roots:
    """Answers a server that asks for its roots; the SDK's `list_roots_callback`."""

    def __init__(self, server: Server, workspace: str) -> None:
        self._named = server.settings.roots
        self._workspace = workspace

    async def __call__(self, context: ClientRequestContext) -> ListRootsResult | ErrorData:
        try:
            return ListRootsResult(roots=[_root(folder) for folder in root_folders(self._named, self._workspace)])
        except (ValueError, RuntimeError):
            return ErrorData(code=INTERNAL_ERROR, message="the folders cannot be written as addresses")


def root_folders(named: list[str], workspace: str) -> list[Path]:
    """The folders, absolute, each once; relative ones are meant from the workspace, which is empty when it is gone."""
    base = [Path(workspace)] if workspace else []
    if not named:
        return base
    folders = [Path(text).expanduser() for text in named if text]
    reachable = [folder for folder in folders if folder.is_absolute() or base]
    return list(dict.fromkeys(Path(os.path.normpath(Path(workspace, folder))) for folder in reachable))


def _root(folder: Path) -> Root:
    # A name that is no text on this machine is in the address as it is, but cannot be shown.
    name = folder.name.encode("utf-8", "replace").decode()
    return Root(uri=FileUrl(folder.as_uri()), name=name or None)
