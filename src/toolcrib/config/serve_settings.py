"""The settings of `toolcrib serve` and `toolcrib acp`.

Annotations are real objects here, as in `settings.py`.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from toolcrib.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section

ServePort = Annotated[int, Meta(ge=0, le=65_535)]


class ServeLimits(Section, frozen=True, kw_only=True):
    """How much the server does at once. One token, and all tokens of another owner together, get three quarters of the
    runs and streams, so that the others find room."""

    max_body_mb: PositiveFloat = 20
    """The largest request body, in megabytes."""
    max_runs: PositiveInt = 16
    """How many runs may work at the same time; another one is refused with status 429."""
    max_streams: PositiveInt = 256
    """How many streams may be open at the same time."""
    requests_per_minute: PositiveInt = 600
    """How many requests one token may make in a minute."""
    cost_per_day_usd: NonNegativeFloat = 0
    """No new runs start once those of the last 24 hours have cost this much, or those of another owner three quarters
    of it; 0 means no limit."""


class WebhookSettings(Section, frozen=True, kw_only=True):
    """A service that may start runs, at `/hooks/NAME`."""

    secret_env: str = ""
    """The variable that holds its secret, at least 32 characters; it signs every delivery."""
    scheme: Literal["standard", "github"] = "standard"
    """How it signs: as the Standard Webhooks specification says, or as GitHub does."""
    prompt: str = ""
    """What the agent does with what was sent, which it gets as data."""
    toolsets: list[str] = field(default_factory=list)
    """The toolsets of its runs; none without it."""


class ServeSettings(Section, frozen=True, kw_only=True):
    """How `toolcrib serve` works."""

    host: str = "127.0.0.1"
    """The address to listen on. A public one needs TLS or a trusted proxy."""
    port: ServePort = 8642
    """The port to listen on; 0 picks a free one."""
    toolsets: list[str] = field(default_factory=lambda: ["api-server", "clarify"])
    """The toolsets of the server's agents."""
    approval_timeout: PositiveFloat = 300
    """How many seconds a run waits for an approval or an answer; then the call is denied."""
    tls_certificate: str = ""
    """The file with the TLS certificate; empty serves plain HTTP."""
    tls_key: str = ""
    """The file with the key of the certificate."""
    proxy_names: list[str] = field(default_factory=list)
    """The host names of a trusted proxy in front of the server, which provides TLS."""
    jobs: bool = True
    """Whether the server runs scheduled jobs, as `toolcrib cron serve` does."""
    mcp: bool = False
    """Whether the server also offers its tools over MCP, at `/mcp`."""
    acp: bool = False
    """Whether editors can also reach the agent over a WebSocket, at `/acp`."""
    keep_days: PositiveInt = 30
    """How many days ended runs, their events and stored answers are kept; sessions stay. With a session, they are
    deleted at once."""
    webhooks: dict[str, WebhookSettings] = field(default_factory=dict)
    """Services that may start runs, by the name that you give them."""
    limits: ServeLimits = field(default_factory=ServeLimits)
    """How much the server does at once."""


class AcpSettings(Section, frozen=True, kw_only=True):
    """How `toolcrib acp` works inside an editor."""

    files: Literal["editor", "own"] = "editor"
    """`editor`: read and edit text files through the editor if it offers that, so that unsaved changes count; `own`:
    always use the files on disk."""
    terminal: Literal["editor", "own"] = "own"
    """`editor`: run commands in the editor's terminals if it offers them, with the editor's environment and without a
    lasting shell session; `own`: run them where `terminal.backend` says, and show the output in the editor."""
    mcp_trust: Literal["ask", "read_only", "all"] = "read_only"
    """How far to trust MCP servers that the editor passes, as in `mcp_servers.NAME.trust`."""
    approval_timeout: PositiveFloat = 3600
    """How many seconds a call waits for your approval in the editor; then it is denied."""
