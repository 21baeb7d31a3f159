"""What the command line says about the web tools: availability with a remedy, and toolsets that have tools."""

from __future__ import annotations

import json

import pytest

from tests.cli.cli_program import Program


def state_of(toolcrib: Program, tool: str, **environ: str) -> dict[str, object]:
    listed = json.loads(toolcrib("tools", "list", "--json", **environ).stdout)
    return next(one for one in listed if one["name"] == tool)


def test_searching_needs_a_key_once_free_services_are_ruled_out(toolcrib: Program):
    """`web.keyless: false` without a key makes the tool unavailable, with a remedy; a key makes it available again."""
    assert state_of(toolcrib, "web_search")["available"] is True
    toolcrib.write("config.yaml", "web: {keyless: false}\n")

    found = state_of(toolcrib, "web_search")

    assert found["available"] is False
    assert "toolcrib setup web_search" in str(found["remedy"])
    assert state_of(toolcrib, "web_search", BRAVE_SEARCH_API_KEY="key-0123456789")["available"] is True
    assert state_of(toolcrib, "web_extract")["available"] is True


@pytest.mark.parametrize("config", ["{keyless: true}", "{keyless: false, endpoints: {searxng: 'http://a.example'}}"])
def test_searching_is_available_with_any_provider(toolcrib: Program, config: str):
    """Free services or an address of one's own are enough."""
    toolcrib.write("config.yaml", f"web: {config}\n")

    assert state_of(toolcrib, "web_search")["available"] is True


def test_toolsets_without_an_available_tool_are_folded_away(toolcrib: Program):
    """`toolsets list` shows what can be used; --all shows the rest, and --json has everything."""
    shown = toolcrib("toolsets", "list").stdout
    everything = toolcrib("toolsets", "list", "--all").stdout
    names = [one["name"] for one in json.loads(toolcrib("toolsets", "list", "--json").stdout)]

    def listed(page: str) -> list[str]:
        return [line.split()[0] for line in page.splitlines()[1:]]

    assert "web" in listed(shown)
    assert "homeassistant" not in listed(shown)
    assert "homeassistant" in listed(everything)
    assert sorted(names) == sorted(listed(everything))
