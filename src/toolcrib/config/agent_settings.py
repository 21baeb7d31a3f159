"""The settings of the agent: which model answers, how long it works, what it remembers, how it delegates.

As in `settings`, annotations are real objects, and the text under each field is its entry in the reference docs.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from toolcrib.config.media_settings import VisionModelSettings
from toolcrib.config.section import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    shorthand,
)
from toolcrib.core.approvals import DEFAULT_MODE, Mode


class Prices(Section, frozen=True, kw_only=True):
    """What a model costs, in US dollars per million tokens; used if the provider does not report it."""

    input: NonNegativeFloat = 0
    """Input tokens."""
    cached: NonNegativeFloat = 0
    """Input tokens that the provider read from its cache."""
    output: NonNegativeFloat = 0
    """Output tokens."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """Which model to use. Without these settings and without a key, toolcrib runs a small model on this machine."""

    default: str = ""
    """The model, as its provider names it; `provider/model` names both."""
    provider: str = ""
    """The provider: one from `toolcrib model list` or `providers`. Empty means the first one that has a key."""
    base_url: str = ""
    """The address of another server that speaks the provider's protocol."""
    fallbacks: list[str] = field(default_factory=list)
    """Models to try in this order when the first one fails, as `provider/model`."""
    context_window: NonNegativeInt = 0
    """The model's context window in tokens; 0 means the known size."""
    max_output_tokens: NonNegativeInt = 0
    """The longest answer in tokens; 0 leaves it to the provider."""
    temperature: float | None = None
    """The sampling temperature; unset leaves it to the provider."""
    reasoning_effort: Literal["", "none", "low", "medium", "high"] = ""
    """How much the model reasons before it answers, if it can; empty leaves it to the provider."""
    timeout: PositiveFloat = 600
    """How many seconds one request may take."""
    max_retries: NonNegativeInt = 5
    """How often to retry a request after a temporary failure."""
    prices: dict[str, Prices] = field(default_factory=dict)
    """Prices by model name."""


class AuxiliarySettings(Section, frozen=True, kw_only=True):
    """The model for small jobs, such as judging commands in `smart` mode and summaries. Empty means the main model."""

    model: str = ""
    """The model, as its provider names it; `provider/model` names both."""
    provider: str = ""
    """Its provider."""
    base_url: str = ""
    """The address of its server, if it is not the provider's own."""
    vision: Annotated[VisionModelSettings, shorthand("model")] = field(default_factory=VisionModelSettings)
    """The model that looks at images and videos; a name alone sets `model`."""


class ProviderEntry(Section, frozen=True, kw_only=True):
    """A model server that toolcrib doesn't know, for example your own."""

    base_url: str = ""
    """Its address, for example http://127.0.0.1:8000/v1."""
    key_env: str = ""
    """The environment variable with its key; empty if it needs none."""
    protocol: Literal["openai", "anthropic"] = "openai"
    """The protocol that it speaks."""
    dialect: Literal["openai", "openai_strict", "openai_gemini", "anthropic", "llama_cpp"] = "openai"
    """The dialect of JSON Schema that it accepts for tools."""
    model: str = ""
    """The model to use if none is named."""
    context_window: NonNegativeInt = 0
    """The context window of its models in tokens; 0 means unknown."""


class AgentSettings(Section, frozen=True, kw_only=True):
    """How the agent works."""

    disabled_toolsets: list[str] = field(default_factory=list)
    """Toolsets that are never offered, even if something else enables them."""
    max_turns: PositiveInt = 90
    """The most requests to the model for one question."""
    max_calls: PositiveInt = 500
    """The most tool calls for one question."""
    mode: Mode = DEFAULT_MODE
    """How much it may do on its own: `ask` shows each edit of a file as a diff and asks, `auto-edit` edits files of the
    workspace and runs commands by policy, `plan` only reads and ends with a plan."""
    project_files: bool = True
    """Put AGENTS.md of the working folder into the prompt."""


class ChatSettings(Section, frozen=True, kw_only=True):
    """What `toolcrib chat` shows, and the keys of its input line."""

    output_lines: NonNegativeInt = 8
    """How many of the last lines of a command's output to show below it; 0 shows none."""
    theme: Literal["auto", "dark", "light", "plain"] = "auto"
    """The colours: for a dark or a light background, or none; `auto` asks the terminal for its background."""
    notify: Literal["auto", "bell", "osc9", "off"] = "auto"
    """How to call you when the chat waits for you: the terminal's bell, a desktop notification (OSC 9), or not at all;
    `auto` notifies where the terminal is known to support it, and rings the bell elsewhere."""
    notify_after: PositiveFloat = 5
    """How many seconds the chat waits for you before it calls."""
    keys: Literal["emacs", "vi"] = "emacs"
    """The keys of the input line; in vi mode, Escape leads to normal mode."""


class CompressionSettings(Section, frozen=True, kw_only=True):
    """How to compress a conversation before it outgrows the model's context window."""

    enabled: bool = True
    """Replace the older part of a long conversation with a summary."""
    threshold_pct: Annotated[float, Meta(ge=10, le=95)] = 80
    """How full the context window may get, in percent, before that."""
    keep_messages: PositiveInt = 20
    """How many of the latest messages to keep unchanged."""


class GuardrailCounts(Section, frozen=True, kw_only=True):
    """How many repetitions in a row trigger a guardrail."""

    exact_failure: PositiveInt = 2
    """The same call fails in the same way."""
    same_tool_failure: PositiveInt = 3
    """The same tool fails, with any arguments."""
    no_progress: PositiveInt = 2
    """The same call returns the same result again."""


class GuardrailSettings(Section, frozen=True, kw_only=True):
    """What stops a model that repeats itself."""

    warn_after: GuardrailCounts = field(default_factory=GuardrailCounts)
    """When to tell the model that it repeats itself."""
    stop_after: GuardrailCounts = field(
        default_factory=lambda: GuardrailCounts(exact_failure=5, same_tool_failure=8, no_progress=5)
    )
    """When to refuse such calls; a model that continues anyway is stopped."""


class MemorySettings(Section, frozen=True, kw_only=True):
    """What the agent remembers across sessions."""

    enabled: bool = True
    """Put memories into the prompt."""
    memory_char_limit: PositiveInt = 2200
    """The most characters of the agent's own notes."""
    user_char_limit: PositiveInt = 1375
    """The most characters of its notes about the user."""
    write_approval: bool = False
    """Ask for approval before the agent remembers anything."""
    provider: str = ""
    """A memory of a vendor beside the built-in one: honcho, mem0, or one of a plugin; empty means none. It gets every
    question and answer."""
    recall_seconds: PositiveFloat = 2
    """How long a question waits for what the provider knows about it."""
    recall_chars: PositiveInt = 4000
    """The most characters that the provider may add to a question."""


class DelegationSettings(Section, frozen=True, kw_only=True):
    """Subagents that the agent starts with `delegate_task`."""

    max_concurrent_children: PositiveInt = 3
    """How many subagents of one agent may run at the same time."""
    max_spawn_depth: NonNegativeInt = 1
    """How deep subagents may nest; 1 means that only the first agent starts any."""
    child_timeout_seconds: NonNegativeFloat = 0
    """How many seconds one subagent may take; 0 means no limit."""
    max_iterations: PositiveInt = 50
    """The most requests to the model by one subagent."""
    max_summary_chars: PositiveInt = 24_000
    """The most characters of a subagent's report."""
    subagent_auto_approve: bool = False
    """Let subagents run dangerous calls without approval; deny rules still apply."""
    model: str = ""
    """The model for subagents; empty means that of their agent."""


class MixtureSettings(Section, frozen=True, kw_only=True):
    """How `mixture_of_agents` asks several models."""

    reference_models: list[str] = field(default_factory=list)
    """The models that answer side by side, as `provider/model`; empty means the main model, its fallbacks and the
    auxiliary model."""
    aggregator: str = ""
    """The model that makes one answer of theirs, as `provider/model`; empty means the main model."""
    max_tokens: PositiveInt = 4096
    """The longest answer of each model, in tokens."""
    timeout: PositiveFloat = 180
    """How many seconds each model may take."""


class KanbanSettings(Section, frozen=True, kw_only=True):
    """How agents work on the board."""

    enabled: bool = False
    """Offer the `kanban_…` tools to agents. `toolcrib board` works in any case."""
    claim_ttl_seconds: PositiveFloat = 900
    """After how many seconds without a sign of life a worker loses its card."""
    failure_limit: PositiveInt = 2
    """After how many workers that ended without a result a card is blocked."""
