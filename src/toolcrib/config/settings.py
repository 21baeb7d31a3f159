"""Every setting, its type, its default and what it is for. A new section is one dataclass and one field of Settings.

Annotations are real objects here (no postponed evaluation): the loader reads types, defaults, limits and the
shorthand of a section from these fields. The text under each field is its entry in the reference docs.
"""

from dataclasses import dataclass, field
from typing import Literal

from toolcrib.config.agent_settings import (
    AgentSettings,
    AuxiliarySettings,
    CompressionSettings,
    DelegationSettings,
    GuardrailSettings,
    MemorySettings,
    ModelSettings,
    ProviderEntry,
)
from toolcrib.config.approval_entries import grant_text, rule_text
from toolcrib.config.limits import ABOVE_ZERO, AT_LEAST_ONE, AT_LEAST_ZERO, NOT_IN_FILE
from toolcrib.config.mcp_settings import McpServerSettings, McpSettings
from toolcrib.config.paths import Home, find_home
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.config.tool_settings import CodeExecutionSettings, CronSettings, SkillSettings, UndoSettings

LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class CustomToolset:
    """A toolset of your own, or an addition to one that exists."""

    description: str = ""
    """One sentence about the toolset, shown by `toolcrib toolsets list`."""
    tools: list[str] = field(default_factory=list)
    """Names of the tools that it adds."""
    includes: list[str] = field(default_factory=list)
    """Names of the toolsets whose tools it adds."""


@dataclass(frozen=True, kw_only=True)
class PluginEntry:
    """What one plugin may do."""

    allow_tool_override: bool = False
    """Let this plugin replace tools that are not its own."""


@dataclass(frozen=True, kw_only=True)
class PluginSettings:
    """Which plugins are loaded."""

    enabled: list[str] = field(default_factory=list)
    """Names of the plugins to load; a plugin that is not named here stays off."""
    disabled: list[str] = field(default_factory=list)
    """Names of plugins that are never loaded, even if enabled."""
    project: bool = False
    """Also look for plugins in the project folder that toolcrib is started in."""
    entries: dict[str, PluginEntry] = field(default_factory=dict)
    """Permissions by plugin name."""


@dataclass(frozen=True, kw_only=True)
class ToolSearchSettings:
    """Whether rarely used tools are found by search instead of being described to the model in full."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """`auto` turns the search on when the descriptions take too large a share of the context."""
    threshold_pct: float = field(default=10, metadata={"minimum": 0, "maximum": 100})
    """The share of the context, in percent, from which `auto` turns the search on."""
    search_default_limit: int = field(default=5, metadata=AT_LEAST_ONE)
    """How many tools a search gives when the model does not say."""
    max_search_limit: int = field(default=20, metadata=AT_LEAST_ONE)
    """The most tools that one search gives."""


@dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """How tools are run."""

    max_parallel: int = field(default=8, metadata=AT_LEAST_ONE)
    """The most calls of one batch that run at the same time."""
    nested_call_timeout_seconds: float = field(default=300, metadata=ABOVE_ZERO)
    """How long a call made from inside a running event loop may take."""
    check_timeout_seconds: float = field(default=1.0, metadata=ABOVE_ZERO)
    """How long the availability check of one tool may take."""
    timeouts: dict[str, float] = field(default_factory=dict, metadata=ABOVE_ZERO)
    """Time limits in seconds, by tool name."""
    tool_search: ToolSearchSettings = field(default_factory=ToolSearchSettings, metadata={"shorthand": "enabled"})
    """Search instead of long descriptions; `true`, `false` or `auto` alone sets `enabled`."""


@dataclass(frozen=True, kw_only=True)
class ToolOutputSettings:
    """How much of a tool's output reaches the model."""

    max_result_chars: int = field(default=100_000, metadata=AT_LEAST_ONE)
    """The most characters of one result; the rest is kept in a file that the model can read."""
    max_turn_chars: int = field(default=200_000, metadata=AT_LEAST_ONE)
    """The most characters of all results of one turn together."""
    max_bytes: int = field(default=50_000, metadata=AT_LEAST_ONE)
    """The most bytes of terminal output."""
    max_lines: int = field(default=2000, metadata=AT_LEAST_ONE)
    """The most lines of a file that are read at once."""
    max_line_length: int = field(default=2000, metadata=AT_LEAST_ONE)
    """The most characters of one line; longer ones are cut."""


EntryPolicy = Literal["ask", "allow", "deny"]


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """What happens to a dangerous call, by where it comes from: `ask` somebody, `allow` it, or `deny` it.

    Catastrophic commands and what a rule denies are denied in any case.
    """

    interactive: EntryPolicy = "ask"
    """`toolcrib chat` at a terminal."""
    gateway: EntryPolicy = "ask"
    """Messaging platforms, where the question goes to the chat."""
    cron: EntryPolicy = "deny"
    """Scheduled jobs, which nobody watches."""
    batch: EntryPolicy = "deny"
    """Runs over many prompts, which nobody watches."""
    library: EntryPolicy = "deny"
    """Programs that use toolcrib; one that brings its own approver is asked instead of denied."""


@dataclass(frozen=True, kw_only=True)
class ApprovalSettings:
    """When a person is asked before a tool acts."""

    mode: Literal["manual", "smart", "off"] = "manual"
    """`manual` asks, `smart` asks a model first about the classes in `smart_classes`, `off` asks nothing."""
    timeout: float = field(default=60, metadata=ABOVE_ZERO)
    """How many seconds a question waits for its answer."""
    policies: PolicySettings = field(default_factory=PolicySettings)
    """What happens to a dangerous call, by where it comes from."""
    deny: list[str] = field(default_factory=list)
    """Commands that never run, as patterns like `git push *`; each command of a line is looked at."""
    rules: list[str] = field(default_factory=list, metadata={"item_text": rule_text})
    """Rules like `allow rm in workspace`, `ask npm install`, `deny git push --force in ~/work`; deny wins, then ask."""
    smart_classes: list[str] = field(default_factory=lambda: ["recursive delete inside the workspace"])
    """The dangers that the model may agree to in `smart` mode."""


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """What is hidden from the model and from logs."""

    redact_secrets: bool = True
    """Replace keys and passwords in results and errors by a mask."""


@dataclass(frozen=True, kw_only=True)
class LoggingSettings:
    """What the log file holds."""

    level: LogLevel = "info"
    """The least important kind of message that is written."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set, as one value."""

    toolsets: list[str] = field(default_factory=lambda: ["cli"])
    """The toolsets that `toolcrib chat` offers to the model. An empty list means no tools."""
    model: ModelSettings = field(default_factory=ModelSettings, metadata={"shorthand": "default"})
    """Which model answers; a name alone sets `default`."""
    auxiliary: AuxiliarySettings = field(default_factory=AuxiliarySettings, metadata={"shorthand": "model"})
    """The model for small jobs; a name alone sets `model`."""
    providers: dict[str, ProviderEntry] = field(default_factory=dict)
    """Servers with models that toolcrib does not know, by the name that you give them."""
    agent: AgentSettings = field(default_factory=AgentSettings)
    """How the agent works."""
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    """What happens before a conversation outgrows the model."""
    tool_loop_guardrails: GuardrailSettings = field(default_factory=GuardrailSettings)
    """What breaks a loop in which the model repeats itself."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    """What the agent remembers across sessions."""
    delegation: DelegationSettings = field(default_factory=DelegationSettings)
    """Helpers that the agent sends out with `delegate_task`."""
    custom_toolsets: dict[str, CustomToolset] = field(default_factory=dict)
    """Toolsets of your own, by name; the name of an existing toolset adds to it."""
    plugins: PluginSettings = field(default_factory=PluginSettings)
    """Which plugins are loaded."""
    tools: ToolSettings = field(default_factory=ToolSettings)
    """How tools are run."""
    tool_output: ToolOutputSettings = field(default_factory=ToolOutputSettings)
    """How much of a tool's output reaches the model."""
    file_read_max_chars: int = field(default=100_000, metadata=AT_LEAST_ONE)
    """The most characters that `read_file` gives at once."""
    terminal: TerminalSettings = field(default_factory=TerminalSettings)
    """Where and how commands run."""
    code_execution: CodeExecutionSettings = field(default_factory=CodeExecutionSettings)
    """How `execute_code` runs a script."""
    undo: UndoSettings = field(default_factory=UndoSettings)
    """What is kept of files before tools change them."""
    skills: SkillSettings = field(default_factory=SkillSettings)
    """Which skills the agent sees."""
    cron: CronSettings = field(default_factory=CronSettings)
    """How scheduled jobs run."""
    mcp_servers: dict[str, McpServerSettings] = field(default_factory=dict)
    """MCP servers whose tools are offered, by the name that you give them."""
    mcp: McpSettings = field(default_factory=McpSettings)
    """How toolcrib works with all MCP servers."""
    mcp_discovery_timeout: float | None = field(default=None, metadata=AT_LEAST_ZERO)
    """The name of `mcp.discovery_timeout` in Hermes Agent; it counts where it is set."""
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    """When a person is asked before a tool acts."""
    command_allowlist: list[str] = field(default_factory=list, metadata={"item_text": grant_text})
    """What was allowed for good: lines like `recursive delete (inside the workspace)`; "always" writes them."""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    """What is hidden from the model and from logs."""
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    """What the log file holds."""
    yolo: bool = field(default=False, metadata=NOT_IN_FILE)
    """Ask no questions in this process; set by TOOLCRIB_YOLO=1 in the environment. What is denied stays denied."""
    safe_mode: bool = field(default=False, metadata=NOT_IN_FILE)
    """Load no plugins at all; set by TOOLCRIB_SAFE_MODE=1 in the environment."""
    home: Home = field(default_factory=find_home, metadata=NOT_IN_FILE)
    """The folder that all of this was read from; set by TOOLCRIB_HOME in the environment."""
