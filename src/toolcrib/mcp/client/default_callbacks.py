"""The callbacks that servers get by default: sampling, elicitation, roots, the stored login, resources and prompts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mcp.client import ClientRequestContext
from mcp_types import INTERNAL_ERROR, ErrorData, ListRootsResult, Root
from pydantic import FileUrl

from toolcrib.config.settings import Settings
from toolcrib.core.context import Services
from toolcrib.core.ports import Gate
from toolcrib.mcp.client.callbacks import ClientCallbacks
from toolcrib.mcp.client.elicitation import ElicitationHandler
from toolcrib.mcp.client.oauth import stored_login
from toolcrib.mcp.client.resources_and_prompts import RunRequest, feature_tools
from toolcrib.mcp.client.sampling import SamplingHandler
from toolcrib.mcp.client.servers import Server


def default_callbacks(
    settings: Settings,
    *,
    workspace: str,
    gate: Gate | None,
    services: Callable[[], Services | None],
    run: RunRequest,
) -> ClientCallbacks:
    """The callbacks for the servers of one runtime; `run` is `McpClientManager.run`."""
    sampling = SamplingHandler(settings, services, gate)
    return ClientCallbacks(
        sampling=sampling.callback,
        sampling_capabilities=sampling.capabilities,
        elicitation=lambda server, contexts: ElicitationHandler(server, contexts, services),
        roots=lambda server, _: RootsHandler(server, workspace),
        auth=lambda server, _: stored_login(server, settings.home),
        extra_tools=lambda server, connection: feature_tools(server, connection, run, settings.home.results_dir),
        close=sampling.close,
    )


class RootsHandler:
    """Tells a server which folders it may work in; the SDK's `list_roots_callback`."""

    def __init__(self, server: Server, workspace: str) -> None:
        self._configured = server.settings.roots
        self._workspace = workspace

    async def __call__(self, context: ClientRequestContext) -> ListRootsResult | ErrorData:
        try:
            return ListRootsResult(roots=[_root(folder) for folder in root_folders(self._configured, self._workspace)])
        except (ValueError, RuntimeError):
            return ErrorData(code=INTERNAL_ERROR, message="the folders cannot be expressed as URLs")


def root_folders(configured: list[str], workspace: str) -> list[Path]:
    """The configured folders, absolute and without duplicates, or the workspace if there are none.

    Relative folders start at the workspace; they are skipped if it is gone (an empty string).
    """
    base = [Path(workspace)] if workspace else []
    if not configured:
        return base
    folders = [Path(text).expanduser() for text in configured if text]
    reachable = [folder for folder in folders if folder.is_absolute() or base]
    return list(dict.fromkeys(Path(os.path.normpath(Path(workspace, folder))) for folder in reachable))


def _root(folder: Path) -> Root:
    # A name that is not valid text on this machine works in the URL but cannot be displayed.
    name = folder.name.encode("utf-8", "replace").decode()
    return Root(uri=FileUrl(folder.as_uri()), name=name or None)
