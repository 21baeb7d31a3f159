"""`toolcrib serve`: the agent over HTTP, and the tokens for it."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from toolcrib.api import adopt_runtime
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import note, stdout_reserved
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.registry.default import registry

if TYPE_CHECKING:
    from toolcrib.serve.tokens import ServerTokens, TokenScope

TOKEN_VARIABLE = "TOOLCRIB_SERVE_TOKEN"
INTERRUPTED = 130
LOGGERS = ("uvicorn",)


@click.group("serve", cls=CommandGroup, invoke_without_command=True, no_args_is_help=False)
@click.option("--host", help="The address to listen on; default: `serve.host`.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; default: `serve.port`.")
@click.option("--token-file", type=click.Path(path_type=Path), help="Read the owner's token from this file.")
@click.pass_context
def serve(ctx: click.Context, host: str | None, port: int | None, token_file: Path | None) -> int | None:
    """Serve the agent over HTTP.

    Programs talk to it as to OpenAI's API (`/v1`), or by toolcrib's own API (`/api`). Every request needs the token in
    the header `Authorization: Bearer TOKEN`; `toolcrib serve token` prints it.

    \b
    Examples:
      toolcrib serve
      toolcrib serve --port 9000
      toolcrib serve token --new laptop --scope chat
    """
    if ctx.invoked_subcommand is not None:
        return None
    settings = load_settings()
    chosen = replace(
        settings.serve,
        host=settings.serve.host if host is None else host,
        port=settings.serve.port if port is None else port,
    )
    settings = replace(settings, serve=chosen)
    tokens = _tokens(settings, token_file)
    try:
        with stdout_reserved():
            return asyncio.run(_serve(settings, tokens))
    except ModuleNotFoundError as error:
        raise UsageError(f"the server needs more packages ({error}); run `pip install 'toolcrib[serve]'`") from error


async def _serve(settings: Settings, tokens: ServerTokens) -> int:
    # Importing the web server takes a quarter of a second, and no other command needs it.
    from toolcrib.http_server import base_url, open_socket  # noqa: PLC0415
    from toolcrib.serve.app import (  # noqa: PLC0415
        AgentServer,
        only_server,
        require_safe_start,
        require_separate_owners,
        require_usable_tls,
        serve_agents,
    )

    chosen = settings.serve
    require_safe_start(chosen, chosen.host)
    require_usable_tls(chosen)
    require_separate_owners(settings, tokens)
    tokens.owner_token()
    listening = open_socket(chosen.host, chosen.port, "`--port 0`")
    server = AgentServer(settings, tokens, registry=registry)
    # Tools that call other tools through the package's functions must use the same gate and records.
    adopt_runtime(server.host.runtime)
    server.host.runtime.load()
    _log_with_ours()
    stop, code = asyncio.Event(), 0

    def stopped(number: signal.Signals) -> None:
        nonlocal code
        code = INTERRUPTED if number == signal.SIGINT else 0
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped, number)
    url = base_url(listening, "https" if chosen.tls_certificate else "http")
    with only_server(settings.home):
        note(f"Serving at {url}; `toolcrib serve token` prints the token. Press Ctrl-C to stop.")
        await serve_agents(server, chosen.host, listening, stop)
    return code


@serve.command("token")
@click.option("--new", "name", metavar="NAME", help="Create a further token with this name, and print it once.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["chat", "approve", "admin", "metrics"]),
    help="With --new: what the token may do; repeat for several. Default: chat.",
)
@click.option(
    "--owner", metavar="OWNER", default="", help="With --new: whose sessions the token reaches; default: your own."
)
@click.option("--revoke", metavar="NAME", help="Revoke a further token.")
@click.option("--list", "is_list", is_flag=True, help="List the further tokens and their scopes.")
def token(name: str | None, scopes: tuple[TokenScope, ...], owner: str, revoke: str | None, is_list: bool) -> None:
    """Print the owner's token, or manage further ones.

    \b
    Examples:
      toolcrib serve token
      toolcrib serve token --new phone --scope chat --scope approve
      toolcrib serve token --new anna-laptop --owner anna
      toolcrib serve token --revoke phone
    """
    if sum((name is not None, revoke is not None, is_list)) > 1:
        raise UsageError("use one of `--new`, `--revoke` and `--list`")
    tokens = _tokens(load_settings(), None)
    if name is not None:
        click.echo(tokens.create(name, scopes or ("chat",), owner))
    elif revoke is not None:
        tokens.revoke(revoke)
        note(f"The token {revoke!r} is revoked.")
    elif is_list:
        for known, one in tokens.others().items():
            click.echo(f"{known}  {', '.join(one.scopes)}" + (f"  (owner {one.owner})" if one.owner else ""))
    else:
        click.echo(tokens.owner_token())


def _tokens(settings: Settings, file: Path | None) -> ServerTokens:
    try:
        from toolcrib.serve.tokens import ServerTokens, require_strong  # noqa: PLC0415 - imports the web server
    except ModuleNotFoundError as error:
        raise UsageError(f"the server needs more packages ({error}); run `pip install 'toolcrib[serve]'`") from error
    if file is not None:
        source = f"the file {str(file)!r}"
        # An empty file must not fall back to the stored token.
        return ServerTokens(settings.home, require_strong(file.read_text(encoding="utf-8").strip(), source), source)
    return ServerTokens(settings.home, environment().get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE)


def _log_with_ours() -> None:
    """Send the web server's logs to our log file instead of the screen."""
    for handler in logging.getLogger("toolcrib").handlers:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(handler)
