"""`toolcrib model`: lists the providers and models, and chooses one; `model_check` tests it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.model_choice import choose_model, save_choice
from toolcrib.cli.models import (
    MissingRequirement,
    ProviderState,
    complete_providers,
    context_window,
    megabytes,
    missing_requirement,
    missing_weights,
    provider_states,
    server_models,
)
from toolcrib.cli.output import hint, note, print_json, print_line, print_pairs, print_table
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.providers.choose import (
    GATEWAY,
    ConfiguredModels,
    ModelChoice,
    UnknownProvider,
    explain_choice,
    explain_fallback,
    explain_named,
    is_vision_named,
)
from toolcrib.providers.embedded.catalog import MODELS
from toolcrib.providers.embedded.weights import open_store

group = CommandGroup("model")


@group.command("get")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def get_model(as_json: bool) -> None:
    """Show the model in use, and why it is used.

    --json prints an object with the keys provider, model, why, base_url, context_window, key_variable, key_set, problem
    and remedy (empty if nothing is missing), auxiliary (provider and model) and fallbacks (a list of such objects).
    """
    settings = load_settings()
    choice = explain_choice(settings)
    missing = missing_requirement(settings, choice)
    if as_json:
        print_json(_choice_as_json(settings, choice, missing))
        return
    pairs: list[tuple[str, str | list[str]]] = [
        ("model", choice.model or "none"),
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
    if is_vision_named(settings):
        pairs.append(("vision", _named(explain_named(settings, settings.auxiliary.vision), choice)))
    if missing is not None:
        pairs += [("missing", missing.what), ("fix", missing.remedy)]
    elif (weights := missing_weights(settings, choice)) is not None:
        pairs.append(("weights", f"{megabytes(weights.bytes)}, downloaded on first use"))
    print_pairs(pairs)
    hint("Run `toolcrib model use PROVIDER/MODEL` to choose another, `toolcrib model test` to test it.")


def _auxiliary(settings: Settings) -> ModelChoice | None:
    """The auxiliary model; None if it is the main one."""
    wanted = settings.auxiliary
    if not (wanted.model or wanted.provider or wanted.base_url):
        return None
    return explain_named(settings, wanted)


def _fallbacks(settings: Settings) -> list[ModelChoice]:
    return [explain_fallback(settings, text) for text in settings.model.fallbacks]


def _named(auxiliary: ModelChoice | None, main: ModelChoice) -> str:
    if auxiliary is None or (auxiliary.provider, auxiliary.model) == (main.provider, main.model):
        return "same model"
    return f"{auxiliary.provider}/{auxiliary.model}"


def _choice_as_json(settings: Settings, choice: ModelChoice, missing: MissingRequirement | None) -> JsonObject:
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
        "problem": missing.what if missing else "",
        "remedy": missing.remedy if missing else "",
        "auxiliary": {"provider": auxiliary.provider, "model": auxiliary.model},
        "fallbacks": [{"provider": found.provider, "model": found.model} for found in _fallbacks(settings)],
    }


@group.command("list")
@click.option(
    "--provider",
    default="",
    metavar="NAME",
    shell_complete=complete_providers,
    help="List the models of this provider.",
)
@click.option("--probe", is_flag=True, help="Also check whether local servers respond.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_providers(provider: str, probe: bool, as_json: bool) -> None:
    """List the providers and models, and what each needs.

    A star marks the provider in use. Sends no request, unless --provider names a provider; then its own list of models
    is shown.

    Each object of --json has the keys name, title, protocol, base_url, default_model, key_variable (empty if no key is
    needed), key_set, key_url, ready, local, answers (null if not probed) and chosen. With --provider, each has the keys
    name and provider; embedded models also have title, bytes and cached.

    \b
    Examples:
      toolcrib model list --probe
      toolcrib model list --provider openrouter
    """
    settings = load_settings()
    if provider:
        _list_models(settings, provider, as_json)
        return
    chosen = _chosen(settings)
    states = provider_states(settings, probe=probe)
    if as_json:
        print_json([_provider_as_json(state, chosen) for state in states])
        return
    print_table(["provider", "description", "key", "default model"], [_provider_row(state, chosen) for state in states])
    _print_missing_keys(states)
    hint("* is in use; run `toolcrib model use PROVIDER/MODEL` to choose another, `toolcrib setup` to enter keys.")


def _chosen(settings: Settings) -> str:
    try:
        return explain_choice(settings).provider
    except UnknownProvider:
        return ""  # `toolcrib model get` and `toolcrib doctor` report the broken config


def _provider_row(state: ProviderState, chosen: str) -> list[str]:
    preset = state.preset
    title = preset.title + ("" if state.answers is None else ", running" if state.answers else ", not running")
    name = f"{preset.name} *" if preset.name == chosen else preset.name
    return [name, title, _key(state), state.default_model or "-"]


def _key(state: ProviderState) -> str:
    if not state.preset.needs_key:
        return "not needed"
    return "set" if state.has_key else "missing"


def _print_missing_keys(states: Sequence[ProviderState]) -> None:
    """Print the variables of the missing keys and where to get each; too long for a column of the table."""
    missing = {state.key_variable: state.key_url or "-" for state in states if not state.is_ready}
    if missing:
        print_line()
        print_table(["missing key", "where to get it"], list(missing.items()))


def _provider_as_json(state: ProviderState, chosen: str) -> JsonObject:
    preset = state.preset
    return {
        "name": preset.name,
        "title": preset.title,
        "protocol": preset.protocol,
        "base_url": state.base_url,
        "default_model": state.default_model,
        "key_variable": state.key_variable,
        "key_set": state.has_key,
        "key_url": state.key_url,
        "ready": state.is_ready,
        "local": state.is_local,
        "answers": state.answers,
        "chosen": preset.name == chosen,
    }


def _list_models(settings: Settings, name: str, as_json: bool) -> None:
    places = ConfiguredModels(settings)
    preset = places.find(name)
    if preset.protocol == "embedded":
        _list_embedded(settings, as_json)
        return
    if preset.protocol == "scripted":
        raise UsageError("the scripted provider has no models; run `toolcrib model list` to see the others")
    choice = explain_choice(settings, provider=name)
    found = server_models(preset, choice.base_url, places.key(preset)[1])
    if as_json:
        print_json([{"name": model, "provider": preset.name} for model in found])
        return
    print_table([f"models of {preset.name}"], [[model] for model in found])
    hint(f"Run `toolcrib model use {preset.name}/MODEL` to use one.")


def _list_embedded(settings: Settings, as_json: bool) -> None:
    store = open_store(environment(), settings.home)
    cached = {model.name: store.path(model) is not None for model in MODELS.values()}
    if as_json:
        print_json(
            [
                {
                    "name": model.name,
                    "provider": "embedded",
                    "title": model.title,
                    "bytes": model.bytes,
                    "cached": cached[model.name],
                }
                for model in MODELS.values()
            ]
        )
        return
    rows = [
        [
            model.name,
            megabytes(model.bytes),
            "downloaded" if cached[model.name] else "downloaded on first use",
            model.remark,
        ]
        for model in MODELS.values()
    ]
    print_table(["models of embedded", "size", "weights", "what to expect"], rows)
    hint("Run `toolcrib model use embedded/MODEL` to use one.")


@group.command("use")
@click.argument("model")
@click.option(
    "--provider", default="", metavar="NAME", shell_complete=complete_providers, help="The provider of the model."
)
@click.option("--base-url", default="", metavar="URL", help="The address of the server, if not the provider's own.")
def use_model(model: str, provider: str, base_url: str) -> None:
    """Choose the model to use.

    MODEL is PROVIDER/MODEL, or the name that the provider uses, with --provider. The name of a provider alone selects
    its default model. Writes model.default and model.provider to the config file, and keeps comments and everything
    else in it.

    \b
    Examples:
      toolcrib model use anthropic/claude-sonnet-5-5
      toolcrib model use qwen3:8b --provider ollama
      toolcrib model use embedded
    """
    settings = load_settings()
    choice = choose_model(settings, model, provider, base_url)
    save_choice(settings, choice)
    note(
        f"Now using {choice.model} (provider: {choice.provider}); written to {settings.home.config_file}. "
        "Run `toolcrib model test` to test it."
    )
    changed = load_settings(settings.home)
    missing = missing_requirement(changed, choice)
    if missing is not None:
        note(f"Warning: {missing}.{_other_way(changed, choice)}")


def _other_way(settings: Settings, choice: ModelChoice) -> str:
    """How to use the model through a gateway whose key is set; empty if there is none."""
    places = ConfiguredModels(settings)
    has_gateway = any(preset.name == GATEWAY for preset in places.with_key())
    if choice.provider == GATEWAY or not has_gateway:
        return ""
    name = f"{choice.provider}/{choice.model}"
    return f" The key of {GATEWAY} is set; `toolcrib model use {name} --provider {GATEWAY}` uses it instead."


group.lazy("test", "model_check:test_model", "Send a small request to a model and show the reply.")
