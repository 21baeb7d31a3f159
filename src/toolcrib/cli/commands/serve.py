"""`toolcrib serve`: the agent over HTTP, and the tokens for it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import webbrowser
from pathlib import Path

import click
from msgspec.structs import replace

from toolcrib.api import adopt_runtime
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import note, stdout_reserved
from toolcrib.config.environment import environment
from toolcrib.config.files import OWNER_FILE, replace_file
from toolcrib.config.load import load_settings
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.http_server import base_url, open_socket
from toolcrib.registry.default import registry
from toolcrib.serve.app import (
    AgentServer,
    only_server,
    require_safe_start,
    require_usable_tls,
    serve_agents,
)
from toolcrib.serve.login import PageLogins
from toolcrib.serve.tokens import ServerTokens, TokenScope, require_separate_owners, require_strong
from toolcrib.serve.webhooks import require_telegram_secret

TOKEN_VARIABLE = "TOOLCRIB_SERVE_TOKEN"
INTERRUPTED = 130
LOGGERS = ("uvicorn",)


@click.group("serve", cls=CommandGroup, invoke_without_command=True, no_args_is_help=False)
@click.option("--host", help="The address to listen on; default: `serve.host`.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; default: `serve.port`.")
@click.option("--token-file", type=click.Path(path_type=Path), help="Read the owner's token from this file.")
@click.option("--open", "is_opening", is_flag=True, help="Open the page in a browser, logged in.")
@click.pass_context
def serve(
    ctx: click.Context, host: str | None, port: int | None, token_file: Path | None, is_opening: bool
) -> int | None:
    """Serve the agent over HTTP, with a web page.

    Programs talk to it as to OpenAI's API (`/v1`), or by toolcrib's own API (`/api`). Every request needs the token in
    the header `Authorization: Bearer TOKEN`; `toolcrib serve token` prints it. The page is opened by a link that works
    once; `toolcrib serve login` prints one.

    \b
    Examples:
      toolcrib serve --open
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
    with stdout_reserved():
        return asyncio.run(_serve(settings, tokens, is_opening))


async def _serve(settings: Settings, tokens: ServerTokens, is_opening: bool) -> int:
    chosen = settings.serve
    require_safe_start(chosen, chosen.host)
    require_usable_tls(chosen)
    require_separate_owners(settings, tokens.owners())
    tokens.owner_token()
    require_telegram_secret(tokens)
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
        # Other commands find the server by this file.
        replace_file(settings.home.serve_address_file, _reachable(url).encode(), mode=OWNER_FILE)
        note(f"Serving at {url}; `toolcrib serve token` prints the token. Press Ctrl-C to stop.")
        try:
            _show_page(server.logins, chosen, is_opening)
            await serve_agents(server, chosen.host, listening, stop)
        finally:
            settings.home.serve_address_file.unlink(missing_ok=True)
    return code


def _reachable(url: str) -> str:
    """The URL under which this machine reaches a server that listens on all its addresses."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _show_page(logins: PageLogins, settings: ServeSettings, is_opening: bool) -> None:
    """Open the page, or say how to; a link goes to a person's screen only, never into the log of a service."""
    if is_opening and webbrowser.open(logins.create_link(settings)):
        note("The page opens in your browser; `toolcrib serve login` prints a link for another one.")
    elif sys.stderr.isatty():
        note(f"Open the page with this link, once, within 10 minutes: {logins.create_link(settings)}")
    else:
        note("`toolcrib serve login` prints a link to the page.")


@serve.command("login")
@click.option("--token", "name", metavar="NAME", default="owner", help="Log in with the rights of this token.")
def login(name: str) -> None:
    """Print a link that logs a browser in to the running server's page.

    It works once, within 10 minutes.

    \b
    Examples:
      toolcrib serve login
      toolcrib serve login --token phone
    """
    settings = load_settings()
    tokens = _tokens(settings, None)
    click.echo(PageLogins(settings.home, tokens).create_link(settings.serve, name))


@serve.command("token")
@click.option("--new", "name", metavar="NAME", help="Create an additional token with this name, and print it once.")
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
@click.option("--revoke", metavar="NAME", help="Revoke an additional token.")
@click.option("--list", "is_list", is_flag=True, help="List the additional tokens and their scopes.")
def token(name: str | None, scopes: tuple[TokenScope, ...], owner: str, revoke: str | None, is_list: bool) -> None:
    """Print the owner's token, or manage additional ones.

    \b
    Examples:
      toolcrib serve token
      toolcrib serve token --new phone --scope chat --scope approve
      toolcrib serve token --new anna-laptop --owner anna
      toolcrib serve token --revoke phone
    """
    if sum((name is not None, revoke is not None, is_list)) > 1:
        raise UsageError("use one of `--new`, `--revoke` and `--list`")
    settings = load_settings()
    tokens = _tokens(settings, None)
    if name is not None:
        if owner:
            # The next start would refuse it.
            require_separate_owners(settings, {*tokens.owners(), owner})
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


serve.lazy("install", "serve_install:install", "Start the server when you log in.")
