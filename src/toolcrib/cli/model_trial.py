"""One small real request to a model, and one that needs a tool: does it answer, how fast, and can it call tools?"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.config.settings import Settings
from toolcrib.core.messages import RequestedCall, user_message
from toolcrib.core.models import Delta, ModelRequest, ModelResponse, Notice, Provider, Usage
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects import render
from toolcrib.providers.choose import ModelChoice
from toolcrib.providers.create import create_provider

LONGEST_SECONDS = 60.0
QUESTION = "Reply with one word: ready"
TOOL_QUESTION = "What is the temperature in Oslo? Use the tool read_thermometer."
TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "read_thermometer",
        "description": "Read the thermometer of a city: its temperature now.",
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"type": "string", "description": "Name of the city, e.g. Paris."}},
        },
    },
}


class Trial(Struct, frozen=True, kw_only=True):
    """How one request went."""

    provider: str
    model: str
    """Which one answered, as the provider names it."""
    seconds: float
    first_token_seconds: float | None
    """Until the first piece of the answer; None when it came as a whole."""
    usage: Usage
    text: str
    calls: tuple[RequestedCall, ...]
    was_loaded: bool = False
    """The times include loading the model into memory."""

    def __str__(self) -> str:
        first = "" if self.first_token_seconds is None else f", the first token after {self.first_token_seconds:.1f} s"
        used = f"{self.usage.input_tokens:,} tokens in, {self.usage.output_tokens:,} out"
        loading = ", loading included" if self.was_loaded else ""
        return f"{self.model} of {self.provider} answered in {self.seconds:.1f} s{loading}{first} ({used})"

    def as_json(self) -> JsonObject:
        return {
            "provider": self.provider,
            "model": self.model,
            "seconds": round(self.seconds, 3),
            "first_token_seconds": None if self.first_token_seconds is None else round(self.first_token_seconds, 3),
            "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens,
            "cost_usd": self.usage.cost_usd,
        }

    @property
    def calls_the_tool(self) -> bool:
        """Whether it asked for the tool of the trial, with arguments that can be read."""
        return any(call.name == TOOL["function"]["name"] and _has_city(call) for call in self.calls)


def try_answer(settings: Settings, choice: ModelChoice, tell: Callable[[str], None]) -> Trial:
    """One small real request, sent once; raises ModelError. `tell` hears what takes time, such as a download."""
    return asyncio.run(_try(settings, choice, tell, [QUESTION]))[0]


def try_answer_and_tool(settings: Settings, choice: ModelChoice, tell: Callable[[str], None]) -> tuple[Trial, Trial]:
    """The same, and then a request that needs a tool."""
    answer, tool_answer = asyncio.run(_try(settings, choice, tell, [QUESTION, TOOL_QUESTION]))
    return answer, tool_answer


async def _try(
    settings: Settings, choice: ModelChoice, tell: Callable[[str], None], questions: Sequence[str]
) -> list[Trial]:
    provider, model = create_provider(
        _sent_once(settings), model=choice.model, provider=choice.provider, base_url=choice.base_url
    )
    _import_sdk(provider.api_mode)
    # The weights of an embedded model may have to be fetched first.
    limit = settings.model.timeout if choice.provider == "embedded" else min(LONGEST_SECONDS, settings.model.timeout)
    # Said here and not before: from here on an interrupt ends the request and nothing else.
    tell(f"Asking {model} of {provider.name} …")
    try:
        return [await _ask(provider, model, question, limit, tell) for question in questions]
    finally:
        await provider.close()


async def _ask(
    provider: Provider, model: str, question: str, limit_seconds: float, tell: Callable[[str], None]
) -> Trial:
    tools = render([TOOL], provider.dialect).tools if question == TOOL_QUESTION else []
    request = ModelRequest(
        model=model,
        messages=[user_message(question)],
        tools=tools,
        definitions=[TOOL] if tools else [],
        timeout_seconds=limit_seconds,
    )
    watch = _Watch(tell)
    response = await provider.complete(request, watch.hear)
    return watch.trial(provider, model, response)


class _Watch:
    """Takes the time of one request; fetching a model is not part of it, and loading it is said."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._began = time.monotonic()
        self._first: float | None = None
        self._was_loaded = False

    def hear(self, delta: Delta) -> None:
        if isinstance(delta, Notice):
            self._tell(delta.message)
            if delta.kind == "loading":
                self._began, self._was_loaded = time.monotonic(), True
            return
        if self._first is None:
            self._first = time.monotonic()

    def trial(self, provider: Provider, model: str, response: ModelResponse) -> Trial:
        return Trial(
            provider=response.provider or provider.name,
            model=response.model or model,
            seconds=time.monotonic() - self._began,
            first_token_seconds=None if self._first is None else self._first - self._began,
            usage=response.usage,
            text=response.message.text,
            calls=response.message.tool_calls,
            was_loaded=self._was_loaded,
        )


def _import_sdk(api_mode: str) -> None:
    """Let it not count as time that the model takes. The provider itself says what to do when it is missing."""
    package = {"anthropic_messages": "anthropic", "chat_completions": "openai"}.get(api_mode)
    if package:
        with contextlib.suppress(ImportError):
            importlib.import_module(package)


def _sent_once(settings: Settings) -> Settings:
    """The settings without second tries and without other models: it is this one that is tested."""
    return replace(settings, model=replace(settings.model, max_retries=0, fallbacks=[]))


def _has_city(call: RequestedCall) -> bool:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return False
    return isinstance(arguments, dict) and isinstance(arguments.get("city"), str)
