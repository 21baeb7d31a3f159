"""`toolcrib mcp add`."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import unicodedata
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from toolcrib.cli.mcp_formats import FoundServer, read_pasted, read_servers
from toolcrib.cli.mcp_secrets import SecretMover, own_variables, variables_in
from toolcrib.cli.output import note
from toolcrib.config.edit import put_mappings
from toolcrib.config.env_file import load_env_file, read_env_file, save_env_values
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.paths import Home
from toolcrib.config.schema import Reader
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.mcp.names import toolset_name
from toolcrib.mcp.servers import read_server
from toolcrib.toolsets.catalog import SHORT_NAMES, TOOLSETS

MAX_NAME_CHARS = 40
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARS - 1}}}")
_HEADER = re.compile(r"\s*([^:\s]+)\s*:\s*(.*)", re.DOTALL)
ADD = "toolcrib mcp add"
ORDER = [known.name for known in fields(McpServerSettings)]


class AddCommand(click.Command):
    """Says where `--` belongs when an option of the server's command is taken for one of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            words = [word for word in given[: _position(given, error.option_name)] if not word.startswith("-")]
            if len(words) < 2 or "--" in given:
                raise
            line = shlex.join(["toolcrib", "mcp", "add", words[0], "--", *given[given.index(words[1]) :]])
            raise UsageError(f"put `--` before the command of the server: `{line}`") from error


def _position(words: list[str], option: str) -> int:
    return next((at for at, word in enumerate(words) if word.startswith(option[:2])), len(words))


@click.command(name="add", cls=AddCommand)
@click.argument("name", metavar="[NAME]", required=False)
@click.argument("words", metavar="[-- COMMAND ARGS…]", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", help="The address of a server that is reached by HTTP.")
@click.option("-H", "--header", "headers", multiple=True, metavar="'K: V'", help="Send this header; may be repeated.")
@click.option(
    "-t",
    "--transport",
    type=click.Choice(["auto", "stdio", "http", "sse"]),
    help="How to speak to it; without it, HTTP for an address.",
)
@click.option("--auth", type=click.Choice(["none", "oauth"]), help="oauth: log in with `toolcrib mcp login NAME`.")
@click.option("-e", "--env", "env", multiple=True, metavar="K=V", help="Give the command this variable; K alone: ours.")
@click.option("--cwd", help="The folder to start the command in; without it, the workspace.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="How many seconds one call may take.")
@click.option("--include", multiple=True, metavar="TOOL", help="Offer this tool, and no others; may be repeated.")
@click.option("--exclude", multiple=True, metavar="TOOL", help="Do not offer this tool; may be repeated.")
@click.option(
    "--trust",
    type=click.Choice(["ask", "read_only", "all"]),
    help="Calls that need no question; read_only, the default: those of tools that say they only read.",
)
@click.option("--disabled", is_flag=True, help="Add it, but do not use it yet.")
@click.option("--json", "pasted", metavar="TEXT|FILE|-", help="Take servers from the config of another client.")
@click.option("--replace", is_flag=True, help="Put it in the place of a server of that name.")
@click.option("--plain", is_flag=True, help="Write keys and tokens into the config itself, not into .env.")
def add_servers(name: str | None, words: tuple[str, ...], pasted: str | None, **options: Any) -> None:
    """Add an MCP server to the config.

    A server is a command that is started, or an address. --json reads what other clients keep: Claude, Cursor, VS Code,
    Windsurf, Zed, opencode, Codex and those like them; comments, trailing commas and a part of a file will do.

    Keys and tokens go to the .env file, which only you can read; the config names the variables. Comments and
    everything else in the config stay as they are.

    \b
    Examples:
      toolcrib mcp add files -- npx -y @modelcontextprotocol/server-filesystem .
      toolcrib mcp add notes -e NOTES_TOKEN=… -- uvx notes-server
      toolcrib mcp add docs --url https://example.com/mcp -H 'X-Api-Key: …'
      toolcrib mcp add mail --url https://example.com/mcp --auth oauth
      toolcrib mcp add --json ~/.cursor/mcp.json
      toolcrib mcp add --json '{"mcpServers": {"time": {"command": "…"}}}'
    """
    if pasted is not None and words:
        raise UsageError("name the server once: either by `--json` or by its command")
    found = read_servers(read_pasted(_text_of(pasted)), name or "") if pasted is not None else [_typed(name, words)]
    for server in found:
        _name_it(server, is_typed=pasted is None or name is not None)
        _apply(server, options, is_typed=pasted is None)
    settings = load_settings()
    _refuse_taken(settings, found, options["replace"])
    for server in found:
        _check(server)
    variables = {} if options["plain"] else _move_secrets(settings, found)
    if variables:
        save_env_values(settings.home, variables)
    put_mappings(settings.home, {("mcp_servers", server.name): server.settings for server in found})
    for server in found:
        _tell(server, settings.home)
    if variables:
        note(f"Wrote {', '.join(variables)} to {settings.home.env_file}; the config holds only the names.")
    names = [server.name for server in found if server.settings.get("enabled") is not False]
    if names:
        login = next((one for one in found if one.settings.get("auth") == "oauth"), None)
        step = f"`toolcrib mcp login {login.name}` logs in" if login else f"`toolcrib mcp test {names[0]}` tries it"
        note(f"{step}; `toolcrib mcp list` shows how all of them are.")


def _text_of(pasted: str) -> str:
    """What was pasted: standard input, a file, or the text itself."""
    if pasted == "-":
        return sys.stdin.read()
    path = Path(pasted).expanduser()
    try:
        is_file = "\n" not in pasted and not pasted.lstrip().startswith("{") and path.is_file()
    except (OSError, ValueError):
        is_file = False
    if is_file:
        return path.read_bytes().decode("utf-8", "replace")
    if pasted.startswith(("http://", "https://")):
        raise UsageError(f"{pasted!r} is an address; type `{ADD} NAME --url {pasted}`")
    if "{" not in pasted and "[" not in pasted and ":" not in pasted:
        raise UsageError(f"there is no file {pasted!r}; give `--json` a file, JSON text, or - for standard input")
    return pasted


def _typed(name: str | None, words: tuple[str, ...]) -> FoundServer:
    if not name:
        raise UsageError(f"name the server: `{ADD} NAME -- COMMAND` or `{ADD} NAME --url URL`")
    server = FoundServer(name, {}, [])
    if len(words) == 1 and words[0].startswith(("http://", "https://")):
        server.settings["url"] = words[0]
    elif words:
        if len(words) == 1 and " " in words[0] and not Path(words[0]).exists():
            words = tuple(shlex.split(words[0])) or words
        server.settings["command"] = words[0]
        if words[1:]:
            server.settings["args"] = list(words[1:])
    return server


def _name_it(server: FoundServer, *, is_typed: bool) -> None:
    if _NAME.fullmatch(server.name):
        return
    last = re.split(r"[/\\]", server.name.rstrip("/"))[-1]
    plain = unicodedata.normalize("NFKD", last).encode("ascii", "ignore").decode()
    better = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).strip("-._")[:MAX_NAME_CHARS] or "server"
    if is_typed:
        raise UsageError(
            f"{server.name!r} cannot be the name of a server: use at most {MAX_NAME_CHARS} letters, digits, - and _; "
            f"type `{ADD} {better}`"
        )
    server.notes.append(f"was called {server.name!r}")
    server.name = better


def _apply(server: FoundServer, options: dict[str, Any], *, is_typed: bool) -> None:
    """Adds what the options say."""
    settings = server.settings
    if options["url"] and settings.get("command"):
        raise UsageError("a server has a command or an address; leave out the command or `--url`")
    if options["env"]:
        settings["env"] = {**settings.get("env", {}), **dict(map(_variable, options["env"]))}
    for key in ("url", "cwd", "timeout", "auth", "trust", "transport"):
        if options[key]:
            settings[key] = options[key]
    if options["headers"]:
        settings["headers"] = {**settings.get("headers", {}), **dict(map(_header, options["headers"]))}
    for key in ("include", "exclude"):
        if options[key]:
            settings["tools"] = {**settings.get("tools", {}), key: list(options[key])}
    if options["disabled"]:
        settings["enabled"] = False
    if is_typed and not settings.get("command") and not settings.get("url"):
        raise UsageError(f"say how to reach {server.name!r}: `{ADD} {server.name} -- COMMAND` or `--url URL`")
    if settings.get("timeout") is not None and settings["timeout"] == int(settings["timeout"]):
        settings["timeout"] = int(settings["timeout"])


def _variable(text: str) -> tuple[str, str]:
    key, has_value, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", key):
        raise UsageError(f"{text!r} is no variable; type `--env NAME=VALUE`")
    return key, value if has_value else f"${{{key}}}"


def _header(text: str) -> tuple[str, str]:
    found = _HEADER.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no header; type `--header 'Name: value'`")
    return found[1], found[2]


def _refuse_taken(settings: Settings, found: list[FoundServer], replace: bool) -> None:
    names = [server.name for server in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(
            f"there are two servers {twice!r} in this text; add them one by one with `{ADD} NAME --json …`"
        )
    taken = [name for name in names if name in settings.mcp_servers]
    if taken and not replace:
        listed = ", ".join(repr(name) for name in taken)
        there = f"is an MCP server {listed}" if len(taken) == 1 else f"are MCP servers {listed}"
        these = "this one in its place" if len(taken) == 1 else "these in their places"
        raise UsageError(f"there {there} already; add `--replace` to put {these}")


def _check(server: FoundServer) -> None:
    """Raises UsageError for what can never work."""
    reader = Reader()
    reader.section(McpServerSettings, server.settings, ("mcp_servers", server.name))
    if reader.problems:
        what = reader.problems[0][1].partition(";")[0]
        raise UsageError(f"{what}; correct it and type `{ADD}` again")
    url = str(server.settings.get("url", ""))
    if url and "${" not in url:
        _check_address(server.name, url)
    unused = ("env", "cwd", "args") if url else ("headers", "auth")
    server.notes += [
        f"{key!r} has no effect on a server with {'an address' if url else 'a command'}"
        for key in unused
        if key in server.settings
    ]
    server.settings = {key: server.settings[key] for key in ORDER if key in server.settings}


def _check_address(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address or any(letter.isspace() for letter in url):
        raise UsageError(
            f"{url!r} is no address of a server; type `{ADD} {name} --url https://HOST/PATH`, the whole address"
        )


def _move_secrets(settings: Settings, found: list[FoundServer]) -> dict[str, str]:
    """Puts variables in the place of secrets; gives what belongs in `.env`."""
    names = {server.name for server in found}
    others = {name: known for name, known in settings.mcp_servers.items() if name not in names}
    kept = {variable for known in others.values() for variable in variables_in(asdict(known))}
    taken = {**read_env_file(settings.home.env_file), **environment()}
    moved: dict[str, str] = {}
    for server in found:
        old = settings.mcp_servers.get(server.name)
        free = own_variables(server.name, asdict(old)) - kept if old is not None else set()
        mover = SecretMover(
            server.name, {name: value for name, value in {**taken, **moved}.items() if name not in free}
        )
        server.settings = mover.moved(server.settings)
        moved |= mover.variables
    return moved


def _tell(server: FoundServer, home: Home) -> None:
    environ = dict(environment())
    load_env_file(home, environ)
    read = Reader().section(McpServerSettings, server.settings)
    ready = read_server(server.name, read, environ)
    note(f"Added {server.name!r} to {home.config_file}: {ready.address}")
    told = list(server.notes)
    if ready.problem and read.enabled:
        told.append(ready.problem.replace("in .env", f"in {home.env_file}"))
    elif read.command and not shutil.which(ready.settings.command, path=environ.get("PATH")) and not read.cwd:
        told.append(f"{ready.settings.command!r} was not found on this machine; install it before you use the server")
    if server.name in TOOLSETS or server.name in SHORT_NAMES:
        told.append(f"a toolset has that name too; the one of this server is {toolset_name(server.name)!r}")
    for line in told:
        note(f"  {server.name}: {line}")
