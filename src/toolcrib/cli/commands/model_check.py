"""One small real request to a model, and one that needs a tool: does it answer, how fast, and can it call tools?"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import click

from toolcrib.cli.models import (
    complete_providers,
    lack_of,
)
from toolcrib.cli.output import error_line, note, one_line, print_json, print_pairs
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.messages import RequestedCall, user_message
from toolcrib.core.models import Delta, ModelError, ModelRequest, ModelResponse, Notice, Provider, Usage
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects import render
from toolcrib.providers.choose import Choice, explain_choice
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


@dataclass(frozen=True, kw_only=True)
class Trial:
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


def try_answer(settings: Settings, choice: Choice, tell: Callable[[str], None]) -> Trial:
    """One small real request, sent once; raises ModelError. `tell` hears what takes time, such as a download."""
    return asyncio.run(_try(settings, choice, tell, [QUESTION]))[0]


def try_answer_and_tool(settings: Settings, choice: Choice, tell: Callable[[str], None]) -> tuple[Trial, Trial]:
    """The same, and then a request that needs a tool."""
    answer, tool_answer = asyncio.run(_try(settings, choice, tell, [QUESTION, TOOL_QUESTION]))
    return answer, tool_answer


async def _try(
    settings: Settings, choice: Choice, tell: Callable[[str], None], questions: Sequence[str]
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


@click.command(name="test")
@click.argument("model", required=False, default="")
@click.option("--provider", default="", metavar="NAME", shell_complete=complete_providers, help="Where the model is.")
@click.option("--base-url", default="", metavar="URL", help="The address of its server, if not the provider's own.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def test_model(model: str, provider: str, base_url: str, as_json: bool) -> int:
    """Send one small request to a model and say what came back.

    A second request needs a tool, and shows whether the model can call one. Without MODEL it is the one that answers
    now. Each request is sent once, without second tries and without fallbacks. Exit code 1 when it does not answer,
    or calls no tool.

    The object of --json has the keys ok, error (empty when nothing went wrong), why, answer and tool_call; these two
    have the keys provider, model, seconds, first_token_seconds, input_tokens, output_tokens and cost_usd, tool_call
    has also works.

    \b
    Examples:
      toolcrib model test
      toolcrib model test anthropic/claude-sonnet-5-5
      toolcrib model test qwen3 --base-url http://127.0.0.1:8000/v1
    """
    settings = load_settings()
    choice = explain_choice(settings, model=model, provider=provider, base_url=base_url)
    lack = lack_of(settings, choice)
    try:
        if lack is not None:
            raise ModelError(str(lack))
        answer, tool_answer = try_answer_and_tool(settings, choice, note)
    except ModelError as error:
        return _failed(str(error), choice.why, as_json)
    works = tool_answer.calls_the_tool
    problem = "" if works else _no_call(tool_answer)
    if as_json:
        print_json(
            {
                "ok": works,
                "error": problem,
                "why": choice.why,
                "answer": answer.as_json(),
                "tool_call": {**tool_answer.as_json(), "works": works},
            }
        )
        return 0 if works else 1
    print_pairs(
        [
            ("model", answer.model),
            ("provider", answer.provider),
            ("why", choice.why),
            *_figures(answer),
            ("tool calls", f"work ({tool_answer.seconds:.1f} s)" if works else "do not work"),
        ]
    )
    if problem:
        error_line(problem)
    return 0 if works else 1


def _figures(answer: Trial) -> list[tuple[str, str]]:
    first = "-" if answer.first_token_seconds is None else f"{answer.first_token_seconds:.2f} s"
    figures = [
        ("first token", first),
        ("whole answer", f"{answer.seconds:.2f} s{', loading included' if answer.was_loaded else ''}"),
        ("tokens", f"{answer.usage.input_tokens:,} in, {answer.usage.output_tokens:,} out"),
    ]
    return figures if answer.usage.cost_usd is None else [*figures, ("cost", f"${answer.usage.cost_usd:.6f}")]


def _no_call(answer: Trial) -> str:
    said = one_line(answer.text)[:80]
    instead = f"said {said!r} instead" if said else "said nothing instead"
    return (
        f"{answer.model} of {answer.provider} was asked to call {TOOL['function']['name']!r} and {instead}; "
        "an agent needs a model that calls tools: choose one of `toolcrib model list`"
    )


def _failed(sentence: str, why: str, as_json: bool) -> int:
    if as_json:
        print_json({"ok": False, "error": sentence, "why": why, "answer": None, "tool_call": None})
    else:
        error_line(sentence)
    return 1
