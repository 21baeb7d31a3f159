"""The folders that a server is told it may work in: those of its settings, else the workspace."""

from __future__ import annotations

import os
from pathlib import Path

from mcp.client import ClientRequestContext
from mcp_types import INTERNAL_ERROR, ErrorData, ListRootsResult, Root
from pydantic import FileUrl

from toolcrib.mcp.servers import Server


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
