"""The settings of MCP servers: how to reach each one, what it may do, and which of its tools to offer.

As in `settings`, annotations are real objects, and the text under each field is its entry in the reference docs.
Sections here never show their values in logs, because they may hold tokens.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from toolcrib.config.section import (
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveFloat,
    PositiveInt,
    PrivateSection,
    shorthand,
)


class McpToolFilter(PrivateSection, frozen=True, kw_only=True):
    """Which of a server's tools to offer."""

    include: list[str] = field(default_factory=list)
    """The tools to offer, by the server's own names; patterns like `read_*` work. Empty means all."""
    exclude: list[str] = field(default_factory=list)
    """Tools that are never offered, even if `include` names them."""
    resources: bool = True
    """Offer tools that list and read the server's resources, if it has any."""
    prompts: bool = True
    """Offer tools that list and get the server's prompts, if it has any."""


class McpSamplingSettings(PrivateSection, frozen=True, kw_only=True):
    """What to do when a server asks to use the model (sampling)."""

    enabled: bool = True
    """Allow such requests."""
    ask: bool = True
    """Ask you to approve its requests, until you approve them for the session; unattended, they are denied.
    `false` lets the server use the model without approval."""
    model: str = ""
    """The model that answers; empty means the session's model."""
    max_tokens_cap: PositiveInt = 4096
    """The most tokens of one answer."""
    timeout: PositiveFloat = 30
    """How many seconds one answer may take."""
    max_rpm: PositiveInt = 10
    """How many requests the server may make per minute."""
    allowed_models: list[str] = field(default_factory=list)
    """The models that the server may ask for; empty means that it gets the one above."""
    max_tool_rounds: NonNegativeInt = 5
    """How many rounds of tool calls one request may take."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How its requests are written to the log."""


class McpOAuthSettings(PrivateSection, frozen=True, kw_only=True):
    """How to log in to a server; most servers need none of this."""

    client_id: str = ""
    """The id under which you registered toolcrib there, if you had to."""
    client_secret: str = ""
    """The secret that belongs to it; write `${SOME_VARIABLE}` and keep the secret in `.env`."""
    client_metadata_url: str = ""
    """The https address of a document that describes your toolcrib, for servers that accept it as the id."""
    scopes: list[str] = field(default_factory=list)
    """The scopes to request; empty means those that the server suggests."""
    redirect_port: Port = 0
    """The local port that the login redirects to; 0 means any free port."""


class McpLifecycle(PrivateSection, frozen=True, kw_only=True):
    """An alternative place for the two limits with the same names."""

    idle_timeout_seconds: NonNegativeFloat = 0
    """Close the connection after this many seconds without a call."""
    max_lifetime_seconds: NonNegativeFloat = 0
    """Renew the connection after this many seconds."""


class McpServerSettings(PrivateSection, frozen=True, kw_only=True):
    """One MCP server: a command to start, or an address.

    In `command`, `args`, `env`, `cwd`, `url` and `headers`, `${NAME}` and `${env:NAME}` insert a variable from the
    environment or from `.env`.
    """

    command: str = ""
    """The program to start, for a server that speaks over stdin and stdout."""
    args: list[str] = field(default_factory=list)
    """Its arguments."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables for the program; besides these it gets PATH, HOME, the language and little else."""
    cwd: str = ""
    """The folder to start it in; empty means the workspace."""
    url: str = ""
    """The address of a server that uses HTTP."""
    transport: Literal["auto", "stdio", "http", "sse"] = "auto"
    """The transport; `auto` means stdio for a command and streamable HTTP for an address."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers to send with every HTTP request."""
    client_cert: str = ""
    """A file with a client certificate, in PEM format."""
    client_key: str = ""
    """The file with its key, if that is a separate file."""
    timeout: PositiveFloat = 300
    """How many seconds one call may take."""
    connect_timeout: PositiveFloat = 60
    """How many seconds connecting may take."""
    enabled: bool = True
    """Use this server."""
    supports_parallel_tool_calls: bool = False
    """Send several calls at once; otherwise each waits for the one before it."""
    max_parallel: PositiveInt = 8
    """The most calls at once, if several are allowed."""
    tools: McpToolFilter = field(default_factory=McpToolFilter)
    """Which of the server's tools to offer."""
    trust: Literal["ask", "read_only", "all"] = "read_only"
    """`ask`: every call needs your approval; `read_only`: except calls of read-only tools; `all`: no call does."""
    trusted_tools: list[str] = field(default_factory=list)
    """Tools that run without approval, by the server's own names."""
    roots: list[str] = field(default_factory=list)
    """Folders that toolcrib tells the server it may work in (roots); empty means the workspace."""
    sampling: Annotated[McpSamplingSettings, shorthand("enabled")] = field(default_factory=McpSamplingSettings)
    """What to do when the server asks to use the model (sampling); `false` alone forbids it."""
    auth: Literal["none", "oauth"] = "none"
    """`oauth`: log in with `toolcrib mcp login NAME`."""
    oauth: McpOAuthSettings = field(default_factory=McpOAuthSettings)
    """How to log in to the server."""
    keepalive_interval: Annotated[float, Meta(ge=5)] = 180
    """How many seconds an HTTP connection may be silent before toolcrib tests it."""
    idle_timeout_seconds: NonNegativeFloat = 0
    """Close the connection after this many seconds without a call, until the next one; 0 means never."""
    max_lifetime_seconds: NonNegativeFloat = 0
    """Renew the connection after this many seconds, between two calls; 0 means never."""
    lifecycle: McpLifecycle = field(default_factory=McpLifecycle)
    """An alternative place for the two limits above."""
    skip_preflight: bool = False
    """A Hermes Agent setting; it has no effect here, because nothing is looked up before a server starts."""


class McpSettings(PrivateSection, frozen=True, kw_only=True):
    """How toolcrib works with all MCP servers."""

    auto_reload_on_config_change: bool = True
    """Start, restart and stop servers when their part of the config file changes."""
    discovery_timeout: NonNegativeFloat = 1.5
    """How many seconds the first request to the model waits for servers that are still starting."""
