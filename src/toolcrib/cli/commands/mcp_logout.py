"""`toolcrib mcp logout NAME`."""

from __future__ import annotations

import asyncio

import click
from msgspec.structs import replace

from toolcrib.cli.mcp_servers import complete_servers, require_servers
from toolcrib.cli.output import note
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.core.errors import UsageError
from toolcrib.mcp.client.servers import Server, read_server
from toolcrib.mcp.client.token_store import TokenStore, token_store


@click.command(name="logout")
@click.argument("name", shell_complete=complete_servers)
def command(name: str) -> None:
    """Forget the login of an MCP server.

    Deletes what is kept of it in the home, and tells the server to forget it too, where it can be told. Works also for
    a server that the config does not have any more.

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
    try:
        was_there, was_told = asyncio.run(_log_out(store, server))
    except ModuleNotFoundError as error:
        raise UsageError(f"MCP needs more packages ({error}); type `pip install 'toolcrib[mcp]'`") from error
    if not was_there:
        note(f"There was no login at {name!r}.")
    elif was_told or kept.tokens is None:
        note(f"The login at {name!r} is forgotten.")
    else:
        note(f"The login at {name!r} is forgotten here; the server could not be told, and ends it in its own time.")


async def _log_out(store: TokenStore, server: Server) -> tuple[bool, bool]:
    # The SDK takes a second to load, and other commands do without.
    from toolcrib.mcp.client.login import log_out  # noqa: PLC0415

    return await log_out(store, server)
