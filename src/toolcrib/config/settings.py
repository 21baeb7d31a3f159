"""Every setting with its type, default and purpose. A new section is one class and one field of Settings.

Annotations are real objects here (no postponed evaluation): the loader reads types, limits and shorthands from them.
The text under each field is its entry in the reference docs.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from toolcrib.config.agent_settings import (
    AgentSettings,
    AuxiliarySettings,
    ChatSettings,
    CompressionSettings,
    DelegationSettings,
    GuardrailSettings,
    KanbanSettings,
    MemorySettings,
    MixtureSettings,
    ModelSettings,
    ProviderEntry,
)
from toolcrib.config.approval_entries import grant_text, rule_text
from toolcrib.config.browser_settings import BrowserSettings
from toolcrib.config.hook_settings import ShellHookSettings
from toolcrib.config.mcp_settings import McpServerSettings, McpSettings
from toolcrib.config.media_settings import ImageGenSettings, SttSettings, TtsSettings, VideoGenSettings, VisionSettings
from toolcrib.config.paths import Home, find_home
from toolcrib.config.section import (
    NOT_IN_FILE,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    item_text,
    shorthand,
)
from toolcrib.config.serve_settings import AcpSettings, ServeSettings
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.config.web_settings import WebSettings, WebsiteList

LogLevel = Literal["debug", "info", "warning", "error"]


class CustomToolset(Section, frozen=True, kw_only=True):
    """Your own toolset, or an addition to an existing one."""

    description: str = ""
    """One sentence about the toolset, shown by `toolcrib toolsets list`."""
    tools: list[str] = field(default_factory=list)
    """The tools that it adds, by name."""
    includes: list[str] = field(default_factory=list)
    """Other toolsets whose tools it includes, by name."""


class PluginEntry(Section, frozen=True, kw_only=True):
    """What one plugin may do."""

    allow_tool_override: bool = False
    """Let this plugin replace tools that it did not register."""


class PluginSettings(Section, frozen=True, kw_only=True):
    """Which plugins to load."""

    enabled: list[str] = field(default_factory=list)
    """The plugins to load, by name; any other plugin stays off."""
    disabled: list[str] = field(default_factory=list)
    """Plugins that are never loaded, even if they are enabled."""
    project: bool = False
    """Also look for plugins in the project folder that toolcrib starts in."""
    entries: dict[str, PluginEntry] = field(default_factory=dict)
    """Permissions by plugin name."""


class ToolSearchSettings(Section, frozen=True, kw_only=True):
    """Whether the model searches for rarely used tools instead of getting all their descriptions."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """`auto` turns search on when the descriptions would take too large a share of the context."""
    threshold_pct: Annotated[float, Meta(ge=0, le=100)] = 10
    """The share of the context, in percent, at which `auto` turns search on."""
    search_default_limit: PositiveInt = 5
    """How many tools a search returns if the model does not say."""
    max_search_limit: PositiveInt = 20
    """The most tools that one search returns."""


class ToolSettings(Section, frozen=True, kw_only=True):
    """How tools run."""

    max_parallel: PositiveInt = 8
    """How many calls of one batch may run at the same time."""
    nested_call_timeout_seconds: PositiveFloat = 300
    """How long a call made from inside a running event loop may take."""
    check_timeout_seconds: PositiveFloat = 1.0
    """How long the availability check of one tool may take."""
    timeouts: dict[str, PositiveFloat] = field(default_factory=dict)
    """Time limits in seconds, by tool name."""
    tool_search: Annotated[ToolSearchSettings, shorthand("enabled")] = field(default_factory=ToolSearchSettings)
    """Tool search; `true`, `false` or `auto` alone sets `enabled`."""


class ToolOutputSettings(Section, frozen=True, kw_only=True):
    """How much of a tool's output reaches the model."""

    max_result_chars: PositiveInt = 100_000
    """The most characters of one result; a longer one is saved to a file that the model can read."""
    max_turn_chars: PositiveInt = 200_000
    """The most characters of all results of one turn together."""
    max_bytes: PositiveInt = 50_000
    """The most bytes of terminal output."""
    max_lines: PositiveInt = 2000
    """The most lines of a file that one read returns."""
    max_line_length: PositiveInt = 2000
    """The most characters of one line; longer lines are truncated."""


class CodeExecutionSettings(Section, frozen=True, kw_only=True):
    """How `execute_code` runs a script."""

    mode: Literal["project", "strict"] = "project"
    """`project`: in the session's folder, with the project's Python; `strict`: in an empty folder, with only the
    standard library."""
    sandbox: Literal["auto", "on", "off"] = "auto"
    """With the local backend, run scripts in the kernel sandbox: `auto` if there is one; `on` refuses to run without
    one."""
    network: bool = False
    """Let scripts in the sandbox use the network."""
    python: str = ""
    """The interpreter to run scripts with; empty means the project's, else `python3`."""
    timeout: PositiveFloat = 300
    """How many seconds one script may take."""
    max_tool_calls: NonNegativeInt = 50
    """How many tools one script may call."""
    max_output_bytes: PositiveInt = 50_000
    """How much of a script's output reaches the model."""
    max_error_bytes: PositiveInt = 10_000
    """How much of a script's error output reaches the model."""
    memory_mb: NonNegativeInt = 1024
    """How much memory one script may use, in megabytes; 0 means no limit."""
    max_processes: NonNegativeInt = 64
    """How many processes one script may start, where the kernel can count them; 0 means no limit."""


class UndoSettings(Section, frozen=True, kw_only=True):
    """What tools and commands change, for `toolcrib undo`."""

    enabled: bool = True
    """Save files before a tool or command changes or deletes them."""
    max_file_mb: NonNegativeFloat = 50
    """The largest file to save, in megabytes."""
    max_files: NonNegativeInt = 50_000
    """The most files in a workspace that is scanned around commands. Beyond it, only files that a call names are
    saved."""
    max_workspace_mb: NonNegativeFloat = 500
    """The largest workspace that is scanned around commands, in megabytes."""
    max_scan_seconds: NonNegativeFloat = 20
    """How long one scan of the workspace may take."""
    max_total_mb: NonNegativeFloat = 2000
    """The most space for everything that is saved, in megabytes; the oldest sessions are deleted first."""
    ignore: list[str] = field(default_factory=list)
    """More files to leave out of scans, as patterns of `.gitignore`."""
    include: list[str] = field(default_factory=list)
    """Files and folders to scan although git ignores them, as paths from the workspace."""


class SkillSettings(Section, frozen=True, kw_only=True):
    """Which skills the agent sees."""

    folders: list[str] = field(default_factory=list)
    """Extra folders with skills, besides those in the home and the project."""
    disabled: list[str] = field(default_factory=list)
    """Skills to hide, by name."""
    bundled: bool = True
    """Show the skills that ship with toolcrib."""
    project: bool = True
    """Show the skills of the project that toolcrib starts in."""


class CronSettings(Section, frozen=True, kw_only=True):
    """How scheduled jobs run."""

    missed: Literal["once", "skip", "all"] = "once"
    """Which missed runs to make up for after no scheduler was running: one for all of them, none, or each."""
    timezone: str = ""
    """The time zone of schedules that don't name one, for example `Europe/Berlin`; empty means this machine's."""
    max_parallel: PositiveInt = 3
    """How many jobs may run at the same time."""
    timeout: PositiveFloat = 3600
    """How many seconds one run may take."""
    keep_runs: PositiveInt = 50
    """How many runs of each job to keep."""


EntryPolicy = Literal["ask", "allow", "deny"]


class PolicySettings(Section, frozen=True, kw_only=True):
    """What to do about a dangerous call, by where it comes from: `ask` for approval, `allow` it, or `deny` it.

    Catastrophic commands and deny rules apply in any case.
    """

    interactive: EntryPolicy = "ask"
    """`toolcrib chat` at a terminal."""
    gateway: EntryPolicy = "ask"
    """Messaging platforms, which ask in the chat."""
    cron: EntryPolicy = "deny"
    """Scheduled jobs, which run unattended."""
    batch: EntryPolicy = "deny"
    """Batch runs over many prompts, which run unattended."""
    library: EntryPolicy = "deny"
    """Programs that use toolcrib as a library; a program with its own approver is asked instead of denied."""


class ApprovalSettings(Section, frozen=True, kw_only=True):
    """When a tool call needs a person's approval."""

    mode: Literal["manual", "smart", "off"] = "manual"
    """`manual` asks you, `smart` first asks a model about the classes in `smart_classes`, `off` never asks."""
    timeout: PositiveFloat = 60
    """How many seconds to wait for an approval."""
    policies: PolicySettings = field(default_factory=PolicySettings)
    """What to do about a dangerous call, by where it comes from."""
    deny: list[str] = field(default_factory=list)
    """Commands that never run, as patterns like `git push *`; every command of a line is checked."""
    rules: Annotated[list[str], item_text(rule_text)] = field(default_factory=list)
    """Rules like `allow rm in workspace`, `ask npm install`, `deny git push --force in ~/work`; deny wins, then ask."""
    smart_classes: list[str] = field(default_factory=lambda: ["recursive delete inside the workspace"])
    """The kinds of danger that the model may approve in `smart` mode."""
    provenance: Literal["auto", "on", "off"] = "auto"
    """Decide calls with an outside effect by where their values come from; `auto`: where nobody can be asked."""
    provenance_limit: Annotated[float, Meta(ge=0)] = 100
    """The largest amount that a call may contain without approval if neither you nor a trusted source named it."""


class SecuritySettings(Section, frozen=True, kw_only=True):
    """What to hide from the model and from logs, and which websites the tools may reach."""

    redact_secrets: bool = True
    """Mask keys and passwords in results and errors."""
    allow_private_urls: bool = False
    """Let web tools reach this machine and private networks. Metadata services of clouds stay out of reach."""
    allowed_private_hosts: list[str] = field(default_factory=list)
    """Single private hosts that web tools may reach, as `host:port`."""
    website_blocklist: WebsiteList = field(default_factory=WebsiteList)
    """Websites that web tools never reach."""
    website_allowlist: WebsiteList = field(default_factory=WebsiteList)
    """The only websites that web tools may reach; the blocklist still applies."""


class LoggingSettings(Section, frozen=True, kw_only=True):
    """What goes into the log file."""

    level: LogLevel = "info"
    """The lowest level to log."""


class Settings(Section, frozen=True, kw_only=True):
    """All settings as one value."""

    toolsets: list[str] = field(default_factory=lambda: ["cli"])
    """The toolsets that `toolcrib chat` offers to the model. An empty list means no tools."""
    model: Annotated[ModelSettings, shorthand("default")] = field(default_factory=ModelSettings)
    """Which model answers; a name alone sets `default`."""
    auxiliary: Annotated[AuxiliarySettings, shorthand("model")] = field(default_factory=AuxiliarySettings)
    """The model for small jobs; a name alone sets `model`."""
    providers: dict[str, ProviderEntry] = field(default_factory=dict)
    """Model servers that toolcrib doesn't know, by the name that you give them."""
    agent: AgentSettings = field(default_factory=AgentSettings)
    """How the agent works."""
    chat: ChatSettings = field(default_factory=ChatSettings)
    """What `toolcrib chat` shows."""
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    """How to compress a conversation before it outgrows the model's context window."""
    tool_loop_guardrails: GuardrailSettings = field(default_factory=GuardrailSettings)
    """What stops a model that repeats itself."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    """What the agent remembers across sessions."""
    delegation: DelegationSettings = field(default_factory=DelegationSettings)
    """Subagents that the agent starts with `delegate_task`."""
    custom_toolsets: dict[str, CustomToolset] = field(default_factory=dict)
    """Your own toolsets, by name; the name of an existing toolset adds to it."""
    plugins: PluginSettings = field(default_factory=PluginSettings)
    """Which plugins to load."""
    shell_hooks: dict[str, ShellHookSettings] = field(default_factory=dict)
    """Commands that run on events, by the name that you give them."""
    tools: ToolSettings = field(default_factory=ToolSettings)
    """How tools run."""
    tool_output: ToolOutputSettings = field(default_factory=ToolOutputSettings)
    """How much of a tool's output reaches the model."""
    file_read_max_chars: PositiveInt = 100_000
    """The most characters that one `read_file` returns."""
    terminal: TerminalSettings = field(default_factory=TerminalSettings)
    """Where and how commands run."""
    code_execution: CodeExecutionSettings = field(default_factory=CodeExecutionSettings)
    """How `execute_code` runs a script."""
    undo: UndoSettings = field(default_factory=UndoSettings)
    """Snapshots of files from before tools change them."""
    skills: SkillSettings = field(default_factory=SkillSettings)
    """Which skills the agent sees."""
    cron: CronSettings = field(default_factory=CronSettings)
    """How scheduled jobs run."""
    mcp_servers: dict[str, McpServerSettings] = field(default_factory=dict)
    """MCP servers whose tools to offer, by the name that you give them."""
    mcp: McpSettings = field(default_factory=McpSettings)
    """How toolcrib works with all MCP servers."""
    mcp_discovery_timeout: Annotated[float | None, Meta(ge=0)] = None
    """Hermes Agent's name for `mcp.discovery_timeout`; it wins if set."""
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    """When a tool call needs a person's approval."""
    command_allowlist: Annotated[list[str], item_text(grant_text)] = field(default_factory=list)
    """Permanent approvals, as lines like `recursive delete (inside the workspace)`; "always" adds them."""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    """What to hide from the model and from logs, and which websites the tools may reach."""
    web: WebSettings = field(default_factory=WebSettings)
    """How `web_search` and `web_extract` work."""
    browser: BrowserSettings = field(default_factory=BrowserSettings)
    """How the browser tools work."""
    serve: ServeSettings = field(default_factory=ServeSettings)
    """How `toolcrib serve` works."""
    acp: AcpSettings = field(default_factory=AcpSettings)
    """How `toolcrib acp` works inside an editor."""
    vision: VisionSettings = field(default_factory=VisionSettings)
    """How `vision_analyze` and `video_analyze` work."""
    image_gen: ImageGenSettings = field(default_factory=ImageGenSettings)
    """How `image_generate` makes images."""
    video_gen: VideoGenSettings = field(default_factory=VideoGenSettings)
    """How `video_generate` makes videos."""
    tts: TtsSettings = field(default_factory=TtsSettings)
    """How `text_to_speech` speaks."""
    stt: SttSettings = field(default_factory=SttSettings)
    """How speech in audio files is recognised."""
    moa: MixtureSettings = field(default_factory=MixtureSettings)
    """How `mixture_of_agents` asks several models."""
    kanban: KanbanSettings = field(default_factory=KanbanSettings)
    """How agents work on the board."""
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    """What goes into the log file."""
    yolo: Annotated[bool, NOT_IN_FILE] = False
    """Run dangerous calls without approval; set by TOOLCRIB_YOLO=1. Deny rules still apply."""
    safe_mode: Annotated[bool, NOT_IN_FILE] = False
    """Load no plugins; set by TOOLCRIB_SAFE_MODE=1."""
    home: Annotated[Home, NOT_IN_FILE] = field(default_factory=find_home)
    """The folder that the settings were read from; set by TOOLCRIB_HOME."""
