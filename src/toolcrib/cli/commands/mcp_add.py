"""`toolcrib mcp add`: a server from the command line, or from the config of another client."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from toolcrib.cli.mcp_formats import ImportedServer, read_pasted, read_servers
from toolcrib.cli.output import note
from toolcrib.config.edit import put_mappings
from toolcrib.config.env_file import load_env_file, read_env_file, save_env_values
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_secrets import SecretExtractor, own_variables, variables_in
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.paths import Home
from toolcrib.config.schema import SettingsReader
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.mcp.client.servers import read_server
from toolcrib.mcp.names import toolset_name
from toolcrib.toolsets.catalog import SHORT_NAMES, TOOLSETS

MAX_NAME_CHARS = 40
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARS - 1}}}")
_HEADER = re.compile(r"\s*([^:\s]+)\s*:\s*(.*)", re.DOTALL)
ADD = "toolcrib mcp add"
ORDER = list(McpServerSettings.__struct_fields__)


class AddCommand(click.Command):
    """Explains where `--` belongs if an option of the server's command is taken for one of ours."""

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
@click.option("--url", help="The address of an HTTP server.")
@click.option("-H", "--header", "headers", multiple=True, metavar="'K: V'", help="Send this header; repeatable.")
@click.option(
    "-t",
    "--transport",
    type=click.Choice(["auto", "stdio", "http", "sse"]),
    help="The transport; default: stdio for a command, HTTP for an address.",
)
@click.option("--auth", type=click.Choice(["none", "oauth"]), help="oauth: log in with `toolcrib mcp login NAME`.")
@click.option(
    "-e",
    "--env",
    "env",
    multiple=True,
    metavar="K=V",
    help="Set this variable for the command; K alone copies ours. Repeatable.",
)
@click.option("--cwd", help="The working directory of the command; default: the workspace.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Timeout of a call in seconds.")
@click.option("--include", multiple=True, metavar="TOOL", help="Offer only this tool; repeatable.")
@click.option("--exclude", multiple=True, metavar="TOOL", help="Hide this tool; repeatable.")
@click.option(
    "--trust",
    type=click.Choice(["ask", "read_only", "all"]),
    help="Which tools run without approval; default: read_only, the tools marked read-only.",
)
@click.option("--disabled", is_flag=True, help="Add it without enabling it.")
@click.option("--json", "pasted", metavar="TEXT|FILE|-", help="Import servers from the config of another client.")
@click.option("--replace", is_flag=True, help="Replace a server with the same name.")
@click.option("--plain", is_flag=True, help="Write keys and tokens to the config instead of .env.")
def add_servers(name: str | None, words: tuple[str, ...], pasted: str | None, **options: Any) -> None:
    """Add an MCP server to the config.

    A server is a command to start, or an address. --json reads the configs of other clients: Claude, Cursor, VS Code,
    Windsurf, Zed, opencode, Codex and similar ones; comments, trailing commas and fragments are fine.

    Keys and tokens go to the .env file, which only you can read; the config refers to them by name. Keeps comments and
    everything else in the config.

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
        raise UsageError("describe the server once: with `--json` or with its command")
    found = read_servers(read_pasted(_text_of(pasted)), name or "") if pasted is not None else [_typed(name, words)]
    for server in found:
        _check_name(server, is_typed=pasted is None or name is not None)
        _apply(server, options, is_typed=pasted is None)
    settings = load_settings()
    _refuse_existing(settings, found, options["replace"])
    for server in found:
        _check(server)
    variables = {} if options["plain"] else _move_secrets(settings, found)
    if variables:
        save_env_values(settings.home, variables)
    put_mappings(settings.home, {("mcp_servers", server.name): server.settings for server in found})
    for server in found:
        _report(server, settings.home)
    if variables:
        note(f"Wrote {', '.join(variables)} to {settings.home.env_file}; the config holds only the names.")
    names = [server.name for server in found if server.settings.get("enabled") is not False]
    if names:
        login = next((one for one in found if one.settings.get("auth") == "oauth"), None)
        step = (
            f"Run `toolcrib mcp login {login.name}` to log in"
            if login
            else f"Run `toolcrib mcp test {names[0]}` to test it"
        )
        note(f"{step}; `toolcrib mcp list` lists all servers.")


def _text_of(pasted: str) -> str:
    """The pasted text: standard input, a file, or the argument itself."""
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
        raise UsageError(f"{pasted!r} is an address; run `{ADD} NAME --url {pasted}`")
    if "{" not in pasted and "[" not in pasted and ":" not in pasted:
        raise UsageError(f"no such file: {pasted!r}; give `--json` a file, JSON text, or - for standard input")
    return pasted


def _typed(name: str | None, words: tuple[str, ...]) -> ImportedServer:
    if not name:
        raise UsageError(f"the server needs a name: `{ADD} NAME -- COMMAND` or `{ADD} NAME --url URL`")
    server = ImportedServer(name, {}, [])
    if len(words) == 1 and words[0].startswith(("http://", "https://")):
        server.settings["url"] = words[0]
    elif words:
        if len(words) == 1 and " " in words[0] and not Path(words[0]).exists():
            words = tuple(shlex.split(words[0])) or words
        server.settings["command"] = words[0]
        if words[1:]:
            server.settings["args"] = list(words[1:])
    return server


def _check_name(server: ImportedServer, *, is_typed: bool) -> None:
    if _NAME.fullmatch(server.name):
        return
    last = re.split(r"[/\\]", server.name.rstrip("/"))[-1]
    plain = unicodedata.normalize("NFKD", last).encode("ascii", "ignore").decode()
    better = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).strip("-._")[:MAX_NAME_CHARS] or "server"
    if is_typed:
        raise UsageError(
            f"{server.name!r} is not a valid server name: use at most {MAX_NAME_CHARS} letters, digits, - and _; "
            f"for example `{ADD} {better}`"
        )
    server.notes.append(f"renamed from {server.name!r}")
    server.name = better


def _apply(server: ImportedServer, options: dict[str, Any], *, is_typed: bool) -> None:
    """Apply the options to the settings of a server."""
    settings = server.settings
    if options["url"] and settings.get("command"):
        raise UsageError("a server has either a command or an address; leave out the command or `--url`")
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
        raise UsageError(
            f"{server.name!r} needs a command or an address: `{ADD} {server.name} -- COMMAND` or `--url URL`"
        )
    if settings.get("timeout") is not None and settings["timeout"] == int(settings["timeout"]):
        settings["timeout"] = int(settings["timeout"])


def _variable(text: str) -> tuple[str, str]:
    key, has_value, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", key):
        raise UsageError(f"{text!r} is not a variable; use `--env NAME=VALUE`")
    return key, value if has_value else f"${{{key}}}"


def _header(text: str) -> tuple[str, str]:
    found = _HEADER.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a header; use `--header 'Name: value'`")
    return found[1], found[2]


def _refuse_existing(settings: Settings, found: list[ImportedServer], replace: bool) -> None:
    names = [server.name for server in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"the text contains two servers {twice!r}; add them one by one with `{ADD} NAME --json …`")
    taken = [name for name in names if name in settings.mcp_servers]
    if taken and not replace:
        listed = ", ".join(repr(name) for name in taken)
        exist = f"an MCP server {listed} already exists" if len(taken) == 1 else f"MCP servers {listed} already exist"
        these = "it" if len(taken) == 1 else "them"
        raise UsageError(f"{exist}; add `--replace` to replace {these}")


def _check(server: ImportedServer) -> None:
    """Raises UsageError for settings that can never work."""
    reader = SettingsReader()
    reader.section(McpServerSettings, server.settings, ("mcp_servers", server.name))
    if reader.problems:
        what = reader.problems[0][1].partition(";")[0]
        raise UsageError(f"{what}; fix it and run `{ADD}` again")
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
            f"{url!r} is not a valid address; use the full address: `{ADD} {name} --url https://HOST/PATH`"
        )


def _move_secrets(settings: Settings, found: list[ImportedServer]) -> dict[str, str]:
    """Replace secrets with variables; returns the variables for `.env`."""
    names = {server.name for server in found}
    others = {name: known for name, known in settings.mcp_servers.items() if name not in names}
    kept = {variable for known in others.values() for variable in variables_in(msgspec.to_builtins(known))}
    taken = {**read_env_file(settings.home.env_file), **environment()}
    moved: dict[str, str] = {}
    for server in found:
        old = settings.mcp_servers.get(server.name)
        free = own_variables(server.name, msgspec.to_builtins(old)) - kept if old is not None else set()
        mover = SecretExtractor(
            server.name, {name: value for name, value in {**taken, **moved}.items() if name not in free}
        )
        server.settings = mover.extract(server.settings)
        moved |= mover.variables
    return moved


def _report(server: ImportedServer, home: Home) -> None:
    environ = dict(environment())
    load_env_file(home, environ)
    read = SettingsReader().section(McpServerSettings, server.settings)
    ready = read_server(server.name, read, environ)
    note(f"Added {server.name!r} to {home.config_file}: {ready.address}")
    notes = list(server.notes)
    if ready.problem and read.enabled:
        notes.append(ready.problem.replace("in .env", f"in {home.env_file}"))
    elif read.command and not shutil.which(ready.settings.command, path=environ.get("PATH")) and not read.cwd:
        notes.append(f"{ready.settings.command!r} is not installed; install it before you use the server")
    if server.name in TOOLSETS or server.name in SHORT_NAMES:
        notes.append(f"a toolset has the same name; the toolset of this server is {toolset_name(server.name)!r}")
    for line in notes:
        note(f"  {server.name}: {line}")
