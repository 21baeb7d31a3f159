"""Choosing a model: what a name means, and saving the choice to the config."""

from __future__ import annotations

import difflib

from msgspec.structs import replace

from toolcrib.config.agent_settings import ModelSettings
from toolcrib.config.edit import put_values, unset_value
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError, nearest_names
from toolcrib.providers.choose import ConfiguredModels, ModelChoice, UnknownProvider, explain_choice
from toolcrib.providers.embedded.catalog import MODELS, find_model
from toolcrib.providers.presets import ALIASES, PRESETS, Preset


def choose_model(settings: Settings, model: str, provider: str = "", base_url: str = "") -> ModelChoice:
    """The provider and model that these names mean; raises UnknownProvider, or UsageError if no model is named.

    A named provider is used whether its key is set or not.
    """
    places = ConfiguredModels(settings)
    named, rest = _split(places, model)
    if provider:
        preset = places.find(provider)
        is_own = named is not None and named.name == preset.name
        choice = explain_choice(settings, model=rest if is_own else model, provider=preset.name, base_url=base_url)
    elif named is not None:
        choice = explain_choice(settings, model=rest, provider=named.name, base_url=base_url)
        # The provider's default, not the model in the config.
        choice = choice if rest else replace(choice, model=_default(settings, named))
    else:
        _refuse_misspelt(places, model, settings)
        choice = _by_name_of_model(settings, places, model, base_url)
    if choice.provider == "embedded":
        find_model(choice.model)
    if not choice.model:
        raise UsageError(
            f"{choice.provider} has no default model; name one with `toolcrib model use {choice.provider}/NAME` "
            f"(`toolcrib model list --provider {choice.provider}` lists them)"
        )
    return choice


def save_choice(settings: Settings, choice: ModelChoice) -> None:
    """Write the model, its provider and, if necessary, its address to the config."""
    values: dict[tuple[str, ...], str] = {("model", "default"): choice.model, ("model", "provider"): choice.provider}
    written = ModelSettings(default=choice.model, provider=choice.provider)
    is_elsewhere = choice.base_url != explain_choice(replace(settings, model=written)).base_url
    if is_elsewhere:
        values["model", "base_url"] = choice.base_url
    put_values(settings.home, values)
    if not is_elsewhere and settings.model.base_url:
        # It was the address of the previous model.
        unset_value(settings.home, "model.base_url")


def _split(places: ConfiguredModels, text: str) -> tuple[Preset | None, str]:
    """The provider before the first slash, or the whole text as a provider; None if it is neither."""
    head, _, rest = text.partition("/")
    return (places.find(head), rest) if places.knows(head) else (None, text)


def _default(settings: Settings, preset: Preset) -> str:
    return explain_choice(replace(settings, model=ModelSettings()), provider=preset.name).model


def _refuse_misspelt(places: ConfiguredModels, text: str, settings: Settings) -> None:
    """Raises UnknownProvider if the text looks like a misspelt provider."""
    head, slash, _ = text.partition("/")
    known = [*settings.providers, *PRESETS, *ALIASES]
    configured = settings.model.provider
    takes_slashes = places.knows(configured) and places.find(configured).slashed_models
    # A single word is a model, unless it nearly is the name of a provider.
    looks_like_one = nearest_names(head, known) if slash else difflib.get_close_matches(head, known, cutoff=0.9)
    if looks_like_one and not (slash and takes_slashes):
        raise UnknownProvider(head, known, advice="`toolcrib model list` lists them all")


def _by_name_of_model(settings: Settings, places: ConfiguredModels, model: str, base_url: str) -> ModelChoice:
    """The provider of a model named alone: the configured one, unless the name belongs to another provider."""
    choice = explain_choice(settings, model=model, base_url=base_url)
    preset = places.find(choice.provider)
    if preset.slashed_models or choice.base_url != preset.base_url or _is_own(preset, model):
        return choice
    if settings.model.provider and any(_is_own(maker, model) for maker in PRESETS.values()):
        return explain_choice(replace(settings, model=ModelSettings()), model=model)
    if preset.protocol == "embedded":
        raise UsageError(f"which provider has the model {model!r}? Name it: `toolcrib model use PROVIDER/{model}`")
    if "/" in model:
        raise UnknownProvider(model.partition("/")[0], (), advice="`toolcrib model list` lists them all")
    return choice


def _is_own(preset: Preset, model: str) -> bool:
    """Whether the name looks like a model of this provider."""
    if preset.protocol == "embedded":
        return model in MODELS
    return bool(preset.model_prefixes) and model.lower().startswith(tuple(p.lower() for p in preset.model_prefixes))
