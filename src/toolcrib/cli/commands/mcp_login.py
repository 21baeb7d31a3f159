"""`toolcrib mcp login NAME`."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import click
from msgspec.structs import replace

from toolcrib.cli.mcp_browser import BrowserLogin
from toolcrib.cli.mcp_servers import STATES, complete_servers, look_at, require_servers
from toolcrib.cli.output import error_line, note, plural, print_line
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt
from toolcrib.core.errors import UsageError
from toolcrib.mcp.client.redirect_listener import HOST, open_listener
from toolcrib.mcp.client.servers import Server, read_server
from toolcrib.mcp.client.token_store import StoredLogin, TokenStore, token_store

LOGIN_SECONDS = 300.0


@click.command(name="login")
@click.argument("name", shell_complete=complete_servers)
@click.option("--no-browser", is_flag=True, help="Open no browser; only print the address.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=LOGIN_SECONDS,
    show_default=True,
    help="How many seconds to wait for the login.",
)
def command(name: str, no_browser: bool, timeout: float) -> int:
    """Log in to an MCP server that wants it.

    Prints the address to log in at and opens it in a browser, where there is one. After the login the browser comes
    back to this machine; if it runs on another one, paste the address of the page that it could not open. What the
    server gives is kept in the home, for you alone, and renewed by itself; `toolcrib mcp logout NAME` forgets it.

    The server has to have `auth: oauth` in the config. Exit code 1 when the login failed, or when the server cannot be
    used after it.

    \b
    Examples:
      toolcrib mcp login tracker
      toolcrib mcp login tracker --no-browser
    """
    settings = load_settings()
    server = login_server(settings, name)
    try:
        asyncio.run(_log_in(server, token_store(server, settings.home), not no_browser, timeout))
    except ModuleNotFoundError as error:
        raise UsageError(f"MCP needs more packages ({error}); type `pip install 'toolcrib[mcp]'`") from error
    note(f"Logged in at {name!r}.")
    return _show(settings, name)


def login_server(settings: Settings, name: str) -> Server:
    """The server of this name, if somebody can log in there; else an error that says what to change."""
    [configured] = require_servers(settings, [name]).values()
    variables = dict(environment())
    load_env_file(settings.home, variables)
    server = read_server(name, replace(configured, enabled=True), variables)
    if server.problem:
        raise UsageError(f"nobody can log in at {name!r}: {server.problem}")
    if server.transport == "stdio":
        raise UsageError(
            f"{name!r} is a program on this machine, and has no login; what it needs is set in mcp_servers.{name}.env"
        )
    if server.settings.auth != "oauth":
        raise UsageError(
            f"{name!r} is not set up for a login; type `toolcrib config set mcp_servers.{name}.auth oauth` first"
        )
    return server


async def _log_in(server: Server, store: TokenStore, opens_browser: bool, seconds: float) -> None:
    # The SDK takes a second to load, and other commands do without.
    from toolcrib.mcp.client.login import log_in  # noqa: PLC0415

    async with open_listener(_ports(server, store)) as listener:
        ask = BrowserLogin(server.name, listener, opens_browser=opens_browser, seconds=seconds)
        await log_in(server, store, ask, listener.redirect_uri)


def _ports(server: Server, store: TokenStore) -> list[int]:
    """Where to listen: on the port that was set, else on the one that we are registered with, else on any."""
    if server.settings.oauth.redirect_port:
        return [server.settings.oauth.redirect_port]
    # What is kept came from the server, and through a file.
    return [*(attempt(_registered_ports, store.read()).value or ()), 0]


def _registered_ports(kept: StoredLogin) -> list[int]:
    found = [urlsplit(uri) for uri in (kept.client or {}).get("redirect_uris") or []]
    return [uri.port for uri in found if uri.hostname == HOST and uri.port]


def _show(settings: Settings, name: str) -> int:
    configured = replace(settings.mcp_servers[name], enabled=True)
    [view] = look_at(settings, {name: configured}, configured.connect_timeout)
    status = view.status
    if status.state != "ready":
        state = STATES.get(status.state, status.state)
        error_line(f"{name!r} cannot be used yet ({state}): {status.last_error}; `toolcrib mcp test {name}` says more")
        return 1
    print_line(f"{name!r} offers {plural(len(view.offered), 'tool')}.")
    return 0
