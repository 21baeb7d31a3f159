"""`toolcrib model test`: whether the model answers, how fast, and whether it calls tools. Also for setup and doctor.

Doctor also reports what the model needs before it can answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import time
from collections.abc import Callable, Sequence

import click
from msgspec import Struct
from msgspec.structs import replace

from toolcrib.cli.models import (
    MissingRequirement,
    complete_providers,
    context_window,
    installed_version,
    megabytes,
    missing_requirement,
    missing_weights,
)
from toolcrib.cli.output import error_line, note, one_line, print_json, print_pairs
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.messages import RequestedCall, user_message
from toolcrib.core.models import Delta, ModelError, ModelRequest, ModelResponse, Notice, Provider, Usage
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects import render
from toolcrib.providers.choose import ConfiguredModels, ModelChoice, UnknownProvider, explain_choice, explain_named
from toolcrib.providers.create import create_provider
from toolcrib.providers.presets import PROTOCOLS

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


class ModelCheck(Struct, frozen=True, kw_only=True):
    """The result of one request."""

    provider: str
    model: str
    """The model that answered, as the provider names it."""
    seconds: float
    first_token_seconds: float | None
    """Until the first part of the answer; None if it was not streamed."""
    usage: Usage
    text: str
    calls: tuple[RequestedCall, ...]
    was_loaded: bool = False
    """Whether the times include loading the model into memory."""

    def __str__(self) -> str:
        first = "" if self.first_token_seconds is None else f", first token after {self.first_token_seconds:.1f} s"
        used = f"{self.usage.input_tokens:,} tokens in, {self.usage.output_tokens:,} out"
        loading = ", including loading" if self.was_loaded else ""
        return f"{self.model} (provider: {self.provider}) answered in {self.seconds:.1f} s{loading}{first} ({used})"

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
    def has_called_tool(self) -> bool:
        """Whether the model called the test tool with valid arguments."""
        return any(call.name == TOOL["function"]["name"] and _has_city(call) for call in self.calls)


def check_reply(settings: Settings, choice: ModelChoice, tell: Callable[[str], None]) -> ModelCheck:
    """Send one small request, without retries; raises ModelError. `tell` reports downloads and other delays."""
    return asyncio.run(_run_checks(settings, choice, tell, [QUESTION]))[0]


def check_reply_and_tool_call(
    settings: Settings, choice: ModelChoice, tell: Callable[[str], None]
) -> tuple[ModelCheck, ModelCheck]:
    """Send the same request, and one that needs a tool."""
    answer, tool_answer = asyncio.run(_run_checks(settings, choice, tell, [QUESTION, TOOL_QUESTION]))
    return answer, tool_answer


async def _run_checks(
    settings: Settings, choice: ModelChoice, tell: Callable[[str], None], questions: Sequence[str]
) -> list[ModelCheck]:
    provider, model = create_provider(
        _sent_once(settings), model=choice.model, provider=choice.provider, base_url=choice.base_url
    )
    _import_sdk(provider.api_mode)
    # The weights of an embedded model may have to be downloaded first.
    limit = settings.model.timeout if choice.provider == "embedded" else min(LONGEST_SECONDS, settings.model.timeout)
    # Not earlier: from here on, Ctrl-C ends only the request.
    tell(f"Sending a request to {model} (provider: {provider.name}) …")
    try:
        return [await _ask(provider, model, question, limit, tell) for question in questions]
    finally:
        await provider.close()


async def _ask(
    provider: Provider, model: str, question: str, limit_seconds: float, tell: Callable[[str], None]
) -> ModelCheck:
    tools = render([TOOL], provider.dialect).tools if question == TOOL_QUESTION else []
    request = ModelRequest(
        model=model,
        messages=[user_message(question)],
        tools=tools,
        definitions=[TOOL] if tools else [],
        timeout_seconds=limit_seconds,
    )
    watch = _RequestTimer(tell)
    response = await provider.complete(request, watch.hear)
    return watch.check(provider, model, response)


class _RequestTimer:
    """Times one request, without the download of a model; notes whether the model was loaded."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._began = time.monotonic()
        self._first: float | None = None
        self._was_loaded = False

    def hear(self, delta: Delta) -> None:
        if isinstance(delta, Notice):
            if delta.kind != "working":
                self._tell(delta.message)
            if delta.kind == "loading":
                self._began, self._was_loaded = time.monotonic(), True
            return
        if self._first is None:
            self._first = time.monotonic()

    def check(self, provider: Provider, model: str, response: ModelResponse) -> ModelCheck:
        return ModelCheck(
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
    """Import the SDK before the clock starts. If it is missing, the provider reports that."""
    package = {"anthropic_messages": "anthropic", "chat_completions": "openai"}.get(api_mode)
    if package:
        with contextlib.suppress(ImportError):
            importlib.import_module(package)


def _sent_once(settings: Settings) -> Settings:
    """The settings without retries and fallbacks, because this model is tested."""
    return replace(settings, model=replace(settings.model, max_retries=0, fallbacks=[]))


def _has_city(call: RequestedCall) -> bool:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return False
    return isinstance(arguments, dict) and isinstance(arguments.get("city"), str)


class ModelState(Struct, frozen=True, kw_only=True):
    """The model in use, and what it needs before it can answer."""

    choice: ModelChoice | None
    missing: MissingRequirement | None
    key_variable: str = ""
    has_key: bool = False
    package: str = ""
    package_version: str = ""
    context_window: int = 0
    weights: str = ""
    """For the embedded model: whether its weights are downloaded."""
    is_wanted: bool = False
    """The config names it, so it is a problem if it cannot answer."""
    check: ModelCheck | None = None
    auxiliary_problem: str = ""
    """What is wrong with the auxiliary model in the config."""

    def lines(self) -> list[str]:
        if self.choice is None:
            return ["none available"]
        named = f"{self.choice.model or 'no model'} (provider: {self.choice.provider}): {self.choice.why}"
        facts = [f"{self.key_variable} is {'set' if self.has_key else 'missing'}"] if self.key_variable else []
        if self.package:
            facts.append(f"package {self.package} {self.package_version or 'is not installed'}")
        facts += [self.weights] if self.weights else []
        tried = [f"{self.check}"] if self.check is not None else []
        lacks = [str(self.missing)] if self.missing is not None and not self.is_wanted else []
        return [line for line in (named, ", ".join(facts), *tried, *lacks) if line]

    def as_json(self) -> JsonObject:
        choice = self.choice
        return {
            "provider": choice.provider if choice else "",
            "model": choice.model if choice else "",
            "why": choice.why if choice else "",
            "base_url": choice.base_url if choice else "",
            "context_window": self.context_window,
            "usable": self.missing is None,
            "detail": self.missing.what if self.missing else "",
            "remedy": self.missing.remedy if self.missing else "",
            "key_variable": self.key_variable,
            "key_set": self.has_key,
            "package": self.package,
            "package_version": self.package_version,
            "weights": self.weights,
            "trial": self.check.as_json() if self.check is not None else None,
        }


def inspect_model(settings: Settings, *, online: bool) -> ModelState:
    """Which model is in use and what it needs; `online` sends it a small request."""
    is_wanted = bool(settings.model.provider or settings.model.default or settings.model.base_url)
    try:
        choice = explain_choice(settings)
    except UnknownProvider as error:
        return ModelState(
            choice=None, missing=MissingRequirement(what=str(error), remedy="`toolcrib model use NAME`"), is_wanted=True
        )
    places = ConfiguredModels(settings)
    preset = places.find(choice.provider)
    variable, key = places.key(preset)
    package = PROTOCOLS[preset.protocol].package
    missing = missing_requirement(settings, choice)
    check = None
    if online and missing is None:
        try:
            check = check_reply(settings, choice, note)
        except ModelError as error:
            what, _, remedy = str(error).partition("; ")
            missing, is_wanted = MissingRequirement(what=what, remedy=remedy), True
    return ModelState(
        choice=choice,
        missing=missing,
        key_variable=variable,
        has_key=bool(key),
        package=package,
        package_version=installed_version(package) if package else "",
        context_window=context_window(settings, choice),
        weights=_weights(settings, choice, missing),
        is_wanted=is_wanted,
        check=check,
        auxiliary_problem=_auxiliary_problem(settings),
    )


def _auxiliary_problem(settings: Settings) -> str:
    for name, wanted in (("auxiliary", settings.auxiliary), ("auxiliary.vision", settings.auxiliary.vision)):
        try:
            explain_named(settings, wanted)
        except UnknownProvider as error:
            return f"config key {name}.provider: {error}"
    return ""


def _weights(settings: Settings, choice: ModelChoice, missing: MissingRequirement | None) -> str:
    if choice.provider != "embedded" or missing is not None:
        return ""
    weights = missing_weights(settings, choice)
    if weights is None:
        return "weights downloaded"
    return f"weights ({megabytes(weights.bytes)}) will be downloaded on first use"


@click.command(name="test")
@click.argument("model", required=False, default="")
@click.option("--provider", default="", metavar="NAME", shell_complete=complete_providers, help="Where the model is.")
@click.option("--base-url", default="", metavar="URL", help="The address of its server, if not the provider's own.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def test_model(model: str, provider: str, base_url: str, as_json: bool) -> int:
    """Send a small request to a model and show the reply.

    A second request needs a tool, and shows whether the model can call one. The default is the model in use. Sends each
    request once, without retries or fallbacks. Exit code 1 if the model does not answer or does not call the tool.

    --json prints an object with the keys ok, error (empty if there was none), why, answer and tool_call; the last two
    have the keys provider, model, seconds, first_token_seconds, input_tokens, output_tokens and cost_usd, and tool_call
    also has works.

    \b
    Examples:
      toolcrib model test
      toolcrib model test anthropic/claude-sonnet-5-5
      toolcrib model test qwen3 --base-url http://127.0.0.1:8000/v1
    """
    settings = load_settings()
    choice = explain_choice(settings, model=model, provider=provider, base_url=base_url)
    missing = missing_requirement(settings, choice)
    try:
        if missing is not None:
            raise ModelError(str(missing))
        answer, tool_answer = check_reply_and_tool_call(settings, choice, note)
    except ModelError as error:
        return _failed(str(error), choice.why, as_json)
    works = tool_answer.has_called_tool
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


def _figures(answer: ModelCheck) -> list[tuple[str, str]]:
    first = "-" if answer.first_token_seconds is None else f"{answer.first_token_seconds:.2f} s"
    figures = [
        ("first token", first),
        ("whole answer", f"{answer.seconds:.2f} s{', including loading' if answer.was_loaded else ''}"),
        ("tokens", f"{answer.usage.input_tokens:,} in, {answer.usage.output_tokens:,} out"),
    ]
    return figures if answer.usage.cost_usd is None else [*figures, ("cost", f"${answer.usage.cost_usd:.6f}")]


def _no_call(answer: ModelCheck) -> str:
    reply = one_line(answer.text)[:80]
    instead = f"replied {reply!r} instead" if reply else "replied nothing"
    return (
        f"{answer.model} (provider: {answer.provider}) was asked to call {TOOL['function']['name']!r} and {instead}; "
        "an agent needs a model that can call tools: choose one from `toolcrib model list`"
    )


def _failed(sentence: str, why: str, as_json: bool) -> int:
    if as_json:
        print_json({"ok": False, "error": sentence, "why": why, "answer": None, "tool_call": None})
    else:
        error_line(sentence)
    return 1
