"""What `toolcrib mcp serve` runs: an MCP server in front of a runtime. Imports the SDK, which takes a second."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

from toolcrib.cli.console import console_approver
from toolcrib.cli.output import is_interactive, note
from toolcrib.cli.runtime import require_known_toolsets
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.mcp.names import toolset_name
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.approvals import ClientApprover, ClientAsker, ServePolicy
from toolcrib.mcp.server.http import RequestGuard, address_of, open_socket, serve_http
from toolcrib.mcp.server.pending_calls import PendingCalls
from toolcrib.mcp.server.stdio import serve_stdio
from toolcrib.registry.results import sendable
from toolcrib.runtime import Runtime

INTERRUPTED = 130
LOGGERS = ("mcp", "uvicorn")


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
