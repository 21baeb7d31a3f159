"""`toolcrib mcp remove NAME…`."""

from __future__ import annotations

import click
import msgspec

from toolcrib.cli.mcp_secrets import own_variables, variables_in
from toolcrib.cli.mcp_servers import complete_servers, require_servers
from toolcrib.cli.output import note
from toolcrib.config.edit import remove_keys
from toolcrib.config.env_file import read_env_file, remove_env_value
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.mcp.client.servers import read_server
from toolcrib.mcp.client.token_store import token_store


@click.command(name="remove")
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_servers)
def command(names: tuple[str, ...]) -> None:
    """Remove MCP servers from the config.

    The variables that `toolcrib mcp add` made for their keys and tokens go with them. Comments and everything else in
    the config stay as they are.

    \b
    Example:
      toolcrib mcp remove files
    """
    settings = load_settings()
    going = require_servers(settings, names)
    variables = _variables_of(settings, set(going))
    logins = [name for name, server in going.items() if _has_login(settings, name, server)]
    remove_keys(settings.home, [("mcp_servers", name) for name in going])
    for variable in variables:
        remove_env_value(settings.home, variable)
    for name in going:
        note(f"Removed {name!r} from {settings.home.config_file}.")
    if variables:
        note(f"Removed {', '.join(variables)} from {settings.home.env_file}.")
    for name in logins:
        note(f"The login at {name!r} is still kept; `toolcrib mcp logout {name}` forgets it.")


def _has_login(settings: Settings, name: str, server: McpServerSettings) -> bool:
    return bool(token_store(read_server(name, server, {}), settings.home).read_any().server)


def _variables_of(settings: Settings, going: set[str]) -> list[str]:
    """The variables of `.env` that were made for these servers and that no other server names."""
    staying = [known for name, known in settings.mcp_servers.items() if name not in going]
    needed = {variable for known in staying for variable in variables_in(msgspec.to_builtins(known))}
    made = {
        variable for name in going for variable in own_variables(name, msgspec.to_builtins(settings.mcp_servers[name]))
    }
    return sorted((made - needed) & read_env_file(settings.home.env_file).keys())
