"""The models that can be switched to without setting anything up."""

from __future__ import annotations

from dataclasses import dataclass

from toolcrib.config.settings import Settings
from toolcrib.providers.choose import ConfiguredModels
from toolcrib.providers.embedded.catalog import DEFAULT_MODEL, MODELS
from toolcrib.providers.presets import PRESETS

EMBEDDED = "embedded"


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """One model, and where it is."""

    provider: str
    model: str
    about: str = ""

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}" if self.provider and self.model else self.provider or self.model


def model_choices(settings: Settings) -> list[ModelChoice]:
    """What `/model` offers: of the config first, then of the services that have a key, then of this machine."""
    configured = settings.model
    found: list[ModelChoice] = []
    if configured.default:
        found.append(ModelChoice(provider=configured.provider, model=configured.default, about="of your config"))
    found += [ModelChoice(provider="", model=name, about="fallback of your config") for name in configured.fallbacks]
    for name, entry in settings.providers.items():
        if entry.model:
            found.append(ModelChoice(provider=name, model=entry.model, about=f"your server {entry.base_url}"))
    for preset in ConfiguredModels(settings).with_key():
        if preset.default_model:
            found.append(ModelChoice(provider=preset.name, model=preset.default_model, about=preset.title))
    local = PRESETS[EMBEDDED].title
    for model in (DEFAULT_MODEL, *MODELS):
        found.append(ModelChoice(provider=EMBEDDED, model=model, about=local))
    return list({one.name: one for one in reversed(found)}.values())[::-1]


def chosen_model(settings: Settings, wanted: str) -> ModelChoice:
    """What a name means: one of the choices, a provider, or a model whose provider is found by its name."""
    listed = next((one for one in model_choices(settings) if one.name == wanted), None)
    if listed is not None:
        return listed
    if ConfiguredModels(settings).knows(wanted):
        return ModelChoice(provider=wanted, model="")
    return ModelChoice(provider="", model=wanted)
