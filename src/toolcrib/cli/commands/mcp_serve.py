"""`toolcrib mcp serve`: an MCP server in front of a runtime."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from pathlib import Path

import click

from toolcrib.cli.console import console_approver
from toolcrib.cli.output import is_interactive, note, stdout_reserved
from toolcrib.cli.runtime import complete_toolsets, require_known_toolsets
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.core.errors import UsageError
from toolcrib.mcp.names import toolset_name
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.approvals import ClientApprover, ClientAsker, ServePolicy
from toolcrib.mcp.server.http import RequestGuard, address_of, open_socket, serve_http
from toolcrib.mcp.server.pending_calls import PendingCalls
from toolcrib.mcp.server.stdio import serve_stdio
from toolcrib.registry.results import sendable
from toolcrib.runtime import Runtime

INTERRUPTED = 130
MIN_TOKEN_CHARS = 16
LOOPBACK = "127.0.0.1"
LOGGERS = ("mcp", "uvicorn")


@click.command(name="serve")
@click.option(
    "--toolsets",
    metavar="NAMES",
    shell_complete=complete_toolsets,
    help="Serve these toolsets, separated by commas; default: those of the chat.",
)
@click.option("--http", "port", type=click.IntRange(0, 65535), help="Serve over HTTP on this port; 0 picks a free one.")
@click.option("--host", help=f"With --http: the address to listen on; default: {LOOPBACK}.")
@click.option("--token-file", type=click.Path(path_type=Path), help="With --http: read the token from this file.")
@click.option("--token-env", metavar="NAME", help="With --http: read the token from this variable.")
@click.option(
    "--policy",
    type=click.Choice(["ask", "allow", "deny"]),
    default="deny",
    show_default=True,
    help="What to do about a dangerous call if the client cannot ask its user; ask: ask at this terminal.",
)
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder to work in; default: the current one.",
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
    """Serve toolcrib's tools over MCP.

    Uses standard input and output, unless --http names a port. Before a dangerous call, the client is asked to get its
    user's approval; if it cannot, --policy decides. Each client has its own session.

    \b
    Over HTTP the address is http://127.0.0.1:PORT/mcp, and every request must send the token in the header
    `Authorization: Bearer TOKEN`. Without --token-file or --token-env, a new token is printed once.

    \b
    Examples:
      toolcrib mcp serve --toolsets file,terminal
      toolcrib mcp serve --http 8765 --token-env MCP_TOKEN
    """
    if port is None and (token_file or token_env or host):
        raise UsageError("a token and a host need HTTP; add `--http PORT`")
    token, is_new = _token(token_file, token_env) if port is not None else ("", False)
    # Tool files may print while they load, and stdout belongs to the protocol.
    with stdout_reserved():
        server, runtime = build(toolsets, policy, workspace, is_http=port is not None)
    try:
        if port is None:
            return asyncio.run(over_stdio(server))
        return asyncio.run(over_http(server, host or LOOPBACK, port, token, token_is_new=is_new))
    finally:
        runtime.close()


def _token(file: Path | None, variable: str | None) -> tuple[str, bool]:
    """The token that clients must send, and whether it is new."""
    if file is not None and variable is not None:
        raise UsageError("give the token once: either `--token-file` or `--token-env`")
    if file is None and variable is None:
        return secrets.token_urlsafe(32), True
    if file is not None:
        token, source = file.read_text(encoding="utf-8").strip(), str(file)
    else:
        token, source = environment().get(variable or "", "").strip(), str(variable)
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"the token in {source!r} must be one word of at least {MIN_TOKEN_CHARS} ASCII characters; "
            "create one with `openssl rand -hex 32`"
        )
    return token, False


def build(
    toolsets: str | None, policy: ServePolicy, workspace: Path | None, *, is_http: bool
) -> tuple[ToolServer, Runtime]:
    """An MCP server for the tools of a new runtime, which the caller closes."""
    settings, calls = load_settings(), PendingCalls()
    # Over stdio, the terminal belongs to the client.
    operator = console_approver(settings) if is_http and is_interactive() else None
    runtime = Runtime(
        settings=settings,
        approver=ClientApprover(calls, policy, operator),
        workspace=workspace or current_folder(),
        services={"asker": ClientAsker(calls)},
    )
    runtime.load()
    named = [name.strip() for name in toolsets.split(",") if name.strip()] if toolsets is not None else None
    # The tools of a configured MCP server arrive when it connects; clients are notified then.
    to_come = {name for server in settings.mcp_servers for name in (server, toolset_name(server))}
    require_known_toolsets(runtime, [name for name in named or () if name not in to_come])
    _log_with_ours()
    folder = sendable(str(runtime.workspace))
    server = ToolServer(
        runtime,
        calls=calls,
        toolsets=named,
        instructions=f"These tools work on the machine where toolcrib runs, in the folder {folder}.",
        end_session=runtime.end_session,
    )
    return server, runtime


async def over_stdio(server: ToolServer) -> int:
    """Serve until the client disconnects or a signal arrives; returns the exit code."""
    stop = _StopSignal()
    await serve_stdio(server, stop.event)
    return stop.exit_code


async def over_http(server: ToolServer, host: str, port: int, token: str, *, token_is_new: bool) -> int:
    """Serve until a signal arrives; returns the exit code."""
    guard = RequestGuard(token=token, host=host)
    listening = open_socket(host, port)
    stop = _StopSignal()
    note(f"Serving MCP at {address_of(listening)}; press Ctrl-C to stop.")
    if token_is_new:
        note(f"token: {token}")
    if not guard.is_on_loopback:
        note("Other machines can reach this server; the token and all results cross the network unencrypted.")
    await serve_http(server, guard, listening, stop.event)
    return stop.exit_code


class _StopSignal:
    """Set by SIGTERM or Ctrl-C, with the exit code that belongs to it."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        self.exit_code = INTERRUPTED if number == signal.SIGINT else 0
        self.event.set()


def _log_with_ours() -> None:
    """Send the logs of the SDK and the web server to our log file instead of the screen."""
    for handler in logging.getLogger("toolcrib").handlers:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(handler)
