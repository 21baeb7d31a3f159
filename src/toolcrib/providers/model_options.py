"""The models that a user can choose from: those of the config, the keys and the catalog."""

from __future__ import annotations

from msgspec import Struct

from toolcrib.config.settings import Settings
from toolcrib.providers.choose import ConfiguredModels
from toolcrib.providers.embedded.catalog import DEFAULT_MODEL, MODELS
from toolcrib.providers.presets import PRESETS

EMBEDDED = "embedded"


class ModelOption(Struct, frozen=True, kw_only=True):
    """A model and its provider."""

    provider: str
    model: str
    about: str = ""

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}" if self.provider and self.model else self.provider or self.model


def model_choices(settings: Settings) -> list[ModelOption]:
    """The models that are ready to use: from the config, from providers with a key, then embedded ones."""
    configured = settings.model
    found: list[ModelOption] = []
    if configured.default:
        found.append(ModelOption(provider=configured.provider, model=configured.default, about="from your config"))
    found += [ModelOption(provider="", model=name, about="fallback from your config") for name in configured.fallbacks]
    for name, entry in settings.providers.items():
        if entry.model:
            found.append(ModelOption(provider=name, model=entry.model, about=f"your server {entry.base_url}"))
    for preset in ConfiguredModels(settings).with_key():
        if preset.default_model:
            found.append(ModelOption(provider=preset.name, model=preset.default_model, about=preset.title))
    local = PRESETS[EMBEDDED].title
    for model in (DEFAULT_MODEL, *MODELS):
        found.append(ModelOption(provider=EMBEDDED, model=model, about=local))
    return list({one.name: one for one in reversed(found)}.values())[::-1]


def chosen_model(settings: Settings, wanted: str) -> ModelOption:
    """What a name means: one of the choices, a provider, or a model whose provider follows from its name."""
    listed = next((one for one in model_choices(settings) if one.name == wanted), None)
    if listed is not None:
        return listed
    if ConfiguredModels(settings).knows(wanted):
        return ModelOption(provider=wanted, model="")
    return ModelOption(provider="", model=wanted)
