"""`toolcrib mcp tools [NAME…]`."""

from __future__ import annotations

import click

from toolcrib.cli.mcp_servers import (
    NO_SERVERS,
    STATES,
    ServerView,
    ToolView,
    complete_servers,
    look_at,
    require_servers,
)
from toolcrib.cli.output import hint, note, one_line, plural, print_json, print_line, print_table
from toolcrib.config.load import load_settings
from toolcrib.core.types import JsonObject

CONNECT_SECONDS = 30.0
MAX_SUMMARY_CHARS = 100


@click.command(name="tools")
@click.argument("names", metavar="[NAME…]", nargs=-1, shell_complete=complete_servers)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs; with the hidden ones.")
@click.option("--all", "show_all", is_flag=True, help="Also show the tools that are not offered, and why.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=CONNECT_SECONDS,
    show_default=True,
    help="How many seconds to wait for servers that are slow to start.",
)
def command(names: tuple[str, ...], as_json: bool, show_all: bool, timeout: float) -> int:
    """List the tools of MCP servers, and why one is not offered.

    Connects to the servers that are named, or to all. Where our name of a tool is not the server's own, that one stands
    before its description. A call of a tool that `asks` is asked about, unless you allowed it; `toolcrib mcp add
    --trust` and the key trusted_tools of the server change that. Exit code 1 when a server could not be asked.

    Each object of --json has the keys server, tool (the server's own name), name (ours, empty for a hidden one),
    description, read_only, asks and why_hidden.

    \b
    Examples:
      toolcrib mcp tools files
      toolcrib mcp tools --all
    """
    settings = load_settings()
    servers = require_servers(settings, names) if names else settings.mcp_servers
    views = look_at(settings, servers, timeout)
    failed = [view for view in views if view.status.state != "ready" and (names or view.status.state != "disabled")]
    if as_json:
        print_json([_as_json(tool) for view in views for tool in view.tools])
    elif not views:
        print_line(NO_SERVERS)
    else:
        _print(views, show_all)
    for view in failed:
        note(f"{view.status.name}: {_why_not(view)}; `toolcrib mcp test {view.status.name}` says more")
    return 1 if failed else 0


def _print(views: list[ServerView], show_all: bool) -> None:
    offered = [tool for view in views for tool in view.offered]
    hidden = [tool for view in views for tool in view.hidden]
    if offered:
        print_table(
            ["name", "call", "what it does"],
            [[tool.name, "asks" if tool.asks else "runs", _summary(tool)] for tool in offered],
        )
    elif any(view.status.state == "ready" for view in views):
        print_line("None of these servers offers a tool.")
    if hidden and show_all:
        print_line()
        print_table(
            ["not offered", "server", "why"], [[one_line(tool.tool), tool.server, tool.why_hidden] for tool in hidden]
        )
    elif hidden:
        note(f"{plural(len(hidden), 'tool')} not offered; --all says why.")
    hint("`toolcrib mcp test SERVER --call TOOL --args JSON` calls one.")


def _summary(tool: ToolView) -> str:
    """The first line of its description, after the server's own name of the tool where ours does not end in it."""
    first = next((line.strip() for line in tool.description.splitlines() if line.strip()), "")
    if not tool.name.endswith(f"__{tool.tool}"):
        first = f"{tool.tool}: {first}" if first else tool.tool
    return first if len(first) <= MAX_SUMMARY_CHARS else first[: MAX_SUMMARY_CHARS - 1] + "…"


def _why_not(view: ServerView) -> str:
    if view.status.state == "starting":
        return "it has not answered yet"
    return view.status.last_error or STATES.get(view.status.state, view.status.state)


def _as_json(tool: ToolView) -> JsonObject:
    return {
        "server": tool.server,
        "tool": tool.tool,
        "name": tool.name,
        "description": tool.description,
        "read_only": tool.reads_only,
        "asks": tool.asks and bool(tool.name),
        "why_hidden": tool.why_hidden,
    }
