"""MCP servers in the config formats of other clients, read as our settings.

    mcpServers         Claude, Cursor, Windsurf, Gemini, Cline and most others; a list in Continue
    servers, inputs    VS Code, also below `mcp`
    context_servers    Zed
    mcp                opencode
    mcp_servers        Codex, Hermes Agent, toolcrib

A single server and a mapping of servers work too, as JSON with comments and stray commas, TOML, YAML or a fenced block.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.yaml_text import parse
from toolcrib.core.errors import ConfigError, UnknownName, UsageError
from toolcrib.dispatch.coercion import InvalidJson, read_json

_FENCE = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_STRING = r'("(?:\\.|[^"\\])*")'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRAY_COMMA = re.compile(_STRING + r"|,(?=\s*[}\]])", re.DOTALL)
_INNER_PART = re.compile(r'\s*"[^"\n]+"\s*:')
_TOML = re.compile(r"^\s*\[mcp_servers\b", re.MULTILINE)
_YAML = re.compile(r"^(mcp_servers|mcpServers|extensions)\s*:", re.MULTILINE)
SERVER_MAPS = ("mcpServers", "mcp_servers", "context_servers", "servers", "mcp")
ADDRESSES = ("url", "serverUrl", "httpUrl", "uri", "baseUrl", "endpoint")
RENAMED = {
    **dict.fromkeys(ADDRESSES, "url"),
    "cmd": "command",
    "environment": "env",
    "envs": "env",
    "http_headers": "headers",
    "workingDirectory": "cwd",
    "working_directory": "cwd",
    "startup_timeout_sec": "connect_timeout",
    "tool_timeout_sec": "timeout",
}
TOOL_FILTERS = {
    **dict.fromkeys(("includeTools", "enabled_tools", "allowedTools"), "include"),
    **dict.fromkeys(("excludeTools", "disabled_tools", "disabledTools"), "exclude"),
}
TRANSPORTS = {
    **dict.fromkeys(("stdio", "local", "command"), "stdio"),
    **dict.fromkeys(("http", "remote", "streamable-http", "streamable_http", "streamableHttp", "http-stream"), "http"),
    "sse": "sse",
}
# Keys that do not matter for connecting.
IGNORED = frozenset(
    "name description source gallery $schema id title version icon logoUrl provider providerUrl tags type "  # noqa: SIM905
    "transport transportType dev longRunning metadata registry bundled display_name".split()
)
MILLISECONDS_FROM = 1000
"""A timeout this large must be in milliseconds, which many clients use."""


def read_pasted(text: str) -> Any:
    """The parsed text; raises UsageError with the reason if it cannot be parsed."""
    text = text.removeprefix("\ufeff").replace("\u00a0", " ")
    if '"' not in text:
        # Web pages turn straight quotes into typographic ones.
        text = text.replace("\u201c", '"').replace("\u201d", '"')
    fenced = _FENCE.search(text)
    text = (fenced[1] if fenced else text).strip()
    if _TOML.search(text):
        return _toml(text)
    if not text.startswith(("{", "[")) and _YAML.search(text):
        return _yaml(text)
    return _json(text)


def _json(text: str) -> Any:
    text = _COMMENT.sub(lambda found: found[1] or "\n" * found[0].count("\n"), text).strip()
    if _INNER_PART.match(text):
        # A fragment without the outer braces, as many pages show it.
        text = "{" + text.rstrip().rstrip(",") + "}"
    text = _STRAY_COMMA.sub(lambda found: found[1] or "", text)
    if not text.startswith("["):
        begin, end = text.find("{"), text.rfind("}")
        if begin < 0:
            raise UsageError(f"there is no JSON in {_shortened(text)}; run `toolcrib mcp add --help` for examples")
        text = text[begin : end + 1 if end > begin else None]
    try:
        return read_json(text)
    except InvalidJson as error:
        # Keys without quotes, and single quotes, are YAML.
        with contextlib.suppress(ConfigError):
            data = parse(text, "the text").data
            if isinstance(data, dict):
                return data
        raise UsageError(f"this is not JSON: {error}; run `toolcrib mcp add --help` for examples") from error


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"this is not TOML: {error}; run `toolcrib mcp add --help` for examples") from error


def _yaml(text: str) -> Any:
    try:
        return parse(text, "the text").data
    except ConfigError as error:
        reason = str(error).partition(";")[0]
        raise UsageError(f"this is not YAML: {reason}; run `toolcrib mcp add --help` for examples") from error


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


KNOWN_KEYS = frozenset(McpServerSettings.__struct_fields__)


class ImportedServer(msgspec.Struct):
    """A server as it goes into the config."""

    name: str
    settings: dict[str, Any]
    notes: list[str]
    """What the person should know about the import."""


class UnknownServerInText(UnknownName):
    kind = "server in this text,"


def read_servers(data: Any, name: str = "") -> list[ImportedServer]:
    """The servers in the data; with `name`, the one with this name, or the only one, which gets this name."""
    found = _server_map(data, name)
    if name and len(found) > 1 and name not in found:
        raise UnknownServerInText(
            name, found, advice=f"it has {', '.join(found)}; run `toolcrib mcp add --json …` to add all"
        )
    if name:
        found = {name: found[name] if name in found else next(iter(found.values()))}
    inputs = _inputs(data)
    return [_read(key, raw, inputs) for key, raw in found.items()]


def _server_map(data: Any, name: str) -> dict[str, Any]:
    if isinstance(data, list):
        data = {str(raw.get("name") or f"server-{at}"): raw for at, raw in enumerate(data, 1) if isinstance(raw, dict)}
    if not isinstance(data, dict):
        raise _no_servers()
    if _is_server(data):
        chosen = name or data.get("name") or data.get("id")
        if not chosen:
            raise UsageError("this server has no name; run `toolcrib mcp add NAME --json …`")
        return {str(chosen): data}
    for key in SERVER_MAPS:
        if isinstance(data.get(key), dict | list) and data[key]:
            return _server_map(data[key], name)
    servers = {str(key): raw for key, raw in data.items() if isinstance(raw, dict) and _is_server(raw)}
    if not servers:
        raise _no_servers()
    return servers


def _is_server(data: Mapping[str, Any]) -> bool:
    if any(isinstance(data.get(key), str) for key in ADDRESSES):
        return True
    command = data.get("command", data.get("cmd"))
    return isinstance(command, str | list) or (isinstance(command, dict) and "path" in command)


def _no_servers() -> UsageError:
    return UsageError(
        "no MCP server found: nothing in this text has a command or an address; "
        "run `toolcrib mcp add --help` for examples"
    )


def _inputs(data: Any) -> dict[str, Any]:
    """The inputs that VS Code would ask for, by id."""
    if not isinstance(data, dict):
        return {}
    given = data.get("inputs") or (data["mcp"].get("inputs") if isinstance(data.get("mcp"), dict) else None)
    listed = given if isinstance(given, list) else []
    return {str(one["id"]): one for one in listed if isinstance(one, dict) and "id" in one}


def _read(name: str, raw: Any, inputs: Mapping[str, Any]) -> ImportedServer:
    server = ImportedServer(name, {}, [])
    settings = server.settings
    for key, value in raw.items():
        if key == "command" and isinstance(value, dict):
            settings.update({"command": value.get("path"), "args": value.get("args"), "env": value.get("env")})
        elif value is not None and not _take_known(settings, key, value) and key not in IGNORED:
            server.notes.append(f"ignored {key!r}, which toolcrib does not know")
    _take_transport(server, raw)
    _take_secret_names(settings, raw)
    _tidy(settings)
    filling = _VariableSyntax(inputs, server.notes)
    for key in ("command", "args", "env", "cwd", "url", "headers"):
        if key in settings:
            settings[key] = _each_text(settings[key], filling.filled)
    return server


def _take_known(settings: dict[str, Any], key: str, value: Any) -> bool:
    """Take over a key that has the same meaning here; False for any other key."""
    if key in TOOL_FILTERS:
        settings.setdefault("tools", {})[TOOL_FILTERS[key]] = value
    elif key == "tools" and isinstance(value, list):
        if value != ["*"]:
            settings.setdefault("tools", {})["include"] = value
    elif key in ("disabled", "isActive"):
        settings["enabled"] = value is True if key == "isActive" else value is not True
    elif key == "startup_timeout_ms" and isinstance(value, int | float):
        settings["connect_timeout"] = value / 1000
    elif key == "trust" and isinstance(value, bool):
        return not value  # Only the person decides to trust a server, not another client's config.
    elif key in ("env_vars", "env_http_headers", "bearer_token_env_var"):
        return True
    elif RENAMED.get(key, key) in KNOWN_KEYS and key != "transport":
        settings[RENAMED.get(key, key)] = value
    else:
        return False
    return True


def _take_transport(server: ImportedServer, raw: Mapping[str, Any]) -> None:
    given = next((raw[key] for key in ("type", "transport", "transportType") if isinstance(raw.get(key), str)), "")
    kind = TRANSPORTS.get(given, "")
    # `auto` finds every other transport.
    if kind == "sse" and server.settings.get("url"):
        server.settings["transport"] = "sse"
    if given and not kind and given not in ("auto", "custom", "extension"):
        server.notes.append(f"ignored the transport {given!r}, which toolcrib does not know")


def _take_secret_names(settings: dict[str, Any], raw: Mapping[str, Any]) -> None:
    """Take over the variables that hold secrets, which Codex names."""
    variables, by_header, bearer = (raw.get(key) for key in ("env_vars", "env_http_headers", "bearer_token_env_var"))
    env = {str(name): f"${{{name}}}" for name in variables} if isinstance(variables, list) else {}
    headers = {name: f"${{{value}}}" for name, value in by_header.items()} if isinstance(by_header, dict) else {}
    if isinstance(bearer, str) and bearer:
        headers["Authorization"] = f"Bearer ${{{bearer}}}"
    for key, more in (("env", env), ("headers", headers)):
        given = settings.get(key)
        if more and (given is None or isinstance(given, dict)):
            settings[key] = {**(given or {}), **more}


def _tidy(settings: dict[str, Any]) -> None:
    """Normalise: strings, a command apart from its arguments, timeouts in seconds, no empty values."""
    command = settings.get("command")
    if isinstance(command, list):
        more = settings.get("args")
        settings["command"] = _as_text(command[0]) if command else ""
        settings["args"] = [*command[1:], *(more if isinstance(more, list) else [])]
    for key in ("env", "headers"):
        if isinstance(settings.get(key), dict):
            settings[key] = {str(name): _as_text(value) for name, value in settings[key].items() if value is not None}
    if isinstance(settings.get("args"), list):
        settings["args"] = [_as_text(word) for word in settings["args"]]
    timeout = settings.get("timeout")
    if isinstance(timeout, int | float) and timeout >= MILLISECONDS_FROM:
        settings["timeout"] = timeout / 1000
    if settings.get("enabled") is True:
        del settings["enabled"]
    for key in [key for key, value in settings.items() if value in (None, "", [], {})]:
        del settings[key]


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    return {key: _each_text(item, change) for key, item in value.items()} if isinstance(value, dict) else value


class _VariableSyntax:
    """Translates other clients' variable syntax to ours."""

    _FORMS = re.compile(
        r"\$\{input:(?P<input>[^}]+)\}"
        r"|\$\{(?:workspaceFolder|workspaceRoot)(?::[^}]*)?\}(?P<inside>/)?"
        r"|(?P<home>\$\{userHome\})"
        r"|\$\{(?P<name>[A-Za-z_]\w*):-(?P<default>[^}]*)\}"
        r"|(?<!\$)\{env:(?P<braced>[A-Za-z_]\w*)\}"
    )

    def __init__(self, inputs: Mapping[str, Any], notes: list[str]) -> None:
        self._inputs = inputs
        self._notes = notes

    def filled(self, text: str) -> str:
        return self._FORMS.sub(self._one, text)

    def _one(self, found: re.Match[str]) -> str:
        if found["input"]:
            return self._asked(found["input"])
        if found["home"]:
            return "${HOME}"
        if found["braced"]:
            return f"${{{found['braced']}}}"
        if found["name"]:
            self._note(
                f"used the default {found['default']!r} for {found[0]}; write ${{{found['name']}}} to use the variable"
            )
            return found["default"]
        # Servers start in the workspace.
        return "./" if found["inside"] else "."

    def _asked(self, wanted: str) -> str:
        about = self._inputs.get(wanted, {})
        if "default" in about and not about.get("password"):
            return str(about["default"])
        variable = re.sub(r"[^A-Za-z0-9]+", "_", wanted).strip("_").upper()
        variable = f"_{variable}" if variable[:1].isdigit() or not variable else variable
        what = str(about.get("description") or "").strip().rstrip(".")
        self._note(f"${{input:{wanted}}} became ${{{variable}}}" + (f" ({what})" if what else ""))
        return f"${{{variable}}}"

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
