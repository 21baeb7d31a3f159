"""Tools of MCP servers on the command line, by our names and by those of their servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_program import Program

# Programs with the SDK behind them take a second or two to start.
pytestmark = pytest.mark.services

RAW = Path(__file__).parents[1] / "mcp" / "servers" / "raw_server.py"
EMPTY = {"type": "object"}


def server(*tools: str, **options: Any) -> dict[str, Any]:
    """A real server with these tools."""
    options["tools"] = [{"name": name, "description": f"Does {name}", "inputSchema": EMPTY} for name in tools]
    return {"command": sys.executable, "args": ["-S", "-E", str(RAW), json.dumps(options)], "trust": "all"}


def configure(program: Program, **servers: Any) -> None:
    program.write("config.yaml", json.dumps({"mcp_servers": servers}))


def test_the_list_shows_what_servers_call_their_tools(toolcrib: Program) -> None:
    """The command waits for the servers; each of their tools stands with the name that its server gave."""
    configure(toolcrib, time=server("get-current-time"))

    page = toolcrib("tools", "list", "--toolset", "time")
    [listed] = json.loads(toolcrib("tools", "list", "--toolset", "mcp-time", "--json").stdout)

    assert "NAME ON SERVER" in page.stdout
    assert "time: get-current-time" in page.stdout
    assert listed["name"] == "mcp__time__get_current_time"
    assert listed["source"] == {"kind": "mcp", "name": "time", "path": "", "tool": "get-current-time"}


def test_a_list_without_servers_has_no_such_column(toolcrib: Program) -> None:
    """Who has no server sees nothing of them."""
    assert "NAME ON SERVER" not in toolcrib("tools", "list").stdout


def test_a_tool_is_explained_and_run_by_its_own_name(toolcrib: Program) -> None:
    """`tool`, `server: tool` and `server/tool` all mean the same tool."""
    configure(toolcrib, time=server("pid-of"))

    for name in ("pid-of", "time: pid-of", "time/pid-of", "mcp__time__pid_of"):
        explained = json.loads(toolcrib("tools", "explain", name, "--json").stdout)
        assert explained["name"] == "mcp__time__pid_of"
    page = toolcrib("tools", "explain", "pid-of").stdout
    ran = toolcrib("tools", "run", "pid-of")

    assert "mcp time (pid-of), in toolset 'mcp-time'" in page
    assert (json.loads(ran.stdout), ran.code) == ({"result": "no tool pid-of"}, 0)


def test_a_name_that_several_servers_have_is_refused_with_the_ways_out(toolcrib: Program) -> None:
    """Nobody's tool is guessed at."""
    configure(toolcrib, one=server("look-up"), two=server("look-up"))

    outcome = toolcrib("tools", "explain", "look-up")

    assert outcome.code == 2
    assert "mcp__one__look_up, mcp__two__look_up" in outcome.stderr


def test_a_server_that_cannot_be_started_costs_only_its_own_tools(toolcrib: Program) -> None:
    """The list comes, and says which server did not."""
    configure(toolcrib, broken=server(crash="no"), time=server("now"))

    outcome = toolcrib("tools", "list")

    assert "mcp__time__now" in outcome.stdout
    assert "'broken'" in outcome.stderr
    assert "toolcrib mcp list" in outcome.stderr


def test_the_toolset_of_a_server_is_shown(toolcrib: Program) -> None:
    """Under both of its names; one that brought nothing says what to type."""
    configure(toolcrib, time=server("now"), broken=server(crash="no"))

    shown = toolcrib("toolsets", "show", "time")
    missing = toolcrib("toolsets", "show", "mcp-broken")

    assert "mcp__time__now" in shown.stdout
    assert missing.code == 2
    assert "toolcrib mcp list" in missing.stderr


def test_a_config_may_name_the_toolset_of_a_server(toolcrib: Program) -> None:
    """It is known before the server is connected, so that nothing is refused; a misspelt one is."""
    config = {"mcp_servers": {"time": server("now")}, "toolsets": ["mcp-time", "mcp-tme"]}
    toolcrib.write("config.yaml", json.dumps(config))

    outcome = toolcrib("config", "check")

    assert outcome.code == 2
    assert "unknown toolset 'mcp-tme'" in outcome.stderr
    assert "did you mean 'mcp-time'" in outcome.stderr
    assert "unknown toolset 'mcp-time'" not in outcome.stderr
