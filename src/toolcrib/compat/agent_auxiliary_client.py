"""`agent.auxiliary_client`: one request to a model, without a conversation and without running tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.compat.chat_messages import read_messages, write_messages
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.models import Delta, ModelRequest, ModelResponse, Provider
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects import render
from toolcrib.providers.complete import complete
from toolcrib.providers.create import create_auxiliary, create_provider

TIMEOUT_SECONDS = 120.0
_MAIN = ("provider", "model", "base_url", "api_key")
_FINISH = {"end": "stop", "tool_calls": "tool_calls", "length": "length", "refused": "content_filter"}


@dataclass
class ChatFunction:
    """What a model wants to call."""

    name: str
    arguments: str


@dataclass
class ChatToolCall:
    """A call that a model asks for."""

    id: str
    function: ChatFunction
    type: str = "function"


@dataclass
class ChatMessage:
    """A model's answer."""

    content: str | None
    role: str = "assistant"
    tool_calls: list[ChatToolCall] | None = None
    reasoning_content: str | None = None


@dataclass
class ChatChoice:
    """The one answer of a response; `delta` is the same in a stream."""

    message: ChatMessage
    finish_reason: str = "stop"
    index: int = 0

    @property
    def delta(self) -> ChatMessage:
        return self.message


@dataclass
class ChatUsage:
    """What a request cost, in tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass
class ChatResponse:
    """A response with the attributes of OpenAI's client."""

    choices: list[ChatChoice]
    model: str = ""
    usage: ChatUsage = field(default_factory=ChatUsage)


def call_llm(
    task: str | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    main_runtime: JsonObject | None = None,
    messages: list[JsonObject],
    temperature: float | None = None,
    max_tokens: int | None = None,
    tools: list[JsonObject] | None = None,
    timeout: float | None = None,
    extra_body: JsonObject | None = None,
    reasoning_config: JsonObject | None = None,
    api_mode: str | None = None,  # noqa: ARG001 - the provider knows its protocol
    stream: bool = False,
    stream_options: JsonObject | None = None,  # noqa: ARG001 - the usage is always in the response
) -> Any:
    """The answer of a model: the named one, else the model for small jobs from the config.

    With `stream`, an iterator that gives the whole answer in one piece.
    """
    response = default_runtime().bridge.run(
        async_call_llm(
            task,
            provider=provider,
            model=model,
            base_url=base_url,
            api_key=api_key,
            main_runtime=main_runtime,
            messages=messages,
            temperature=temperature,
            max_tokens=max_tokens,
            tools=tools,
            timeout=timeout,
            extra_body=extra_body,
            reasoning_config=reasoning_config,
        )
    )
    return _in_one_piece(response) if stream else response


async def async_call_llm(
    task: str | None = None,  # noqa: ARG001 - one model does all small jobs
    *,
    provider: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    main_runtime: JsonObject | None = None,
    messages: list[JsonObject],
    temperature: float | None = None,
    max_tokens: int | None = None,
    tools: list[JsonObject] | None = None,
    timeout: float | None = None,
    extra_body: JsonObject | None = None,  # noqa: ARG001 - belongs to one vendor's protocol
    reasoning_config: JsonObject | None = None,
) -> Any:
    """`call_llm` on the caller's event loop."""
    if not messages:
        raise UsageError("a model needs at least one message; pass messages=[{'role': 'user', 'content': …}]")
    system, conversation = read_messages(messages)
    named = {"provider": provider, "model": model, "base_url": base_url, "api_key": api_key}
    opened, name = _open(default_runtime().settings, named, main_runtime or {})
    request = ModelRequest(
        model=name,
        messages=conversation,
        system=system,
        tools=render(tools, opened.dialect).tools if tools else (),
        max_output_tokens=max_tokens,
        temperature=temperature,
        reasoning_effort=_effort(reasoning_config),
        timeout_seconds=timeout or TIMEOUT_SECONDS,
    )
    try:
        return _written(await complete(opened, request, _ignore))
    finally:
        await opened.close()


def extract_content_or_reasoning(response: Any) -> str:
    """The text of an answer; its reasoning if it has no text, and "" if it has neither."""
    choices = getattr(response, "choices", None)
    message = getattr(choices[0], "message", None) if choices else None
    for name in ("content", "reasoning_content", "reasoning"):
        text = getattr(message, name, None)
        if isinstance(text, str) and text.strip():
            return text.strip()
    return ""


def _open(settings: Settings, named: dict[str, str | None], main: JsonObject) -> tuple[Provider, str]:
    given: JsonObject = {key: value for key, value in named.items() if value and value != "auto"}
    if given:
        return create_provider(settings, **given)
    wanted: JsonObject = {key: str(main[key]) for key in _MAIN if main.get(key)}
    return create_auxiliary(settings, create_provider(settings, **wanted))


def _effort(reasoning: JsonObject | None) -> Any:
    if not reasoning:
        return ""
    if reasoning.get("enabled") is False:
        return "none"
    effort = str(reasoning.get("effort") or "")
    return effort if effort in ("none", "low", "medium", "high") else ""


def _written(response: ModelResponse) -> ChatResponse:
    message = write_messages([response.message])[0]
    calls = [
        ChatToolCall(id=one["id"], function=ChatFunction(**one["function"])) for one in message.get("tool_calls") or ()
    ]
    answer = ChatMessage(
        content=response.message.text or None if calls else response.message.text,
        tool_calls=calls or None,
        reasoning_content=response.message.reasoning or None,
    )
    usage = ChatUsage(response.usage.input_tokens, response.usage.output_tokens)
    return ChatResponse([ChatChoice(answer, _FINISH[response.stop])], response.model, usage)


def _in_one_piece(response: ChatResponse) -> Iterator[ChatResponse]:
    yield response


def _ignore(_: Delta) -> None:
    """Nobody watches the answer while it is written."""
