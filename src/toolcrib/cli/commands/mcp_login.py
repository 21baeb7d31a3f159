"""`toolcrib mcp login` and `logout`: OAuth in a browser, here or on another machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import webbrowser
from collections.abc import AsyncGenerator, Mapping
from types import ModuleType
from urllib.parse import parse_qs, urlsplit

import click
from msgspec.structs import replace

from toolcrib.cli.commands.mcp import STATES, complete_servers, inspect_servers, require_servers
from toolcrib.cli.output import error_line, is_interactive, note, plural, print_line
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.redirect_listener import HOST, RedirectListener, has_state, open_listener
from toolcrib.mcp.client.servers import Server, read_server
from toolcrib.mcp.client.token_store import StoredLogin, TokenStore, token_store

MAX_LINE_BYTES = 64 * 1024
LOGIN_SECONDS = 300.0


class BrowserLogin:
    """Shows the login address, and waits for the browser's redirect or for a pasted address."""

    def __init__(self, server: str, listener: RedirectListener, *, opens_browser: bool, seconds: float) -> None:
        self._server = server
        self._listener = listener
        self._opens_browser = opens_browser
        self._seconds = seconds

    async def __call__(self, address: str) -> str:
        """The address that the browser was redirected to."""
        state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        print_line(f"Log in here: {address}")
        sys.stdout.flush()
        has_opened = self._opens_browser and is_interactive() and _open(address)
        is_pasting = is_interactive() and sys.platform != "win32"
        if has_opened:
            note("Opened your browser; waiting for the login.")
        if is_pasting:
            note("If you log in on another machine, the last page will not load; paste its address here.")
        waiting = [asyncio.ensure_future(self._listener.answer(state))]
        if is_pasting:
            waiting.append(asyncio.ensure_future(_pasted(state)))
        try:
            done, _ = await asyncio.wait(waiting, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if not done:
            raise ServerFailed(
                f"no login within {self._seconds:g} seconds; try again, after "
                f"`toolcrib mcp logout {shlex.quote(self._server)}` if the page did not recognise toolcrib"
            )
        return done.pop().result()


def has_browser(environ: Mapping[str, str]) -> bool:
    """Whether there is a graphical browser."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in environ
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY") or environ.get("BROWSER"))


def _open(address: str) -> bool:
    # Whatever the browser does, the address is on the screen.
    if not has_browser(environment()):
        return False
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False


async def _pasted(state: str) -> str:
    """The first typed line that is an address with this state."""
    async with contextlib.aclosing(_lines()) as lines:
        async for line in lines:
            text = line.strip()
            if has_state(text, state):
                return text
            if text:
                note("That address does not belong to this login; paste the whole address of the last page.")
    # Input has ended, but the browser may still be redirected.
    forever: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await forever


async def _lines() -> AsyncGenerator[str, None]:
    """The typed lines."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        piece = b""
        with contextlib.suppress(OSError):
            piece = os.read(descriptor, MAX_LINE_BYTES)
        if not piece:
            loop.remove_reader(descriptor)
        pieces.put_nowait(piece)

    loop.add_reader(descriptor, read)
    try:
        while piece := await pieces.get():
            yield piece.decode("utf-8", "replace")
    finally:
        loop.remove_reader(descriptor)


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
    async with open_listener(_ports(server, store)) as listener:
        ask = BrowserLogin(server.name, listener, opens_browser=opens_browser, seconds=seconds)
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
