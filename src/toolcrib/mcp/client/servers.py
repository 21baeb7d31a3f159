"""The servers of the config: their settings with variables filled in, and their status at runtime."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
from msgspec.structs import replace

from toolcrib.config.mcp_settings import McpServerSettings, McpToolFilter
from toolcrib.config.paths import Home
from toolcrib.config.redact import mask_shapes
from toolcrib.mcp.loop_detection import DEPTH_VARIABLE, nesting_depth, start_problem
from toolcrib.web.token_store import TokenStore

Transport = Literal["stdio", "http", "sse"]

# The variables of our environment that a server inherits, besides those its config names.
_INHERITED = frozenset(
    "PATH HOME USER LOGNAME LANG LC_ALL LC_CTYPE TERM SHELL TMPDIR TMP TEMP TZ "  # noqa: SIM905 - read as one line
    "SYSTEMROOT SYSTEMDRIVE COMSPEC PATHEXT USERNAME USERPROFILE HOMEDRIVE HOMEPATH APPDATA LOCALAPPDATA".split()
)
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server, ready to be connected, or with the reason why it cannot be."""

    name: str
    settings: McpServerSettings
    """With all variables filled in."""
    transport: Transport
    environ: Mapping[str, str]
    """The whole environment of the process, for stdio."""
    address: str = ""
    """Its command line or URL for display: as written in the config, without the values of variables."""
    problem: str = ""
    """Why it is not used; empty if it is."""

    @property
    def idle_seconds(self) -> float:
        return self.settings.idle_timeout_seconds or self.settings.lifecycle.idle_timeout_seconds

    @property
    def lifetime_seconds(self) -> float:
        return self.settings.max_lifetime_seconds or self.settings.lifecycle.max_lifetime_seconds

    @property
    def calls_at_once(self) -> int:
        return self.settings.max_parallel if self.settings.supports_parallel_tool_calls else 1


def read_server(name: str, settings: McpServerSettings, environ: Mapping[str, str]) -> Server:
    """Resolve the settings of a server; `environ` is our environment merged with the `.env` file."""
    unset: list[str] = []
    filled = _fill_variables(settings, environ, unset)
    transport = _transport(filled)
    passed = {key: value for key, value in environ.items() if key in _INHERITED or key.startswith("XDG_")}
    return Server(
        name=name,
        settings=filled,
        transport=transport,
        environ={**passed, **filled.env, DEPTH_VARIABLE: str(nesting_depth(environ) + 1)},
        address=_command_line([settings.command, *map(_masked, settings.args)])
        if transport == "stdio"
        else _masked(settings.url),
        problem=_problem(name, filled, transport, unset)
        or (start_problem(filled, environ) if transport == "stdio" else ""),
    )


def _masked(text: str) -> str:
    """The text with anything that looks like a secret masked; a variable is not a secret."""
    return text if "${" in text else mask_shapes(text)


def _command_line(words: list[str]) -> str:
    """The words as a person would type them; `${NAME}` stays as written in the config."""
    return " ".join(word if word and not re.search(r"[\s'\"]", word) else shlex.quote(word) for word in words)


def is_tool_enabled(tool: str, wanted: McpToolFilter) -> bool:
    """Whether the config includes a tool of a server."""
    if any(fnmatchcase(tool, pattern) for pattern in wanted.exclude):
        return False
    return not wanted.include or any(fnmatchcase(tool, pattern) for pattern in wanted.include)


def _fill_variables(settings: McpServerSettings, environ: Mapping[str, str], unset: list[str]) -> McpServerSettings:
    def value_of(found: re.Match[str]) -> str:
        value = environ.get(found[1])
        if value is None:
            unset.append(found[1])
        return value or ""

    def fill(text: str) -> str:
        return _VARIABLE.sub(value_of, text)

    return replace(
        settings,
        command=fill(settings.command),
        args=[fill(word) for word in settings.args],
        env=_fill_values(settings.env, fill),
        cwd=fill(settings.cwd),
        url=fill(settings.url),
        headers=_fill_values(settings.headers, fill),
        oauth=replace(
            settings.oauth,
            client_id=fill(settings.oauth.client_id),
            client_secret=fill(settings.oauth.client_secret),
        ),
    )


def _fill_values(values: Mapping[str, str], fill: Callable[[str], str]) -> dict[str, str]:
    return {key: fill(value) for key, value in values.items()}


def _transport(settings: McpServerSettings) -> Transport:
    if settings.transport != "auto":
        return settings.transport
    return "stdio" if settings.command else "http"


def _problem(name: str, settings: McpServerSettings, transport: Transport, unset: list[str]) -> str:
    where = f"mcp_servers.{name}"
    if not settings.enabled:
        return f"it is disabled; set {where}.enabled to true to use it"
    if unset:
        names = ", ".join(dict.fromkeys(unset))
        return f"it needs {names}, which is not set; set it in the environment or in .env"
    if transport == "stdio" and not settings.command:
        return f"it has no command; set {where}.command, or {where}.url for an HTTP server"
    if transport != "stdio" and not settings.url:
        return f"it has neither a command nor a URL; set {where}.command or {where}.url"
    if transport != "stdio" and not settings.url.lower().startswith(("http://", "https://")):
        return f"its URL does not start with http:// or https://; fix {where}.url"
    if settings.transport == "auto" and settings.command and settings.url:
        return f"it has both a command and a URL; remove one of them, or set {where}.transport"
    broken = [
        key for key, value in settings.headers.items() if not _HEADER_NAME.fullmatch(key) or not _is_single_line(value)
    ]
    if broken:
        return f"its header {broken[0]!r} is not valid; fix {where}.headers"
    if any("\0" in text for text in (settings.command, *settings.args, settings.cwd, *settings.env.values())):
        return f"its command line contains a NUL character; fix {where}"
    return ""


def _is_single_line(value: str) -> bool:
    return "\n" not in value and "\r" not in value and "\0" not in value


def token_store(server: Server, home: Home) -> TokenStore:
    """The store for the login at a server."""
    settings = server.settings
    return TokenStore(home.root / "mcp_tokens", server.name, settings.url, settings.oauth.client_id)


ServerState = Literal["starting", "ready", "degraded", "waiting", "disabled", "needs_login"]


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one server at one moment."""

    name: str
    state: ServerState
    last_error: str = ""
    since: float = 0.0
    """When it entered this state, in seconds since the epoch."""
    next_retry: float | None = None
    """When the next attempt is due, in seconds since the epoch."""
    tools: int = 0
    rejected: tuple[tuple[str, str], ...] = ()
    """Tools that are not registered, each with the reason."""
    protocol_version: str = ""
    transport: Transport = "stdio"
    address: str = ""
    """Its command line or URL."""
    pid: int | None = None
    instructions: str = ""
    """What the server says about itself; untrusted."""
