"""Reading what the config says about servers."""

from __future__ import annotations

import pytest

from toolcrib.config.mcp_settings import McpServerSettings, McpToolFilter
from toolcrib.mcp.client.servers import is_tool_enabled, read_server

ENVIRON = {"PATH": "/bin", "HOME": "/home/me", "TOKEN": "s3cret", "XDG_CACHE_HOME": "/c", "AWS_SECRET_ACCESS_KEY": "k"}


def test_variables_are_filled_in_everywhere() -> None:
    """`${NAME}` and `${env:NAME}` stand for variables in all texts that reach the server."""
    settings = McpServerSettings(
        command="${HOME}/bin/x",
        args=["--t=${env:TOKEN}"],
        env={"T": "${TOKEN}"},
        cwd="${HOME}",
        headers={"A": "${TOKEN}"},
    )

    server = read_server("s", settings, ENVIRON)

    assert server.problem == ""
    assert (server.settings.command, server.settings.args) == ("/home/me/bin/x", ["--t=s3cret"])
    assert (server.settings.env, server.settings.cwd, server.settings.headers) == (
        {"T": "s3cret"},
        "/home/me",
        {"A": "s3cret"},
    )


def test_an_unset_variable_disables_the_server_with_the_reason() -> None:
    """Nobody gets the letters `${NAME}` in the place of a secret."""
    server = read_server("s", McpServerSettings(command="x", args=["${NOPE}", "${NOPE}"]), ENVIRON)

    assert server.problem == "it needs NOPE, which is not set; set it in the environment or in .env"


def test_a_program_gets_a_minimal_environment() -> None:
    """Keys of our own environment do not reach a server, unless its config names them."""
    server = read_server("s", McpServerSettings(command="x", env={"MINE": "1"}), ENVIRON)

    passed = {"PATH": "/bin", "HOME": "/home/me", "XDG_CACHE_HOME": "/c"}
    assert server.environ == {**passed, "MINE": "1", "TOOLCRIB_MCP_DEPTH": "1"}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (McpServerSettings(), "neither a command nor a URL"),
        (McpServerSettings(command="x", url="http://h"), "both"),
        (McpServerSettings(url="ftp://h"), "http://"),
        (McpServerSettings(transport="stdio", url="http://h"), "no command"),
        (McpServerSettings(url="http://h", headers={"A": "x\ny"}), "header"),
        (McpServerSettings(url="http://h", headers={"A b": "x"}), "header"),
        (McpServerSettings(command="x", enabled=False), "disabled"),
    ],
)
def test_what_cannot_work_is_said(settings: McpServerSettings, word: str) -> None:
    """A server that cannot be reached as it is configured says why."""
    assert word in read_server("s", settings, ENVIRON).problem


@pytest.mark.parametrize(
    ("settings", "transport"),
    [
        (McpServerSettings(command="x"), "stdio"),
        (McpServerSettings(url="https://h/mcp"), "http"),
        (McpServerSettings(url="https://h/sse", transport="sse"), "sse"),
        (McpServerSettings(command="x", url="http://h", transport="http"), "http"),
    ],
)
def test_the_transport_follows_from_what_is_given(settings: McpServerSettings, transport: str) -> None:
    """A command means stdio, an address streamable HTTP, unless the config says otherwise."""
    server = read_server("s", settings, ENVIRON)

    assert (server.transport, server.problem) == (transport, "")


def test_tools_are_chosen_by_patterns_and_exclusion_wins() -> None:
    """`include` chooses, `exclude` takes away."""
    wanted = McpToolFilter(include=["read_*", "write"], exclude=["read_secret"])

    assert [tool for tool in ("read_file", "read_secret", "write", "run") if is_tool_enabled(tool, wanted)] == [
        "read_file",
        "write",
    ]


def test_people_see_variables_and_not_what_they_hold() -> None:
    """What is shown and logged about a server has no secrets in it."""
    program = read_server("s", McpServerSettings(command="x", args=["--token=${TOKEN}"]), ENVIRON)
    page = read_server("s", McpServerSettings(url="http://h/?key=${TOKEN}"), ENVIRON)

    assert (program.address, page.address) == ("x --token=${TOKEN}", "http://h/?key=${TOKEN}")
