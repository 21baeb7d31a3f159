"""Which setting a dotted key means."""

from __future__ import annotations

import pytest

from toolcrib.config.schema import find_setting
from toolcrib.core.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("mcp_servers.shop", ("mcp_servers", "shop")),
        ("mcp_servers.shop.command", ("mcp_servers", "shop", "command")),
        ("mcp_servers.shop.env.API_KEY", ("mcp_servers", "shop", "env", "API_KEY")),
        ("mcp_servers.shop.tools.prompts", ("mcp_servers", "shop", "tools", "prompts")),
        ("mcp_servers.shop.oauth.client_id", ("mcp_servers", "shop", "oauth", "client_id")),
        ("mcp_servers.my.shop.command", ("mcp_servers", "my.shop", "command")),
        ("mcp_servers.my.shop.sampling.ask", ("mcp_servers", "my.shop", "sampling", "ask")),
        ("mcp_servers.shop.headers.X-A.B", ("mcp_servers", "shop", "headers", "X-A.B")),
        ("tools.timeouts.web.search", ("tools", "timeouts", "web.search")),
    ],
)
def test_keys_inside_of_what_the_user_named_are_found(key: str, path: tuple[str, ...]) -> None:
    """Names may hold dots, and settings may lie at any depth below them."""
    assert find_setting(key).path == path


@pytest.mark.parametrize("key", ["mcp_servers.shop.comand", "mcp_servers.shop.tools.promts"])
def test_a_misspelt_key_is_named_and_makes_no_new_item(key: str) -> None:
    """A slip in a key does not become the name of another server."""
    with pytest.raises(ConfigError, match=r"unknown key 'mcp_servers\.shop.*did you mean"):
        find_setting(key)
