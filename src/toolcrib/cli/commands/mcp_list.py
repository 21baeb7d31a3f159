"""`toolcrib mcp list`."""

from __future__ import annotations

import click

from toolcrib.cli.mcp_servers import NO_SERVERS, STATES, ServerView, look_at
from toolcrib.cli.output import hint, note, plural, print_json, print_line, print_pairs, print_table
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.servers import ServerStatus, read_server

CONNECT_SECONDS = 10.0


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
@click.option("--no-connect", is_flag=True, help="Only say what the config says; start and ask nothing.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=CONNECT_SECONDS,
    show_default=True,
    help="How many seconds to wait for servers that are slow to start.",
)
def command(as_json: bool, no_connect: bool, timeout: float) -> None:
    """List the MCP servers, and how each is.

    Connects to all of them at once, says how each is, and leaves them again; a chat that is running has connections of
    its own. A server is starting, ready, degraded (it fails again and again), waiting to retry, disabled, or needs
    login.

    Each object of --json has the keys name, state, transport, address, enabled, trust, protocol_version, tools, hidden
    (how many are not offered), pid, last_error and next_retry (seconds since 1970, or null).

    \b
    Examples:
      toolcrib mcp list
      toolcrib mcp list --no-connect
    """
    settings = load_settings()
    if settings.mcp_servers and not no_connect and not as_json:
        hint(f"Asking {plural(len(settings.mcp_servers), 'server')}, for at most {timeout:g} seconds …")
    views = _configured(settings) if no_connect else look_at(settings, settings.mcp_servers, timeout)
    if as_json:
        print_json([_as_json(view, settings, no_connect=no_connect) for view in views])
        return
    if not views:
        print_line(NO_SERVERS)
        return
    if no_connect:
        print_table(
            ["name", "state", "transport", "command or address"],
            [[view.status.name, _state(view), view.status.transport, view.status.address] for view in views],
        )
    else:
        print_table(["name", "state", "transport", "protocol", "tools"], [_row(view) for view in views])
    # Too long for a column.
    troubles = [(view.status.name, _trouble(view.status, no_connect=no_connect)) for view in views]
    if any(trouble for _, trouble in troubles):
        print_line()
        print_pairs([(name, trouble) for name, trouble in troubles if trouble])
    if settings.safe_mode:
        note("Safe mode is on, so none of them is used; unset TOOLCRIB_SAFE_MODE to end it.")
    hint("`toolcrib mcp test NAME` tries one and says what to do, `toolcrib mcp tools NAME` shows its tools.")


def _configured(settings: Settings) -> list[ServerView]:
    """What the config says, without asking any server."""
    environ = dict(environment())
    load_env_file(settings.home, environ)
    views = []
    for name in sorted(settings.mcp_servers):
        server = read_server(name, settings.mcp_servers[name], environ)
        status = ServerStatus(
            name=name,
            state="disabled" if server.problem else "starting",
            last_error=server.problem,
            transport=server.transport,
            address=server.address,
        )
        views.append(ServerView(status=status))
    return views


def _state(view: ServerView) -> str:
    return "disabled" if view.status.state == "disabled" else "enabled"


def _row(view: ServerView) -> list[str]:
    status = view.status
    state = STATES.get(status.state, status.state)
    tools = "-"
    if status.state == "ready":
        hidden = f" ({len(view.hidden)} hidden)" if view.hidden else ""
        tools = f"{len(view.offered)}{hidden}"
    return [status.name, state, status.transport, status.protocol_version or "-", tools]


def _trouble(status: ServerStatus, *, no_connect: bool) -> str:
    """What is wrong; empty when nothing is."""
    if status.state == "ready" and not no_connect:
        return ""
    if status.state == "starting" and not no_connect:
        return status.last_error or "it has not answered yet; `--timeout` gives it more seconds"
    return status.last_error


def _as_json(view: ServerView, settings: Settings, *, no_connect: bool) -> JsonObject:
    status, known = view.status, settings.mcp_servers[view.status.name]
    state = _state(view) if no_connect else status.state
    return {
        "name": status.name,
        "state": state,
        "transport": status.transport,
        "address": status.address,
        "enabled": known.enabled,
        "trust": known.trust,
        "protocol_version": status.protocol_version,
        "tools": len(view.offered),
        "hidden": len(view.hidden),
        "pid": status.pid,
        "last_error": "" if status.state == "ready" else status.last_error,
        "next_retry": status.next_retry,
    }
