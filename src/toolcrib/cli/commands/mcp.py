"""`toolcrib mcp`: lists the MCP servers and their tools, and removes servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click
import msgspec

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import (
    hint,
    note,
    one_line,
    plural,
    print_json,
    print_line,
    print_pairs,
    print_table,
)
from toolcrib.config.edit import remove_keys
from toolcrib.config.env_file import load_env_file, read_env_file, remove_env_value
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_secrets import own_variables, variables_in
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.manager import McpClientManager
from toolcrib.mcp.client.servers import ServerStatus, is_tool_enabled, read_server, token_store
from toolcrib.mcp.names import component
from toolcrib.registry.registry import ToolRegistry

if TYPE_CHECKING:
    from toolcrib.mcp.client.connection import Connection
    from toolcrib.mcp.client.tool_list import ToolListing

group = CommandGroup("mcp")


LIST_SECONDS = 20.0
NO_SERVERS = "There are no MCP servers; run `toolcrib mcp add NAME -- COMMAND` to add one."
STATES = {"waiting": "waiting to retry", "needs_login": "needs login"}
"""States that are shown as more than one word."""
LIST_CONNECT_SECONDS = 10.0
TOOLS_CONNECT_SECONDS = 30.0
MAX_SUMMARY_CHARS = 100


class UnknownServer(UnknownName):
    kind = "MCP server"


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server, offered or hidden."""

    server: str
    tool: str
    """Its name on the server."""
    name: str = ""
    """Its name in toolcrib; empty if it is hidden."""
    description: str = ""
    reads_only: bool = False
    asks: bool = True
    """Whether each call needs approval."""
    why_hidden: str = ""


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server, with its tools."""

    status: ServerStatus
    tools: tuple[ToolView, ...] = ()

    @property
    def offered(self) -> list[ToolView]:
        return [tool for tool in self.tools if tool.name]

    @property
    def hidden(self) -> list[ToolView]:
        return [tool for tool in self.tools if not tool.name]


def require_servers(settings: Settings, names: Iterable[str]) -> dict[str, McpServerSettings]:
    """The servers with these names; raises UnknownServer with the nearest names."""
    known = settings.mcp_servers
    chosen = dict.fromkeys(names)
    for name in chosen:
        if name not in known:
            advice = "`toolcrib mcp list --no-connect` lists them all" if known else NO_SERVERS
            raise UnknownServer(name, known, advice=advice)
    return {name: known[name] for name in chosen}


def complete_servers(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Server names for the shell."""
    return matching_names(lambda: load_settings().mcp_servers, incomplete)


def inspect_servers(settings: Settings, servers: Mapping[str, McpServerSettings], seconds: float) -> list[ServerView]:
    """Connect to these servers once, all at the same time; one that takes longer is reported as starting."""
    registry = ToolRegistry()
    hub = McpClientManager(settings, registry)
    try:
        hub.start(servers)
        hub.wait_ready_sync(seconds)
        return asyncio.run(_views(hub, registry))
    finally:
        hub.close()


async def _views(hub: McpClientManager, registry: ToolRegistry) -> list[ServerView]:
    statuses = [_as_tried(status) for status in hub.servers()]
    tools = await asyncio.gather(*(tools_of(hub, registry, status) for status in statuses))
    return [ServerView(status=status, tools=found) for status, found in zip(statuses, tools, strict=True)]


def _as_tried(status: ServerStatus) -> ServerStatus:
    """The result of the first attempt, even if the second has started."""
    is_retrying = status.state == "starting" and bool(status.last_error)
    return msgspec.structs.replace(status, state="waiting") if is_retrying else status


async def tools_of(hub: McpClientManager, registry: ToolRegistry, status: ServerStatus) -> tuple[ToolView, ...]:
    """The tools of a connected server; hidden ones with the reason."""
    if status.state != "ready":
        return ()
    try:
        listing = await hub.use(status.name, _listing, LIST_SECONDS)
    except (ToolcribError, TimeoutError):
        return ()
    names = hub.tool_names(status.name)
    settings = hub.settings.mcp_servers[status.name]
    found = []
    for tool in listing.tools:
        hints = tool.annotations
        why_hidden = ""
        if tool.name not in names:
            wanted = is_tool_enabled(tool.name, settings.tools)
            why_hidden = "another tool has the same name" if wanted else "excluded by the config (include, exclude)"
        found.append(
            ToolView(
                server=status.name,
                tool=tool.name,
                name=names.get(tool.name, ""),
                description=tool.description or tool.title or "",
                reads_only=hints is not None and hints.read_only_hint is True,
                asks=_asks(registry, names.get(tool.name, "")),
                why_hidden=why_hidden,
            )
        )
    listed = {tool.name for tool in listing.tools}
    # Tools that toolcrib adds for the server's resources and prompts.
    for own, name in names.items():
        if own not in listed:
            found.append(_added_tool(registry, status.name, own, name))
    found += [ToolView(server=status.name, tool=one.tool, why_hidden=one.reason) for one in listing.rejected]
    return tuple(found)


def _added_tool(registry: ToolRegistry, server: str, tool: str, name: str) -> ToolView:
    entry = registry.get_entry(name)
    description = entry.description.removeprefix(f"[{server}]").strip() if entry is not None else ""
    asks = _asks(registry, name)
    # As in our name for the tool, so that people can type it.
    tool = component(tool)
    return ToolView(server=server, tool=tool, name=name, description=description, reads_only=not asks, asks=asks)


def _asks(registry: ToolRegistry, name: str) -> bool:
    entry = registry.get_entry(name) if name else None
    return entry is None or entry.effects != ()


async def _listing(connection: Connection) -> ToolListing:
    return await connection.list_tools()


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@click.option("--no-connect", is_flag=True, help="Show only the config; connect to nothing.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=LIST_CONNECT_SECONDS,
    show_default=True,
    help="How many seconds to wait for slow servers.",
)
def list_servers(as_json: bool, no_connect: bool, timeout: float) -> None:
    """List the MCP servers and their states.

    Connects to all servers at once and disconnects again; a running chat has its own connections. A server is starting,
    ready, degraded (it keeps failing), waiting to retry, disabled, or needs login.

    Each object of --json has the keys name, state, transport, address, enabled, trust, protocol_version, tools, hidden
    (how many tools are hidden), pid, last_error and next_retry (seconds since 1970, or null).

    \b
    Examples:
      toolcrib mcp list
      toolcrib mcp list --no-connect
    """
    settings = load_settings()
    if settings.mcp_servers and not no_connect and not as_json:
        hint(f"Connecting to {plural(len(settings.mcp_servers), 'server')} (at most {timeout:g} seconds) …")
    views = _configured(settings) if no_connect else inspect_servers(settings, settings.mcp_servers, timeout)
    if as_json:
        print_json([_server_as_json(view, settings, no_connect=no_connect) for view in views])
        return
    if not views:
        print_line(NO_SERVERS)
        return
    if no_connect:
        print_table(
            ["name", "state", "transport", "command or address"],
            [
                [view.status.name, _enabled_or_disabled(view), view.status.transport, view.status.address]
                for view in views
            ],
        )
    else:
        print_table(["name", "state", "transport", "protocol", "tools"], [_server_row(view) for view in views])
    # Too long for a table.
    troubles = [(view.status.name, _trouble(view.status, no_connect=no_connect)) for view in views]
    if any(trouble for _, trouble in troubles):
        print_line()
        print_pairs([(name, trouble) for name, trouble in troubles if trouble])
    if settings.safe_mode:
        note("Safe mode is on, so no server is used; unset TOOLCRIB_SAFE_MODE to leave it.")
    hint("Run `toolcrib mcp test NAME` to diagnose a server, or `toolcrib mcp tools NAME` to see its tools.")


def _configured(settings: Settings) -> list[ServerView]:
    """The servers in the config, without connecting to any."""
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


def _enabled_or_disabled(view: ServerView) -> str:
    return "disabled" if view.status.state == "disabled" else "enabled"


def _server_row(view: ServerView) -> list[str]:
    status = view.status
    state = STATES.get(status.state, status.state)
    tools = "-"
    if status.state == "ready":
        hidden = f" ({len(view.hidden)} hidden)" if view.hidden else ""
        tools = f"{len(view.offered)}{hidden}"
    return [status.name, state, status.transport, status.protocol_version or "-", tools]


def _trouble(status: ServerStatus, *, no_connect: bool) -> str:
    """What is wrong with a server; empty if nothing is."""
    if status.state == "ready" and not no_connect:
        return ""
    if status.state == "starting" and not no_connect:
        return status.last_error or "no response yet; use `--timeout` to wait longer"
    return status.last_error


def _server_as_json(view: ServerView, settings: Settings, *, no_connect: bool) -> JsonObject:
    status, known = view.status, settings.mcp_servers[view.status.name]
    state = _enabled_or_disabled(view) if no_connect else status.state
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


@group.command("tools")
@click.argument("names", metavar="[NAME…]", nargs=-1, shell_complete=complete_servers)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, hidden tools included.")
@click.option("--all", "show_all", is_flag=True, help="Also show hidden tools, and why they are hidden.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=TOOLS_CONNECT_SECONDS,
    show_default=True,
    help="How many seconds to wait for slow servers.",
)
def list_server_tools(names: tuple[str, ...], as_json: bool, show_all: bool, timeout: float) -> int:
    """List the tools of MCP servers, and why a tool is hidden.

    Connects to the named servers, or to all of them. If a tool has another name on its server, that name comes before
    the description. A tool that `needs approval` asks before each call; change that with `toolcrib mcp add --trust` or
    with trusted_tools in the server's config. Exit code 1 if a server could not be reached.

    Each object of --json has the keys server, tool (its name on the server), name (ours; empty if hidden), description,
    read_only, asks and why_hidden.

    \b
    Examples:
      toolcrib mcp tools files
      toolcrib mcp tools --all
    """
    settings = load_settings()
    servers = require_servers(settings, names) if names else settings.mcp_servers
    views = inspect_servers(settings, servers, timeout)
    failed = [view for view in views if view.status.state != "ready" and (names or view.status.state != "disabled")]
    if as_json:
        print_json([_tool_as_json(tool) for view in views for tool in view.tools])
    elif not views:
        print_line(NO_SERVERS)
    else:
        _print_tools(views, show_all)
    for view in failed:
        note(f"{view.status.name}: {_why_not(view)}; run `toolcrib mcp test {view.status.name}` for details")
    return 1 if failed else 0


def _print_tools(views: list[ServerView], show_all: bool) -> None:
    offered = [tool for view in views for tool in view.offered]
    hidden = [tool for view in views for tool in view.hidden]
    if offered:
        print_table(
            ["name", "calls", "description"],
            [[tool.name, "needs approval" if tool.asks else "runs", _summary(tool)] for tool in offered],
        )
    elif any(view.status.state == "ready" for view in views):
        print_line("None of these servers offers any tools.")
    if hidden and show_all:
        print_line()
        print_table(
            ["hidden", "server", "reason"], [[one_line(tool.tool), tool.server, tool.why_hidden] for tool in hidden]
        )
    elif hidden:
        note(f"{plural(len(hidden), 'tool')} hidden; add --all to see why.")
    hint("Run `toolcrib mcp test SERVER --call TOOL --args JSON` to call a tool.")


def _summary(tool: ToolView) -> str:
    """The first line of its description, after its name on the server if ours does not end with that."""
    first = next((line.strip() for line in tool.description.splitlines() if line.strip()), "")
    if not tool.name.endswith(f"__{tool.tool}"):
        first = f"{tool.tool}: {first}" if first else tool.tool
    return first if len(first) <= MAX_SUMMARY_CHARS else first[: MAX_SUMMARY_CHARS - 1] + "…"


def _why_not(view: ServerView) -> str:
    if view.status.state == "starting":
        return "no response yet"
    return view.status.last_error or STATES.get(view.status.state, view.status.state)


def _tool_as_json(tool: ToolView) -> JsonObject:
    return {
        "server": tool.server,
        "tool": tool.tool,
        "name": tool.name,
        "description": tool.description,
        "read_only": tool.reads_only,
        "asks": tool.asks and bool(tool.name),
        "why_hidden": tool.why_hidden,
    }


@group.command("remove")
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_servers)
def remove_servers(names: tuple[str, ...]) -> None:
    """Remove MCP servers from the config.

    Also removes the variables that `toolcrib mcp add` created for their keys and tokens. Keeps comments and everything
    else in the config.

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
        note(f"The login for {name!r} is still saved; run `toolcrib mcp logout {name}` to delete it.")


def _has_login(settings: Settings, name: str, server: McpServerSettings) -> bool:
    return bool(token_store(read_server(name, server, {}), settings.home).read_any().server)


def _variables_of(settings: Settings, going: set[str]) -> list[str]:
    """The variables in `.env` that were created for these servers and that no other server uses."""
    staying = [known for name, known in settings.mcp_servers.items() if name not in going]
    needed = {variable for known in staying for variable in variables_in(msgspec.to_builtins(known))}
    created = {
        variable for name in going for variable in own_variables(name, msgspec.to_builtins(settings.mcp_servers[name]))
    }
    return sorted((created - needed) & read_env_file(settings.home.env_file).keys())


group.lazy("add", "mcp_add:add_servers", "Add an MCP server to the config.")
group.lazy("test", "mcp_check:test_server", "Test an MCP server and show how to fix it.")
group.lazy("login", "mcp_login:login", "Log in to an MCP server that requires it.")
group.lazy("logout", "mcp_login:logout", "Delete the saved login of an MCP server.")
group.lazy("serve", "mcp_serve:serve_tools", "Serve toolcrib's tools over MCP.", extra="mcp")
