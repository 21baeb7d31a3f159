"""The MCP servers of the config for the commands that look at them: by name, and as they are when connected."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.mcp_secrets import own_variables, variables_in
from toolcrib.cli.output import (
    hint,
    note,
    one_line,
    plural,
    print_json,
    print_line,
    print_pairs,
    print_table,
    stdout_reserved,
)
from toolcrib.cli.runtime import complete_toolsets
from toolcrib.config.edit import remove_keys
from toolcrib.config.env_file import load_env_file, read_env_file, remove_env_value
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt_async
from toolcrib.core.errors import UnknownName, UsageError
from toolcrib.core.types import JsonObject
from toolcrib.mcp.hub import McpHub
from toolcrib.mcp.names import component
from toolcrib.mcp.servers import is_wanted, read_server
from toolcrib.mcp.status import ServerStatus
from toolcrib.mcp.token_store import token_store
from toolcrib.registry.registry import ToolRegistry

if TYPE_CHECKING:
    from toolcrib.mcp.connection import Connection
    from toolcrib.mcp.listing import Listing
    from toolcrib.mcp.serve_approvals import ServePolicy
from toolcrib.cli.group import CommandGroup

group = CommandGroup("mcp")


LIST_SECONDS = 20.0
NO_SERVERS = "There are no MCP servers; `toolcrib mcp add NAME -- COMMAND` adds one."
STATES = {"waiting": "waiting to retry", "needs_login": "needs login"}
"""States that people read as more than one word."""


class UnknownServer(UnknownName):
    kind = "MCP server"


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of a server, offered or not."""

    server: str
    tool: str
    """As the server calls it."""
    name: str = ""
    """As we call it; empty when it is not offered."""
    description: str = ""
    reads_only: bool = False
    asks: bool = True
    """Whether somebody is asked before each call."""
    why_hidden: str = ""


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """One server at one moment, with its tools."""

    status: ServerStatus
    tools: tuple[ToolView, ...] = ()

    @property
    def offered(self) -> list[ToolView]:
        return [tool for tool in self.tools if tool.name]

    @property
    def hidden(self) -> list[ToolView]:
        return [tool for tool in self.tools if not tool.name]


def require_servers(settings: Settings, names: Iterable[str]) -> dict[str, McpServerSettings]:
    """The servers of these names; raises UnknownServer with the nearest ones."""
    known = settings.mcp_servers
    chosen = dict.fromkeys(names)
    for name in chosen:
        if name not in known:
            advice = "`toolcrib mcp list --no-connect` shows all of them" if known else NO_SERVERS
            raise UnknownServer(name, known, advice=advice)
    return {name: known[name] for name in chosen}


def complete_servers(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of servers for the shell."""
    return matching_names(lambda: load_settings().mcp_servers, incomplete)


def look_at(settings: Settings, servers: Mapping[str, McpServerSettings], seconds: float) -> list[ServerView]:
    """How these servers are, each tried once, all at the same time; one that takes longer is still starting."""
    registry = ToolRegistry()
    hub = McpHub(settings, registry)
    try:
        hub.start(servers)
        hub.wait_ready_sync(seconds)
        return asyncio.run(_views(hub, registry))
    finally:
        hub.close()


async def _views(hub: McpHub, registry: ToolRegistry) -> list[ServerView]:
    statuses = [_as_tried(status) for status in hub.servers()]
    tools = await asyncio.gather(*(tools_of(hub, registry, status) for status in statuses))
    return [ServerView(status=status, tools=found) for status, found in zip(statuses, tools, strict=True)]


def _as_tried(status: ServerStatus) -> ServerStatus:
    """How the first try went, also if the next one has begun meanwhile."""
    is_retrying = status.state == "starting" and bool(status.last_error)
    return msgspec.structs.replace(status, state="waiting") if is_retrying else status


async def tools_of(hub: McpHub, registry: ToolRegistry, status: ServerStatus) -> tuple[ToolView, ...]:
    """The tools of a server that is connected, those that are not offered with the reason."""
    if status.state != "ready":
        return ()
    listing, _ = await attempt_async(hub.use(status.name, _listing, LIST_SECONDS))
    if listing is None:
        return ()
    names = hub.tool_names(status.name)
    settings = hub.settings.mcp_servers[status.name]
    found = []
    for tool in listing.tools:
        hints = tool.annotations
        why_hidden = ""
        if tool.name not in names:
            wanted = is_wanted(tool.name, settings.tools)
            why_hidden = "another tool has its name" if wanted else "the config leaves it out (include, exclude)"
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
    # Made here for its resources and prompts.
    for own, name in names.items():
        if own not in listed:
            found.append(_made_here(registry, status.name, own, name))
    found += [ToolView(server=status.name, tool=one.tool, why_hidden=one.reason) for one in listing.set_aside]
    return tuple(found)


def _made_here(registry: ToolRegistry, server: str, tool: str, name: str) -> ToolView:
    entry = registry.get_entry(name)
    description = entry.description.removeprefix(f"[{server}]").strip() if entry is not None else ""
    asks = _asks(registry, name)
    # As it stands in our name, so that people can type it.
    tool = component(tool)
    return ToolView(server=server, tool=tool, name=name, description=description, reads_only=not asks, asks=asks)


def _asks(registry: ToolRegistry, name: str) -> bool:
    entry = registry.get_entry(name) if name else None
    return entry is None or entry.effects != ()


async def _listing(connection: Connection) -> Listing:
    return await connection.list_tools()


LIST_CONNECT_SECONDS = 10.0


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
@click.option("--no-connect", is_flag=True, help="Only say what the config says; start and ask nothing.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=LIST_CONNECT_SECONDS,
    show_default=True,
    help="How many seconds to wait for servers that are slow to start.",
)
def list_servers(as_json: bool, no_connect: bool, timeout: float) -> None:
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
    """What is wrong; empty when nothing is."""
    if status.state == "ready" and not no_connect:
        return ""
    if status.state == "starting" and not no_connect:
        return status.last_error or "it has not answered yet; `--timeout` gives it more seconds"
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


TOOLS_CONNECT_SECONDS = 30.0
MAX_SUMMARY_CHARS = 100


@group.command("tools")
@click.argument("names", metavar="[NAME…]", nargs=-1, shell_complete=complete_servers)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs; with the hidden ones.")
@click.option("--all", "show_all", is_flag=True, help="Also show the tools that are not offered, and why.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=TOOLS_CONNECT_SECONDS,
    show_default=True,
    help="How many seconds to wait for servers that are slow to start.",
)
def list_server_tools(names: tuple[str, ...], as_json: bool, show_all: bool, timeout: float) -> int:
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
        print_json([_tool_as_json(tool) for view in views for tool in view.tools])
    elif not views:
        print_line(NO_SERVERS)
    else:
        _print_tools(views, show_all)
    for view in failed:
        note(f"{view.status.name}: {_why_not(view)}; `toolcrib mcp test {view.status.name}` says more")
    return 1 if failed else 0


def _print_tools(views: list[ServerView], show_all: bool) -> None:
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
    needed = {variable for known in staying for variable in variables_in(asdict(known))}
    made = {variable for name in going for variable in own_variables(name, asdict(settings.mcp_servers[name]))}
    return sorted((made - needed) & read_env_file(settings.home.env_file).keys())


MIN_TOKEN_CHARS = 16
LOOPBACK = "127.0.0.1"


@group.command("serve")
@click.option(
    "--toolsets",
    metavar="NAMES",
    shell_complete=complete_toolsets,
    help="Offer these toolsets, with commas between them; without it, those of the chat.",
)
@click.option("--http", "port", type=click.IntRange(0, 65535), help="Serve HTTP on this port; 0 takes a free one.")
@click.option("--host", help=f"With --http: the address to listen on; without it, {LOOPBACK}.")
@click.option("--token-file", type=click.Path(path_type=Path), help="With --http: read the token from this file.")
@click.option("--token-env", metavar="NAME", help="With --http: read the token from this variable.")
@click.option(
    "--policy",
    type=click.Choice(["ask", "allow", "deny"]),
    default="deny",
    show_default=True,
    help="What happens to a dangerous call when the client cannot ask its user; ask: at this terminal.",
)
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder to work in; without it, this one.",
)
def serve_tools(
    toolsets: str | None,
    port: int | None,
    host: str | None,
    token_file: Path | None,
    token_env: str | None,
    policy: ServePolicy,
    workspace: Path | None,
) -> int:
    """Offer our tools to any MCP client.

    Over standard input and output, unless --http names a port. Before a dangerous call the client is asked to put the
    question to its user; where it cannot, --policy answers. Each client has a session of its own.

    \b
    Over HTTP the address is http://127.0.0.1:PORT/mcp, and every request has to bring the token in the header
    `Authorization: Bearer TOKEN`. Without --token-file and --token-env one is made and printed once.

    \b
    Examples:
      toolcrib mcp serve --toolsets file,terminal
      toolcrib mcp serve --http 8765 --token-env MCP_TOKEN
    """
    if port is None and (token_file or token_env or host):
        raise UsageError("a token and a host are for HTTP; name a port with `--http PORT`")
    token, made = _token(token_file, token_env) if port is not None else ("", False)
    try:
        # Tool files may print while they are loaded, and stdout belongs to the protocol.
        with stdout_reserved():
            # The SDK takes a second to load, and no other command needs it.
            from toolcrib.cli.commands.mcp_server import build, over_http, over_stdio  # noqa: PLC0415

            server, runtime = build(toolsets, policy, workspace, is_http=port is not None)
    except ModuleNotFoundError as error:
        raise UsageError(f"MCP needs more packages ({error}); type `pip install 'toolcrib[mcp]'`") from error
    try:
        if port is None:
            return asyncio.run(over_stdio(server))
        return asyncio.run(over_http(server, host or LOOPBACK, port, token, token_is_new=made))
    finally:
        runtime.close()


def _token(file: Path | None, variable: str | None) -> tuple[str, bool]:
    """The token that clients have to bring, and whether it was made now."""
    if file is not None and variable is not None:
        raise UsageError("name the token once: either `--token-file` or `--token-env`")
    if file is None and variable is None:
        return secrets.token_urlsafe(32), True
    if file is not None:
        token, place = file.read_text(encoding="utf-8").strip(), str(file)
    else:
        token, place = environment().get(variable or "", "").strip(), str(variable)
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"the token in {place!r} has to be one word of at least {MIN_TOKEN_CHARS} ASCII characters; "
            "`openssl rand -hex 32` makes one"
        )
    return token, False


group.lazy("add", "mcp_add:add_servers", "Add an MCP server to the config.")
group.lazy("test", "mcp_check:test_server", "Test an MCP server and show how to fix it.")
group.lazy("login", "mcp_login:login", "Log in to an MCP server that requires it.")
group.lazy("logout", "mcp_login:logout", "Delete the saved login of an MCP server.")
