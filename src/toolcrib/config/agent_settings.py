"""The settings of the agent: which model answers, how long it works, what it remembers, whom it sends.

Annotations are real objects here, as in `settings`: the loader reads types, defaults and limits from these fields.
"""

from dataclasses import dataclass, field
from typing import Literal

from toolcrib.config.limits import ABOVE_ZERO, AT_LEAST_ONE

AT_LEAST_ZERO = {"minimum": 0}


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a model costs, in US dollars for a million tokens; used where the provider does not say."""

    input: float = field(default=0, metadata=AT_LEAST_ZERO)
    """Tokens of the prompt."""
    cached: float = field(default=0, metadata=AT_LEAST_ZERO)
    """Tokens of the prompt that the provider had in its cache."""
    output: float = field(default=0, metadata=AT_LEAST_ZERO)
    """Tokens of the answer."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model answers. Without any of this, and without a key, a small model on this machine does."""

    default: str = ""
    """The model, as its provider names it; `provider/model` names both."""
    provider: str = ""
    """Where it is: a name of `toolcrib model list`, or one of `providers`. Empty: the first that has a key."""
    base_url: str = ""
    """The address of a server that speaks a known protocol, instead of the provider's own."""
    fallbacks: list[str] = field(default_factory=list)
    """Models that are tried in this order when the first cannot answer, as `provider/model`."""
    context_window: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How many tokens the model takes; 0 means what is known of it."""
    max_output_tokens: int = field(default=0, metadata=AT_LEAST_ZERO)
    """The longest answer; 0 leaves it to the provider."""
    temperature: float | None = None
    """How freely it words its answers; unset leaves it to the provider."""
    reasoning_effort: Literal["", "none", "low", "medium", "high"] = ""
    """How long it thinks before it answers, where it can; empty leaves it to the provider."""
    timeout: float = field(default=600, metadata=ABOVE_ZERO)
    """How many seconds one request may take."""
    max_retries: int = field(default=5, metadata=AT_LEAST_ZERO)
    """How often a request is sent again after a failure that may pass."""
    prices: dict[str, Prices] = field(default_factory=dict)
    """Prices by model name."""


@dataclass(frozen=True, kw_only=True)
class AuxiliarySettings:
    """The model for small jobs: judging a command in `smart` mode, summaries. Empty: the main one."""

    model: str = ""
    """The model, as its provider names it; `provider/model` names both."""
    provider: str = ""
    """Where it is."""
    base_url: str = ""
    """The address of its server, if it is not the provider's own."""


@dataclass(frozen=True, kw_only=True)
class ProviderEntry:
    """A server of your own, or of somebody whom toolcrib does not know."""

    base_url: str = ""
    """Its address, for example http://127.0.0.1:8000/v1."""
    key_env: str = ""
    """The variable that holds its key; empty when it needs none."""
    protocol: Literal["openai", "anthropic"] = "openai"
    """Which protocol it speaks."""
    dialect: Literal["openai", "openai_strict", "openai_gemini", "anthropic", "llama_cpp"] = "openai"
    """Which JSON Schema it accepts for tools."""
    model: str = ""
    """The model to use when none is named."""
    context_window: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How many tokens its models take; 0 means that it is not known."""


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """How the agent works."""

    disabled_toolsets: list[str] = field(default_factory=list)
    """Toolsets that are never offered, whatever else enables them."""
    max_turns: int = field(default=90, metadata=AT_LEAST_ONE)
    """The most requests to the model for one question."""
    max_calls: int = field(default=500, metadata=AT_LEAST_ONE)
    """The most tool calls for one question."""
    project_files: bool = True
    """Put AGENTS.md of the working folder into the prompt."""


@dataclass(frozen=True, kw_only=True)
class CompressionSettings:
    """What happens before a conversation outgrows the model."""

    enabled: bool = True
    """Replace the older part of a long conversation by a summary."""
    threshold_pct: float = field(default=80, metadata={"minimum": 10, "maximum": 95})
    """How full the model's window may get, in percent, before that happens."""
    keep_messages: int = field(default=20, metadata=AT_LEAST_ONE)
    """How many of the latest messages stay as they are."""


@dataclass(frozen=True, kw_only=True)
class GuardrailCounts:
    """After how many repetitions in a row something happens."""

    exact_failure: int = field(default=2, metadata=AT_LEAST_ONE)
    """The same call fails in the same way."""
    same_tool_failure: int = field(default=3, metadata=AT_LEAST_ONE)
    """The same tool fails, whatever its arguments."""
    no_progress: int = field(default=2, metadata=AT_LEAST_ONE)
    """The same call gives the same result again."""


@dataclass(frozen=True, kw_only=True)
class GuardrailSettings:
    """What breaks a loop in which the model repeats itself."""

    warn_after: GuardrailCounts = field(default_factory=GuardrailCounts)
    """When the model is told that it repeats itself."""
    stop_after: GuardrailCounts = field(
        default_factory=lambda: GuardrailCounts(exact_failure=5, same_tool_failure=8, no_progress=5)
    )
    """When such a call is not run any more; a model that goes on all the same is stopped."""


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """What the agent remembers across sessions."""

    enabled: bool = True
    """Put what is remembered into the prompt."""
    memory_char_limit: int = field(default=2200, metadata=AT_LEAST_ONE)
    """How long its own notes may become, in characters."""
    user_char_limit: int = field(default=1375, metadata=AT_LEAST_ONE)
    """How long its notes about the user may become, in characters."""
    write_approval: bool = False
    """Ask before anything is remembered."""


@dataclass(frozen=True, kw_only=True)
class DelegationSettings:
    """Helpers that the agent sends out with `delegate_task`."""

    max_concurrent_children: int = field(default=3, metadata=AT_LEAST_ONE)
    """How many helpers of one agent work at the same time."""
    max_spawn_depth: int = field(default=1, metadata=AT_LEAST_ZERO)
    """How deep helpers may send helpers of their own; 1 means that only the first agent does."""
    child_timeout_seconds: float = field(default=0, metadata=AT_LEAST_ZERO)
    """How long one helper may take; 0 sets no limit."""
    max_iterations: int = field(default=50, metadata=AT_LEAST_ONE)
    """The most requests to the model of one helper."""
    max_summary_chars: int = field(default=24_000, metadata=AT_LEAST_ONE)
    """How long a helper's report may be."""
    subagent_auto_approve: bool = False
    """Let helpers do dangerous things without asking; what is always denied stays denied."""
    model: str = ""
    """The model of helpers; empty means that of their agent."""
