"""Requests to language models and their answers: the port between the agent and every provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Message
from toolcrib.core.types import JsonObject

Dialect = Literal["openai", "openai_strict", "openai_gemini", "anthropic", "gemini", "llama_cpp"]
"""The format in which a provider expects tool definitions."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The usage of one or more requests. `input_tokens` counts all of the prompt, cached or not."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that the provider read from its cache."""
    cache_write_tokens: int = 0
    """The part of the input that the provider wrote to its cache."""
    reasoning_tokens: int = 0
    """The part of the output that was reasoning."""
    cost_usd: float | None = None
    """The cost as the provider reports it or as the configured prices give it; None if neither is known."""

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
    """A model's limits and abilities, which decide what the agent sends it."""

    context_window: int = 128_000
    """The tokens of prompt and answer together."""
    max_prompt_tokens: int | None = None
    """A tighter limit for the prompt, for models that are slow on long prompts."""
    max_tools: int | None = None
    """The most tools that it can choose from; the agent picks them by the words of the question."""
    sees_images: bool = True
    hears_audio: bool = False
    project_files: bool = True
    """Whether AGENTS.md, memory and the skills index are part of the prompt."""
    small: bool = False
    """Whether the model is so small that the user also sees each tool's raw output."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. A retry sends the same bytes."""

    model: str
    messages: Sequence[Message]
    """Without the system prompt."""
    system: str = ""
    tools: Sequence[JsonObject] = ()
    """In the dialect of the provider, sorted by name."""
    definitions: Sequence[JsonObject] = ()
    """The same tools in canonical form, for a fallback that uses another dialect."""
    tool_choice: Literal["auto", "none", "required"] = "auto"
    response_schema: JsonObject | None = None
    """The answer must be JSON that satisfies this schema, if the provider can guarantee that."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    reasoning_effort: Literal["", "none", "low", "medium", "high"] = ""
    timeout_seconds: float = 600.0
    cache_key: str = ""
    """The session, for providers that keep a cache per session."""


StopReason = Literal["end", "tool_calls", "length", "refused"]


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer."""

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
    """A piece of the model's reasoning before its answer."""

    text: str


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a tool call; `index` identifies the call within this answer."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the user should know about the request: a retry, a fallback, a tool that was left out."""

    kind: Literal["retry", "fallback", "tool_set_aside", "restart", "loading", "working"]
    message: str
    """One sentence. `restart`: the partial answer is discarded, and the answer starts over. `working`: what the model
    does now, for a status line."""
    tool: str = ""


Delta = TextDelta | ReasoningDelta | CallDelta | Notice
Emit = Callable[[Delta], None]


class Provider(Protocol):
    """One way to reach models. Safe to use for several requests at once, on one event loop."""

    name: str
    """Its name in the config and in `--provider`."""
    dialect: Dialect
    base_url: str
    api_mode: str
    """chat_completions or anthropic_messages: for hooks and records."""

    def profile(self, model: str) -> ModelProfile: ...

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """The complete answer; pieces go to `emit` as they arrive. Raises ModelError; cancelling ends the request."""
        ...

    async def close(self) -> None: ...


ModelErrorKind = Literal[
    "key", "unknown_model", "rate_limit", "quota", "too_long", "bad_request", "refused_tool", "server",
    "network", "timeout", "missing_package", "weights", "filtered",
]  # fmt: skip


class ModelError(ToolcribError):
    """A model could not be reached or did not answer. The message is one sentence that says what to do."""

    def __init__(
        self,
        message: str,
        *,
        kind: ModelErrorKind = "server",
        may_retry: bool = False,
        retry_after_seconds: float | None = None,
        refused_tools: tuple[str, ...] = (),
        status: int | None = None,
        partial_text: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.may_retry = may_retry
        self.retry_after_seconds = retry_after_seconds
        self.refused_tools = refused_tools
        """With `refused_tool`: the tools that the provider names; empty if it does not say which."""
        self.status = status
        self.partial_text = partial_text
        """What had arrived of the answer, if it broke off."""
