"""Secrets that somebody wrote out in the settings of servers."""

from __future__ import annotations

import json

import pytest

from tests.cli.cli_program import Program

KEY = "sk-" + "a1" * 20
SERVERS = {
    "web": {"url": f"https://me:{KEY}@example.com/x", "headers": {"X-Api-Key": "plain-looking"}},
    "program": {"command": "prog", "args": [f"--token={KEY}"], "env": {"MY_TOKEN": "also-plain", "PLACE": "here"}},
    "kept": {"url": "https://example.com", "headers": {"Authorization": "Bearer ${WEB_TOKEN}"}},
}


@pytest.mark.parametrize(
    "command",
    [
        ["config", "show"],
        ["config", "show", "--json"],
        ["mcp", "list", "--no-connect"],
        ["mcp", "list", "--no-connect", "--json"],
    ],
)
def test_no_list_of_settings_shows_them(toolcrib: Program, command: list[str]) -> None:
    """What people paste into a question to others has masks where the secrets are, and all the rest as it is."""
    toolcrib.write("config.yaml", json.dumps({"mcp_servers": SERVERS}))

    shown = toolcrib(*command).stdout

    assert not [secret for secret in (KEY, "plain-looking", "also-plain") if secret in shown]
    assert "example.com" in shown
    if command[0] == "config":
        assert "here" in shown
        assert "${WEB_TOKEN}" in shown
