"""`toolcrib mcp login` and `logout`: OAuth in a browser, here or on another machine."""

from __future__ import annotations

import asyncio
import shlex
from types import ModuleType
from urllib.parse import urlsplit

import click
from msgspec.structs import replace

from toolcrib.cli.browser_login import LOGIN_SECONDS, BrowserLogin
from toolcrib.cli.commands.mcp import STATES, complete_servers, inspect_servers, require_servers
from toolcrib.cli.output import error_line, note, plural, print_line
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.mcp.client.servers import Server, read_server, token_store
from toolcrib.web.redirect_listener import HOST, open_listener
from toolcrib.web.token_store import StoredLogin, TokenStore


@click.command(name="login")
@click.argument("name", shell_complete=complete_servers)
@click.option("--no-browser", is_flag=True, help="Only print the address; do not open a browser.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=LOGIN_SECONDS,
    show_default=True,
    help="How many seconds to wait for the login.",
)
def login(name: str, no_browser: bool, timeout: float) -> int:
    """Log in to an MCP server that requires it.

    Prints the login address and opens it in a browser, if there is one. If the browser runs on another machine, paste
    the address of the last page, which will not load there. The login is saved in your home folder, readable only by
    you, and renewed automatically; `toolcrib mcp logout NAME` deletes it.

    The server needs `auth: oauth` in the config. Exit code 1 if the login fails or the server is not usable afterwards.

    \b
    Examples:
      toolcrib mcp login tracker
      toolcrib mcp login tracker --no-browser
    """
    settings = load_settings()
    server = login_server(settings, name)
    asyncio.run(_log_in(server, token_store(server, settings.home), not no_browser, timeout))
    note(f"Logged in to {name!r}.")
    return _show(settings, name)


def login_server(settings: Settings, name: str) -> Server:
    """The server with this name, if it supports login; else raises UsageError with what to change."""
    [configured] = require_servers(settings, [name]).values()
    variables = dict(environment())
    load_env_file(settings.home, variables)
    server = read_server(name, replace(configured, enabled=True), variables)
    if server.problem:
        raise UsageError(f"cannot log in to {name!r}: {server.problem}")
    if server.transport == "stdio":
        raise UsageError(f"{name!r} is a local program without a login; set what it needs in mcp_servers.{name}.env")
    if server.settings.auth != "oauth":
        raise UsageError(f"{name!r} does not use OAuth; run `toolcrib config set mcp_servers.{name}.auth oauth` first")
    return server


async def _log_in(server: Server, store: TokenStore, opens_browser: bool, seconds: float) -> None:
    async with open_listener(_ports(server, store), remedy=", or set another oauth.redirect_port") as listener:
        advice = f", after `toolcrib mcp logout {shlex.quote(server.name)}` if the page did not recognise toolcrib"
        ask = BrowserLogin(listener, opens_browser=opens_browser, seconds=seconds, advice=advice)
        await _oauth().log_in(server, store, ask, listener.redirect_uri)


def _ports(server: Server, store: TokenStore) -> list[int]:
    """The ports to listen on: the configured one, else those registered with the server, else any."""
    if server.settings.oauth.redirect_port:
        return [server.settings.oauth.redirect_port]
    return [*_registered_ports(store.read()), 0]


def _registered_ports(kept: StoredLogin) -> list[int]:
    try:
        found = [urlsplit(uri) for uri in (kept.client or {}).get("redirect_uris") or []]
        return [uri.port for uri in found if uri.hostname == HOST and uri.port]
    except (AttributeError, TypeError, ValueError):
        return []  # the saved data came from the server, and may be anything


def _show(settings: Settings, name: str) -> int:
    configured = replace(settings.mcp_servers[name], enabled=True)
    [view] = inspect_servers(settings, {name: configured}, configured.connect_timeout)
    status = view.status
    if status.state != "ready":
        state = STATES.get(status.state, status.state)
        error_line(
            f"{name!r} is not usable yet ({state}): {status.last_error}; run `toolcrib mcp test {name}` for details"
        )
        return 1
    print_line(f"{name!r} offers {plural(len(view.offered), 'tool')}.")
    return 0


@click.command(name="logout")
@click.argument("name", shell_complete=complete_servers)
def logout(name: str) -> None:
    """Delete the saved login of an MCP server.

    Also asks the server to revoke it, if the server supports that. Works for servers that are no longer in the config
    too.

    \b
    Example:
      toolcrib mcp logout tracker
    """
    settings = load_settings()
    configured = settings.mcp_servers.get(name, McpServerSettings())
    variables = dict(environment())
    load_env_file(settings.home, variables)
    server = read_server(name, configured, variables)
    store = token_store(server, settings.home)
    kept = store.read_any()
    if not kept.server:
        require_servers(settings, [name])
    server = read_server(name, replace(configured, url=kept.url, transport="http"), variables)
    was_there, was_told = asyncio.run(_oauth().log_out(store, server))
    if not was_there:
        note(f"There was no saved login for {name!r}.")
    elif was_told or kept.tokens is None:
        note(f"Deleted the login for {name!r}.")
    else:
        note(f"Deleted the login for {name!r} here; it stays valid on the server until it expires.")


def _oauth() -> ModuleType:
    """The module that talks to the server; it imports the SDK, which takes a second."""
    try:
        from toolcrib.mcp.client import login as oauth  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(f"MCP needs more packages ({error}); run `pip install 'toolcrib[mcp]'`") from error
    return oauth
