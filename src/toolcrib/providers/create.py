"""Creates providers from the settings, with retries, fallbacks and prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

import msgspec

from toolcrib.config.agent_settings import AuxiliarySettings, Prices
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.media_settings import VisionModelSettings
from toolcrib.config.settings import Settings
from toolcrib.core.models import Emit, ModelError, ModelProfile, ModelRequest, ModelResponse, Provider, Usage
from toolcrib.providers.choose import (
    ConfiguredModels,
    ModelChoice,
    UnknownProvider,
    explain_choice,
    explain_fallback,
    explain_named,
)
from toolcrib.providers.embedded.catalog import find_model
from toolcrib.providers.openai_request import OpenAIOptions
from toolcrib.providers.presets import PRESETS, PROTOCOLS, Preset, ProviderRequest, known_profile
from toolcrib.providers.prices import prices_of
from toolcrib.providers.retrying import (
    FallbackProvider,
    ImageRejectionFilter,
    OpenProvider,
    Render,
    RetryingProvider,
    ToolRejectionFilter,
)
from toolcrib.providers.scripted import read_script

MILLION = 1_000_000


def with_cost(usage: Usage, prices: Prices) -> Usage:
    """The usage with its cost; a cost reported by the provider stays."""
    if usage.cost_usd is not None:
        return usage
    fresh = max(usage.input_tokens - usage.cached_tokens, 0)
    # Leaving out the price of cached tokens does not make them free.
    cached = usage.cached_tokens * (prices.cached or prices.input)
    cost = (fresh * prices.input + cached + usage.output_tokens * prices.output) / MILLION
    return msgspec.structs.replace(usage, cost_usd=cost)


class PricedProvider:
    """A provider that adds the cost to each answer; see Provider."""

    def __init__(self, inner: Provider, prices: Mapping[str, Prices]) -> None:
        self._inner = inner
        self._prices = prices
        self.name = inner.name
        self.dialect = inner.dialect
        self.base_url = inner.base_url
        self.api_mode = inner.api_mode

    def profile(self, model: str) -> ModelProfile:
        return self._inner.profile(model)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        response = await self._inner.complete(request, emit)
        prices = prices_of(self.name, request.model, self._prices)
        if prices is None:
            return response
        return msgspec.structs.replace(response, usage=with_cost(response.usage, prices))

    async def close(self) -> None:
        await self._inner.close()


__all__ = [
    "ModelChoice", "UnknownProvider", "create_auxiliary", "create_named", "create_provider", "create_vision",
    "explain_choice",
]  # fmt: skip


def create_provider(
    settings: Settings,
    *,
    model: str = "",
    provider: str = "",
    base_url: str = "",
    api_key: str = "",
    render: Render | None = None,
) -> tuple[Provider, str]:
    """The provider and the name of the model; `explain_choice` fills in what is not named.

    The provider retries temporary failures, leaves out tools that the server refuses, and falls back to other models
    as configured. `api_key` replaces the provider's key from the environment. `render` renders tools in a fallback's
    dialect. This imports no SDK and opens no connection.
    """
    choice = explain_choice(settings, model=model, provider=provider, base_url=base_url)
    first = _opened(settings, choice, context_window=settings.model.context_window, api_key=api_key)
    others = [_fallback(settings, text) for text in settings.model.fallbacks]
    if not others:
        return first, choice.model
    return FallbackProvider(first, others, render=render or (lambda definitions, _: list(definitions))), choice.model


def create_auxiliary(settings: Settings, main: tuple[Provider, str]) -> tuple[Provider, str]:
    """The model for small jobs: the one configured for them, otherwise the main model."""
    wanted = settings.auxiliary
    if not (wanted.model or wanted.provider or wanted.base_url):
        return main
    return _named(settings, wanted)


def create_vision(settings: Settings) -> tuple[Provider, str]:
    """The model that `auxiliary.vision` names."""
    return _named(settings, settings.auxiliary.vision)


def create_named(settings: Settings, choice: ModelChoice) -> tuple[Provider, str]:
    """The provider of a model that was chosen by name, without fallbacks."""
    return _opened(settings, choice), choice.model


def _named(settings: Settings, wanted: AuxiliarySettings | VisionModelSettings) -> tuple[Provider, str]:
    return create_named(settings, explain_named(settings, wanted))


def _fallback(settings: Settings, text: str) -> OpenProvider:
    def open_it() -> tuple[Provider, str]:
        return create_named(settings, explain_fallback(settings, text))

    return open_it


def _opened(settings: Settings, choice: ModelChoice, *, context_window: int = 0, api_key: str = "") -> Provider:
    found = PricedProvider(_bare(settings, choice, context_window, api_key), settings.model.prices)
    # Innermost, because some servers call a rejected image an error of their own, which would be retried.
    seeing = ImageRejectionFilter(found)
    return ToolRejectionFilter(RetryingProvider(seeing, max_retries=settings.model.max_retries))


def _bare(settings: Settings, choice: ModelChoice, context_window: int, api_key: str) -> Provider:
    configured = ConfiguredModels(settings)
    preset = configured.find(choice.provider)
    if preset.protocol == "embedded":
        from toolcrib.providers.embedded.provider import EmbeddedProvider  # noqa: PLC0415

        return EmbeddedProvider(settings.home, find_model(choice.model).name)
    if preset.protocol == "scripted":
        return read_script(_script(choice))
    _check(preset, choice)
    variable, key = configured.key(preset)
    key = api_key or key
    if preset.needs_key and not key and choice.base_url == _own_address(preset):
        raise _missing_key(preset, variable)
    entry = settings.providers.get(choice.provider)
    profile = _profile(context_window or (entry.context_window if entry is not None else 0))
    # A process talks to one kind of server, and all of them cost 30 ms to import.
    made: Provider = import_module(PROTOCOLS[preset.protocol].module).create_from(
        ProviderRequest(
            preset=preset,
            base_url=choice.base_url,
            api_key=key,
            key_variable=variable,
            profile=profile,
            options=_options(preset, choice),
        )
    )
    return made


def _profile(context_window: int) -> Callable[[str], ModelProfile]:
    if not context_window:
        return known_profile
    return lambda model: msgspec.structs.replace(known_profile(model), context_window=context_window)


def _options(preset: Preset, choice: ModelChoice) -> OpenAIOptions:
    """The options specific to a service; a custom server under OpenAI's name gets none of OpenAI's."""
    is_elsewhere = preset.name == "openai" and choice.base_url != preset.base_url
    return OpenAIOptions() if is_elsewhere else preset.options


def _own_address(preset: Preset) -> str:
    known = PRESETS.get(preset.name)
    return known.base_url if known is not None else preset.base_url


def _check(preset: Preset, choice: ModelChoice) -> None:
    if not choice.base_url:
        raise ModelError(
            f"the provider {preset.name!r} has no address; set `providers.{preset.name}.base_url` in the config",
            kind="network",
        )
    if not choice.model:
        raise ModelError(
            f"no model of {preset.name!r} is named; name one that the server has: --model {preset.name}/NAME, "
            f"or permanently `toolcrib model use {preset.name}/NAME`",
            kind="unknown_model",
        )


def _missing_key(preset: Preset, variable: str) -> ModelError:
    where = OPTIONAL_ENV_VARS.get(variable, {}).get("url", "")
    source = f"get a key at {where}, then " if where else ""
    return ModelError(
        f"{preset.title} needs a key, and {variable} is not set; {source}type `toolcrib setup`", kind="key"
    )


def _script(choice: ModelChoice) -> str:
    if choice.base_url:
        return choice.base_url
    raise ModelError(
        "the scripted provider has no script; set `providers.scripted.base_url` in the config to a JSON file of steps",
        kind="bad_request",
    )
