"""`toolcrib mcp serve`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolcrib.cli.approval import console_approver
from toolcrib.cli.output import note, person_present, stdout_reserved
from toolcrib.cli.state import complete_toolsets, refuse_unknown_toolsets
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.core.errors import UsageError
from toolcrib.mcp.names import toolset_name
from toolcrib.registry.results import sendable
from toolcrib.runtime import Runtime

if TYPE_CHECKING:
    from toolcrib.mcp.serve import ToolServer
    from toolcrib.mcp.serve_approvals import ServePolicy

MIN_TOKEN_CHARS = 16
INTERRUPTED = 130
LOGGERS = ("mcp", "uvicorn")


@click.command(name="serve")
@click.option(
    "--toolsets",
    metavar="NAMES",
    shell_complete=complete_toolsets,
    help="Offer these toolsets, with commas between them; without it, those of the chat.",
)
@click.option("--http", "port", type=click.IntRange(0, 65535), help="Serve HTTP on this port; 0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --http: the address to listen on.")
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
def command(
    toolsets: str | None,
    port: int | None,
    host: str,
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
    if port is None and (token_file or token_env):
        raise UsageError("a token is for HTTP; name a port with `--http PORT`")
    token, made = _token(token_file, token_env) if port is not None else ("", False)
    try:
        # Tool files may print while they are loaded, and stdout belongs to the protocol.
        with stdout_reserved():
            server, runtime = _build(toolsets, policy, workspace, over_http=port is not None)
    except ModuleNotFoundError as error:
        raise UsageError(f"MCP needs more packages ({error}); type `pip install 'toolcrib[mcp]'`") from error
    try:
        if port is None:
            return asyncio.run(_over_stdio(server))
        return asyncio.run(_over_http(server, host, port, token, token_is_new=made))
    finally:
        runtime.close()


def _build(
    toolsets: str | None, policy: ServePolicy, workspace: Path | None, *, over_http: bool
) -> tuple[ToolServer, Runtime]:
    # The SDK takes a second to load, and no other command needs it.
    from toolcrib.mcp.serve import ToolServer  # noqa: PLC0415
    from toolcrib.mcp.serve_approvals import ClientApprover, ClientAsker  # noqa: PLC0415
    from toolcrib.mcp.serve_calls import CallBook  # noqa: PLC0415

    settings, calls = load_settings(), CallBook()
    # Over stdio the terminal, if there is one, belongs to the client.
    operator = console_approver(settings) if over_http and person_present() else None
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


async def _over_stdio(server: ToolServer) -> int:
    from toolcrib.mcp.serve_stdio import serve_stdio  # noqa: PLC0415 - as above

    stopped = _Stopped()
    await serve_stdio(server, stopped.event)
    return stopped.exit_code


async def _over_http(server: ToolServer, host: str, port: int, token: str, *, token_is_new: bool) -> int:
    from toolcrib.mcp.serve_http import Door, address_of, open_socket, serve_http  # noqa: PLC0415 - as above

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


def _log_with_ours() -> None:
    """Send what the SDK and the web server log to our log file; on the screen it would only be in the way."""
    for handler in logging.getLogger("toolcrib").handlers:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(handler)
