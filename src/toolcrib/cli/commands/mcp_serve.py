"""`toolcrib mcp serve`."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolcrib.cli.output import stdout_reserved
from toolcrib.cli.state import complete_toolsets
from toolcrib.config.environment import environment
from toolcrib.core.errors import UsageError

if TYPE_CHECKING:
    from toolcrib.mcp.server.approvals import ServePolicy

MIN_TOKEN_CHARS = 16
LOOPBACK = "127.0.0.1"


@click.command(name="serve")
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
def command(
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
            from toolcrib.cli.mcp_serving import build, over_http, over_stdio  # noqa: PLC0415

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
