"""The settings of the agent: which model answers, how long it works, what it remembers, how it delegates.

As in `settings`, annotations are real objects, and the text under each field is its entry in the reference docs.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from toolcrib.config.section import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)


class Prices(Section, frozen=True, kw_only=True):
    """What a model costs, in US dollars for a million tokens; used where the provider does not say."""

    input: NonNegativeFloat = 0
    """Tokens of the prompt."""
    cached: NonNegativeFloat = 0
    """Tokens of the prompt that the provider had in its cache."""
    output: NonNegativeFloat = 0
    """Tokens of the answer."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """Which model answers. Without any of this, and without a key, a small model on this machine does."""

    default: str = ""
    """The model, as its provider names it; `provider/model` names both."""
    provider: str = ""
    """Where it is: a name of `toolcrib model list`, or one of `providers`. Empty: the first that has a key."""
    base_url: str = ""
    """The address of a server that speaks a known protocol, instead of the provider's own."""
    fallbacks: list[str] = field(default_factory=list)
    """Models that are tried in this order when the first cannot answer, as `provider/model`."""
    context_window: NonNegativeInt = 0
    """How many tokens the model takes; 0 means what is known of it."""
    max_output_tokens: NonNegativeInt = 0
    """The longest answer; 0 leaves it to the provider."""
    temperature: float | None = None
    """How freely it words its answers; unset leaves it to the provider."""
    reasoning_effort: Literal["", "none", "low", "medium", "high"] = ""
    """How long it thinks before it answers, where it can; empty leaves it to the provider."""
    timeout: PositiveFloat = 600
    """How many seconds one request may take."""
    max_retries: NonNegativeInt = 5
    """How often a request is sent again after a failure that may pass."""
    prices: dict[str, Prices] = field(default_factory=dict)
    """Prices by model name."""


class AuxiliarySettings(Section, frozen=True, kw_only=True):
    """The model for small jobs: judging a command in `smart` mode, summaries. Empty: the main one."""

    model: str = ""
    """The model, as its provider names it; `provider/model` names both."""
    provider: str = ""
    """Where it is."""
    base_url: str = ""
    """The address of its server, if it is not the provider's own."""


class ProviderEntry(Section, frozen=True, kw_only=True):
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
    context_window: NonNegativeInt = 0
    """How many tokens its models take; 0 means that it is not known."""


class AgentSettings(Section, frozen=True, kw_only=True):
    """How the agent works."""

    disabled_toolsets: list[str] = field(default_factory=list)
    """Toolsets that are never offered, whatever else enables them."""
    max_turns: PositiveInt = 90
    """The most requests to the model for one question."""
    max_calls: PositiveInt = 500
    """The most tool calls for one question."""
    project_files: bool = True
    """Put AGENTS.md of the working folder into the prompt."""


class CompressionSettings(Section, frozen=True, kw_only=True):
    """What happens before a conversation outgrows the model."""

    enabled: bool = True
    """Replace the older part of a long conversation by a summary."""
    threshold_pct: Annotated[float, Meta(ge=10, le=95)] = 80
    """How full the model's window may get, in percent, before that happens."""
    keep_messages: PositiveInt = 20
    """How many of the latest messages stay as they are."""


class GuardrailCounts(Section, frozen=True, kw_only=True):
    """After how many repetitions in a row something happens."""

    exact_failure: PositiveInt = 2
    """The same call fails in the same way."""
    same_tool_failure: PositiveInt = 3
    """The same tool fails, whatever its arguments."""
    no_progress: PositiveInt = 2
    """The same call gives the same result again."""


class GuardrailSettings(Section, frozen=True, kw_only=True):
    """What breaks a loop in which the model repeats itself."""

    warn_after: GuardrailCounts = field(default_factory=GuardrailCounts)
    """When the model is told that it repeats itself."""
    stop_after: GuardrailCounts = field(
        default_factory=lambda: GuardrailCounts(exact_failure=5, same_tool_failure=8, no_progress=5)
    )
    """When such a call is not run any more; a model that goes on all the same is stopped."""


class MemorySettings(Section, frozen=True, kw_only=True):
    """What the agent remembers across sessions."""

    enabled: bool = True
    """Put what is remembered into the prompt."""
    memory_char_limit: PositiveInt = 2200
    """How long its own notes may become, in characters."""
    user_char_limit: PositiveInt = 1375
    """How long its notes about the user may become, in characters."""
    write_approval: bool = False
    """Ask before anything is remembered."""


class DelegationSettings(Section, frozen=True, kw_only=True):
    """Helpers that the agent sends out with `delegate_task`."""

    max_concurrent_children: PositiveInt = 3
    """How many helpers of one agent work at the same time."""
    max_spawn_depth: NonNegativeInt = 1
    """How deep helpers may send helpers of their own; 1 means that only the first agent does."""
    child_timeout_seconds: NonNegativeFloat = 0
    """How long one helper may take; 0 sets no limit."""
    max_iterations: PositiveInt = 50
    """The most requests to the model of one helper."""
    max_summary_chars: PositiveInt = 24_000
    """How long a helper's report may be."""
    subagent_auto_approve: bool = False
    """Let helpers do dangerous things without asking; what is always denied stays denied."""
    model: str = ""
    """The model of helpers; empty means that of their agent."""
