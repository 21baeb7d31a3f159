"""`toolcrib model list`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from toolcrib.cli.model_servers import server_models
from toolcrib.cli.models import ProviderState, complete_providers, megabytes, provider_states
from toolcrib.cli.output import hint, print_json, print_line, print_table
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.providers.choose import ConfiguredModels, UnknownProvider, explain_choice
from toolcrib.providers.embedded.catalog import MODELS
from toolcrib.providers.embedded.weights import open_store


@click.command(name="list")
@click.option(
    "--provider", default="", metavar="NAME", shell_complete=complete_providers, help="List the models of this one."
)
@click.option("--probe", is_flag=True, help="Also ask the servers on this machine whether they answer.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(provider: str, probe: bool, as_json: bool) -> None:
    """List the providers and models that can be used here, and what the others lack.

    The provider that answers now is marked with a star. Nobody is asked over the network for this, unless --provider
    names one, whose own list of models is shown then.

    Each object of --json has the keys name, title, protocol, base_url, default_model, key_variable (empty when no key
    is needed), key_set, key_url, ready, local, answers (null when it was not asked) and chosen. With --provider each
    has the keys name and provider; models inside toolcrib have also title, bytes and cached.

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
        print_json([_as_json(state, chosen) for state in states])
        return
    print_table(["provider", "what it is", "key", "default model"], [_row(state, chosen) for state in states])
    _print_missing_keys(states)
    hint("* answers now; `toolcrib model use PROVIDER/MODEL` chooses another, `toolcrib setup` enters keys.")


def _chosen(settings: Settings) -> str:
    try:
        return explain_choice(settings).provider
    except UnknownProvider:
        return ""  # `toolcrib model get` and `toolcrib doctor` say what is wrong with the config


def _row(state: ProviderState, chosen: str) -> list[str]:
    preset = state.preset
    title = preset.title + ("" if state.answers is None else ", answers" if state.answers else ", does not answer")
    name = f"{preset.name} *" if preset.name == chosen else preset.name
    return [name, title, _key(state), state.default_model or "-"]


def _key(state: ProviderState) -> str:
    if not state.preset.needs_key:
        return "not needed"
    return "set" if state.has_key else "missing"


def _print_missing_keys(states: Sequence[ProviderState]) -> None:
    """Which variables the missing keys belong in, and where each can be had; too long for a column of the table."""
    missing = {state.key_variable: state.key_address or "-" for state in states if not state.is_ready}
    if missing:
        print_line()
        print_table(["missing key", "where to get it"], list(missing.items()))


def _as_json(state: ProviderState, chosen: str) -> JsonObject:
    preset = state.preset
    return {
        "name": preset.name,
        "title": preset.title,
        "protocol": preset.protocol,
        "base_url": state.base_url,
        "default_model": state.default_model,
        "key_variable": state.key_variable,
        "key_set": state.has_key,
        "key_url": state.key_address,
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
        raise UsageError("the scripted provider has no models; `toolcrib model list` shows the others")
    choice = explain_choice(settings, provider=name)
    found = server_models(preset, choice.base_url, places.key(preset)[1])
    if as_json:
        print_json([{"name": model, "provider": preset.name} for model in found])
        return
    print_table([f"models of {preset.name}"], [[model] for model in found])
    hint(f"`toolcrib model use {preset.name}/MODEL` chooses one.")


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
            "is here" if cached[model.name] else "fetched when first used",
            model.remark,
        ]
        for model in MODELS.values()
    ]
    print_table(["models of embedded", "size", "weights", "what to expect"], rows)
    hint("`toolcrib model use embedded/MODEL` chooses one.")
