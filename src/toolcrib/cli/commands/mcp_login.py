"""`toolcrib mcp login NAME`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import webbrowser
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import click

from toolcrib.cli.commands.mcp import STATES, complete_servers, look_at, require_servers
from toolcrib.cli.output import error_line, note, person_present, plural, print_line
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt
from toolcrib.core.errors import UsageError
from toolcrib.mcp.failures import ServerFailed
from toolcrib.mcp.redirect_listener import HOST, RedirectListener, has_state, open_listener
from toolcrib.mcp.servers import Server, read_server
from toolcrib.mcp.token_store import Kept, TokenStore, token_store

MAX_LINE_BYTES = 64 * 1024


class BrowserLogin:
    """Shows where to log in, and waits until the browser comes back or its last address is pasted."""

    def __init__(self, server: str, listener: RedirectListener, *, opens_browser: bool, seconds: float) -> None:
        self._server = server
        self._listener = listener
        self._opens_browser = opens_browser
        self._seconds = seconds

    async def __call__(self, address: str) -> str:
        """The address that the browser was sent back to."""
        state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        print_line(f"Log in here: {address}")
        sys.stdout.flush()
        has_opened = self._opens_browser and person_present() and _open(address)
        is_pasting = person_present() and sys.platform != "win32"
        if has_opened:
            note("Your browser has been opened. Waiting for it to come back.")
        if is_pasting:
            note("On another machine the last page will not load; paste its address here and press Enter.")
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
                f"no login came within {self._seconds:g} seconds; try again, after "
                f"`toolcrib mcp logout {shlex.quote(self._server)}` if the page did not know toolcrib"
            )
        return done.pop().result()


def has_browser(environ: Mapping[str, str]) -> bool:
    """Whether a browser can be opened that does not take this terminal."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in environ
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY") or environ.get("BROWSER"))


def _open(address: str) -> bool:
    # Whatever browsers there are, and however they fail: the address stands on the screen.
    return has_browser(environment()) and bool(attempt(webbrowser.open, address).value)


async def _pasted(state: str) -> str:
    """The first line typed that is an address with this state."""
    async with contextlib.aclosing(_lines()) as lines:
        async for line in lines:
            text = line.strip()
            if has_state(text, state):
                return text
            if text:
                note("That address does not belong to this login; paste all of the one that the browser ended at.")
    # Nothing more is typed, but the browser may still come.
    forever: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await forever


async def _lines() -> AsyncGenerator[str, None]:
    """What is typed, line by line."""
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
def login(name: str, no_browser: bool, timeout: float) -> int:
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
    from toolcrib.mcp.login import log_in  # noqa: PLC0415

    async with open_listener(_ports(server, store)) as listener:
        ask = BrowserLogin(server.name, listener, opens_browser=opens_browser, seconds=seconds)
        await log_in(server, store, ask, listener.redirect_uri)


def _ports(server: Server, store: TokenStore) -> list[int]:
    """Where to listen: on the port that was set, else on the one that we are registered with, else on any."""
    if server.settings.oauth.redirect_port:
        return [server.settings.oauth.redirect_port]
    # What is kept came from the server, and through a file.
    return [*(attempt(_registered_ports, store.read()).value or ()), 0]


def _registered_ports(kept: Kept) -> list[int]:
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


@click.command(name="logout")
@click.argument("name", shell_complete=complete_servers)
def logout(name: str) -> None:
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
    from toolcrib.mcp.login import log_out  # noqa: PLC0415

    return await log_out(store, server)
