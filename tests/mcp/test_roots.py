"""The folders that servers are told about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from tests.mcp.real_servers import EVERY_ERA, answer_to, asking
from toolcrib.mcp.client.default_callbacks import RootsHandler, root_folders
from toolcrib.mcp.client.servers import read_server

WithServers = Callable[..., Any]


@EVERY_ERA
async def test_a_server_is_told_the_workspace(with_servers: WithServers, tmp_path: Path, era: str) -> None:
    """Without folders in its settings a server gets the workspace, as an address that means exactly that folder."""
    workspace = tmp_path / "odd #1 %41 ünï?"
    workspace.mkdir()
    runtime = await with_servers({"s": asking(era)}, workspace=workspace)

    told = await answer_to(runtime, "roots/list")

    [root] = told["roots"]
    assert root["uri"].startswith("file:///")
    assert unquote(urlsplit(root["uri"]).path) == str(workspace)
    assert root["name"] == "odd #1 %41 ünï?"


@EVERY_ERA
async def test_the_settings_name_other_folders(with_servers: WithServers, tmp_path: Path, era: str) -> None:
    """Folders of the settings take the place of the workspace; relative ones are meant from it."""
    roots = ["sub/../other", str(tmp_path / "absolute"), "other"]
    runtime = await with_servers({"s": asking(era, roots=roots)}, workspace=tmp_path)

    told = await answer_to(runtime, "roots/list")

    assert [root["uri"] for root in told["roots"]] == [
        (tmp_path / "other").as_uri(),
        (tmp_path / "absolute").as_uri(),
    ]


def test_without_a_workspace_there_is_no_root() -> None:
    """A workspace that was deleted is no root, and nothing relative to it is one."""
    assert root_folders([], "") == []
    assert root_folders(["here", "/there"], "") == [Path("/there")]


@given(st.lists(st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=20), min_size=1, max_size=4))
async def test_any_folder_has_an_address(names: list[str]) -> None:
    """Whatever a folder is called, its address leads back to it, or the server is told that there is none."""
    folder = "/" + "/".join(name for name in names if name not in (".", ".."))
    settings = read_server("s", _settings(), {})

    told: Any = await RootsHandler(settings, folder)(None)  # type: ignore[arg-type]

    if hasattr(told, "roots"):
        found = unquote(urlsplit(str(told.roots[0].uri)).path, errors="surrogateescape")
        assert Path(found) == Path(folder)
    else:
        assert any("\ud800" <= character <= "\udfff" for character in folder)


def _settings() -> Any:
    from toolcrib.config.mcp_settings import McpServerSettings

    return McpServerSettings(command="none")
