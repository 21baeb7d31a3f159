"""What `toolcrib mcp serve` runs: a server of MCP in front of a runtime, until somebody stops it."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

from toolcrib.cli.console import console_approver
from toolcrib.cli.output import note, person_present
from toolcrib.cli.runtime import refuse_unknown_toolsets
from toolcrib.config.load import load_settings
from toolcrib.mcp.names import toolset_name
from toolcrib.mcp.serve import ToolServer
from toolcrib.mcp.serve_approvals import ClientApprover, ClientAsker, ServePolicy
from toolcrib.mcp.serve_calls import CallBook
from toolcrib.mcp.serve_http import Door, address_of, open_socket, serve_http
from toolcrib.mcp.serve_stdio import serve_stdio
from toolcrib.registry.results import sendable
from toolcrib.runtime import Runtime

INTERRUPTED = 130
LOGGERS = ("mcp", "uvicorn")


def build(
    toolsets: str | None, policy: ServePolicy, workspace: Path | None, *, is_http: bool
) -> tuple[ToolServer, Runtime]:
    """A server for the tools of a runtime of its own; whoever called closes the runtime."""
    settings, calls = load_settings(), CallBook()
    # Over stdio the terminal, if there is one, belongs to the client.
    operator = console_approver(settings) if is_http and person_present() else None
    runtime = Runtime(
        settings=settings,
        approver=ClientApprover(calls, policy, operator),
        workspace=workspace or Path.cwd(),
        services={"asker": ClientAsker(calls)},
    )
    runtime.load()
    named = [name.strip() for name in toolsets.split(",") if name.strip()] if toolsets is not None else None
    # The tools of a configured server come when it is connected, and its clients are told.
    to_come = {name for server in settings.mcp_servers for name in (server, toolset_name(server))}
    refuse_unknown_toolsets(runtime, [name for name in named or () if name not in to_come])
    _log_with_ours()
    folder = sendable(str(runtime.workspace))
    server = ToolServer(
        runtime,
        calls=calls,
        toolsets=named,
        instructions=f"These tools work on the machine that toolcrib runs on, in the folder {folder}.",
        end_session=lambda session_id: _end_session(runtime, session_id),
    )
    return server, runtime


async def over_stdio(server: ToolServer) -> int:
    """Serve until the client has gone or somebody stops us; the exit code."""
    stopped = _Stopped()
    await serve_stdio(server, stopped.event)
    return stopped.exit_code


async def over_http(server: ToolServer, host: str, port: int, token: str, *, token_is_new: bool) -> int:
    """Serve until somebody stops us; the exit code."""
    door = Door(token=token, host=host)
    listening = open_socket(host, port)
    stopped = _Stopped()
    note(f"serving MCP at {address_of(listening)}; Ctrl-C ends it")
    if token_is_new:
        note(f"token: {token}")
    if not door.is_on_loopback:
        note("other machines can reach this; the token and all results cross the network unencrypted")
    await serve_http(server, door, listening, stopped.event)
    return stopped.exit_code


class _Stopped:
    """Says that somebody wants the server to end; in good order."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        self.exit_code = INTERRUPTED if number == signal.SIGINT else 0
        self.event.set()


async def _end_session(runtime: Runtime, session_id: str) -> None:
    """End the processes of a client that has gone, close its places, forget what it was granted."""
    if runtime.has_terminal:
        terminal = runtime.terminal
        await terminal.loop.run(terminal.processes.registry.kill_all(session_id, source="client_gone"))
        await terminal.loop.run(terminal.environments.close_session(session_id))
    gate = getattr(runtime.gate, "made", None)
    if gate is not None:
        gate.grants.clear_session(session_id)


def _log_with_ours() -> None:
    """Send what the SDK and the web server log to our log file; on the screen it would only be in the way."""
    for handler in logging.getLogger("toolcrib").handlers:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(handler)
