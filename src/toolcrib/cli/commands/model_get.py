"""`toolcrib model get`."""

from __future__ import annotations

import click

from toolcrib.cli.models import Lack, context_window, lack_of, megabytes, missing_weights
from toolcrib.cli.output import hint, print_json, print_pairs
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.types import JsonObject
from toolcrib.providers.choose import ConfiguredModels, ModelChoice, explain_choice, explain_fallback


@click.command(name="get")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(as_json: bool) -> None:
    """Say which model answers now, and why that one.

    The object of --json has the keys provider, model, why, base_url, context_window, key_variable, key_set, problem
    and remedy (empty when nothing is missing), auxiliary (provider and model) and fallbacks (a list of such objects).
    """
    settings = load_settings()
    choice = explain_choice(settings)
    lack = lack_of(settings, choice)
    if as_json:
        print_json(_as_json(settings, choice, lack))
        return
    pairs: list[tuple[str, str | list[str]]] = [
        ("model", choice.model or "none is named"),
        ("provider", choice.provider),
        ("why", choice.why),
    ]
    if choice.base_url:
        pairs.append(("address", choice.base_url))
    pairs += [
        ("context", f"{context_window(settings, choice):,} tokens"),
        ("auxiliary", _named(_auxiliary(settings), choice)),
        ("fallbacks", [f"{found.provider}/{found.model}" for found in _fallbacks(settings)] or "none"),
    ]
    if lack is not None:
        pairs += [("missing", lack.what), ("to do", lack.remedy)]
    elif (weights := missing_weights(settings, choice)) is not None:
        pairs.append(("weights", f"{megabytes(weights.bytes)} are fetched when it is first used"))
    print_pairs(pairs)
    hint("`toolcrib model use PROVIDER/MODEL` chooses another; `toolcrib model test` tries it.")


def _auxiliary(settings: Settings) -> ModelChoice | None:
    """The model for small jobs; None when it is the main one."""
    wanted = settings.auxiliary
    if not (wanted.model or wanted.provider or wanted.base_url):
        return None
    return explain_choice(settings, model=wanted.model, provider=wanted.provider, base_url=wanted.base_url)


def _fallbacks(settings: Settings) -> list[ModelChoice]:
    return [explain_fallback(settings, text) for text in settings.model.fallbacks]


def _named(auxiliary: ModelChoice | None, main: ModelChoice) -> str:
    if auxiliary is None or (auxiliary.provider, auxiliary.model) == (main.provider, main.model):
        return "the same"
    return f"{auxiliary.provider}/{auxiliary.model}"


def _as_json(settings: Settings, choice: ModelChoice, lack: Lack | None) -> JsonObject:
    places = ConfiguredModels(settings)
    variable, key = places.key(places.find(choice.provider))
    auxiliary = _auxiliary(settings) or choice
    return {
        "provider": choice.provider,
        "model": choice.model,
        "why": choice.why,
        "base_url": choice.base_url,
        "context_window": context_window(settings, choice),
        "key_variable": variable,
        "key_set": bool(key),
        "problem": lack.what if lack else "",
        "remedy": lack.remedy if lack else "",
        "auxiliary": {"provider": auxiliary.provider, "model": auxiliary.model},
        "fallbacks": [{"provider": found.provider, "model": found.model} for found in _fallbacks(settings)],
    }
