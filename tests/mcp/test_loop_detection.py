"""A toolcrib that serves MCP and finds itself among its own servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.real_servers import eventually, free_port
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.mcp.client.servers import read_server
from toolcrib.mcp.loop_detection import DEPTH_VARIABLE, MAX_DEPTH, process_headers

TOKEN = "a-token-for-this-test-alone"


def problem(command: str, *args: str, depth: str = "1") -> str:
    return read_server("s", McpServerSettings(command=command, args=list(args)), {DEPTH_VARIABLE: depth}).problem


@pytest.mark.parametrize(
    "words",
    [
        ("toolcrib", "mcp", "serve"),
        ("/usr/local/bin/toolcrib", "mcp", "serve", "--toolsets", "file"),
        (sys.executable, "-m", "toolcrib", "mcp", "serve"),
        ("uvx", "toolcrib", "mcp", "serve"),
        ("uvx", "--from", "toolcrib[mcp]", "toolcrib", "mcp", "serve"),
        ("sh", "-c", "exec toolcrib mcp serve"),
    ],
)
def test_a_toolcrib_that_a_toolcrib_started_does_not_start_another(words: tuple[str, ...]) -> None:
    """However it is written, it is disabled with a reason there, and nowhere else."""
    assert "toolcrib again" in problem(*words)
    assert problem(*words, depth="") == ""
    assert problem(*words, depth="nonsense") == ""


def test_other_servers_are_used_up_to_a_depth() -> None:
    """What hides behind another command comes to an end too."""
    assert problem("npx", "some-server") == ""
    assert problem("toolcrib", "mcp", "list") == ""
    assert "already started each other" in problem("npx", "some-server", depth=str(MAX_DEPTH))


def test_each_server_is_told_its_depth_whatever_its_config_says() -> None:
    """The marker is ours; a config cannot take it away."""
    settings = McpServerSettings(command="x", env={DEPTH_VARIABLE: "0"})

    assert read_server("s", settings, {}).environ[DEPTH_VARIABLE] == "1"
    assert read_server("s", settings, {DEPTH_VARIABLE: "1"}).environ[DEPTH_VARIABLE] == "2"


def test_only_an_address_that_may_be_ours_is_told_who_we_are() -> None:
    """Servers of other people learn nothing about our process."""
    assert process_headers("http://127.0.0.1:8000/mcp")
    assert process_headers("http://localhost:8000/mcp")
    assert process_headers("http://[::1]:8000/mcp")
    assert not process_headers("https://mcp.example.com/mcp")
    assert not process_headers("http://[broken/mcp")


def serving_itself(home: Path) -> dict[str, Any]:
    server = {
        "command": sys.executable,
        "args": ["-m", "toolcrib", "mcp", "serve", "--toolsets", "file"],
        "env": {"TOOLCRIB_HOME": str(home)},
    }
    home.mkdir(parents=True)
    (home / "config.yaml").write_text(json.dumps({"mcp_servers": {"me": server}}))
    return server


@pytest.mark.services
async def test_serving_itself_over_stdio_ends_after_one(with_servers: Callable[..., Any], tmp_path: Path) -> None:
    """The toolcrib that was started says in its log why it does not start the next one."""
    home = tmp_path / "served"
    runtime = await with_servers({"me": serving_itself(home)})

    log = home / "logs" / "toolcrib.log"
    said = await eventually(lambda: log.exists() and "would start toolcrib again" in log.read_text())

    assert said
    assert "mcp__me__read_file" in runtime.definitions(["me"]).names
    assert not any("mcp__me__mcp__me" in name for name in runtime.registry.get_all_tool_names())


@pytest.fixture
def own_client(tmp_path: Path) -> Iterator[Path]:
    """A toolcrib that serves HTTP and has its own address among its servers; gives its home."""
    home, port = tmp_path / "served", free_port()
    home.mkdir()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    server = {"url": f"http://127.0.0.1:{port}/mcp", "headers": headers}
    (home / "config.yaml").write_text(json.dumps({"mcp_servers": {"me": server}}))
    command = [sys.executable, "-m", "toolcrib", "mcp", "serve", "--http", str(port), "--token-env", "TOKEN"]
    environ = {**os.environ, "TOOLCRIB_HOME": str(home), "TOKEN": TOKEN}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield home
    process.kill()
    process.wait()


@pytest.mark.services
async def test_a_server_by_http_is_not_its_own_client(own_client: Path) -> None:
    """It recognises its own process, and says so in its log."""
    log = own_client / "logs" / "toolcrib.log"

    assert await eventually(lambda: log.exists() and "it is this very process" in log.read_text())
