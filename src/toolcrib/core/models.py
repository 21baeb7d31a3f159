"""What is asked of a language model, and what it answers: the port between the agent and every provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Message
from toolcrib.core.types import JsonObject

Dialect = Literal["openai", "openai_strict", "openai_gemini", "anthropic", "gemini", "llama_cpp"]
"""How a provider wants tools to be described."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one or more requests used. `input_tokens` counts all of the prompt, cached or not."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input: what the provider had in its cache."""
    cache_write_tokens: int = 0
    """Of the input: what the provider put into its cache."""
    reasoning_tokens: int = 0
    """Of the output: what was thought and not said."""
    cost_usd: float | None = None
    """What the provider says that it cost, or what the configured prices make of it; None when neither is known."""

    def __add__(self, other: Usage) -> Usage:
        known = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost_usd=sum(known) if known else None,
        )


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can take, which decides what the agent shows it."""

    context_window: int = 128_000
    """Tokens of prompt and answer together."""
    max_prompt_tokens: int | None = None
    """A tighter limit for the prompt, where a long one would take too long."""
    max_tools: int | None = None
    """The most tools that it can choose from; the fitting ones are picked by the words of the question."""
    sees_images: bool = True
    hears_audio: bool = False
    project_files: bool = True
    """Whether AGENTS.md, memory and the skills index are part of the prompt."""
    small: bool = False
    """So small that each tool's output is shown to the person as it is, beside what the model makes of it."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Whoever retries sends the same bytes."""

    model: str
    messages: Sequence[Message]
    """Without the system prompt."""
    system: str = ""
    tools: Sequence[JsonObject] = ()
    """In the dialect of the provider, sorted by name."""
    definitions: Sequence[JsonObject] = ()
    """The same tools in canonical form, for a fallback that has another dialect."""
    tool_choice: Literal["auto", "none", "required"] = "auto"
    response_schema: JsonObject | None = None
    """The answer must be JSON that satisfies this schema, where the provider can promise that."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    reasoning_effort: Literal["", "none", "low", "medium", "high"] = ""
    timeout_seconds: float = 600.0
    cache_key: str = ""
    """The session, for providers that keep a cache for each."""


StopReason = Literal["end", "tool_calls", "length", "refused"]


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    message: Message
    usage: Usage = Usage()
    stop: StopReason = "end"
    model: str = ""
    """Which model answered, as the provider names it."""
    provider: str = ""


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """A piece of what the model thinks before it answers."""

    text: str


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a tool call; `index` says of which call of this answer."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should know about the request: a retry, a fallback, a tool that was set aside."""

    kind: Literal["retry", "fallback", "tool_set_aside", "restart", "loading"]
    message: str
    """One sentence. `restart`: what was streamed so far is void, the answer begins anew."""
    tool: str = ""


Delta = TextDelta | ReasoningDelta | CallDelta | Notice
Emit = Callable[[Delta], None]


class Provider(Protocol):
    """One way to reach models. Safe to use for several requests at once, on one event loop."""

    name: str
    """As the config and `--provider` call it."""
    dialect: Dialect
    base_url: str
    api_mode: str
    """chat_completions or anthropic_messages: for hooks and records."""

    def profile(self, model: str) -> ModelProfile: ...

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """The whole answer; its pieces go to `emit` as they come. Raises ModelError; cancelling it ends the request."""
        ...

    async def close(self) -> None: ...


ModelErrorKind = Literal[
    "key", "unknown_model", "rate_limit", "quota", "too_long", "bad_request", "refused_tool", "server",
    "network", "timeout", "missing_package", "weights", "filtered",
]  # fmt: skip


class ModelError(ToolcribError):
    """A model could not be reached or did not answer. The text is one sentence that says what to do."""

    def __init__(
        self,
        message: str,
        *,
        kind: ModelErrorKind = "server",
        may_retry: bool = False,
        retry_after_seconds: float | None = None,
        refused_tools: tuple[str, ...] = (),
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.may_retry = may_retry
        self.retry_after_seconds = retry_after_seconds
        self.refused_tools = refused_tools
        """With `refused_tool`: the tools that the provider names; empty when it only says that one is wrong."""
        self.status = status
