"""The provider and the model that somebody means, ready to be asked."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.settings import Settings
from toolcrib.core.models import ModelError, ModelProfile, Provider
from toolcrib.providers.anthropic_messages import AnthropicMessages
from toolcrib.providers.choose import Choice, Places, UnknownProvider, explain_choice, explain_fallback
from toolcrib.providers.embedded.catalog import find_model
from toolcrib.providers.embedded.provider import EmbeddedProvider
from toolcrib.providers.model_facts import known_profile
from toolcrib.providers.openai_chat import OpenAIChat
from toolcrib.providers.openai_wire import WireOptions
from toolcrib.providers.presets import PRESETS, Preset
from toolcrib.providers.prices import Priced
from toolcrib.providers.resilient import OpenProvider, Render, Resilient, WithFallbacks
from toolcrib.providers.scripted_file import read_script
from toolcrib.providers.set_aside import SettingAside

__all__ = ["Choice", "UnknownProvider", "create_auxiliary", "create_provider", "explain_choice"]


def create_provider(
    settings: Settings, *, model: str = "", provider: str = "", base_url: str = "", render: Render | None = None
) -> tuple[Provider, str]:
    """The provider and the name of the model; what is not named is chosen as `explain_choice` says.

    It tries again after failures that may pass, leaves refused tools out, and goes on with the configured fallbacks.
    `render` brings tools into the dialect of a fallback. No SDK is imported and nothing is connected yet.
    """
    choice = explain_choice(settings, model=model, provider=provider, base_url=base_url)
    first = _opened(settings, choice, context_window=settings.model.context_window)
    others = [_fallback(settings, text) for text in settings.model.fallbacks]
    if not others:
        return first, choice.model
    return WithFallbacks(first, others, render=render or (lambda definitions, _: list(definitions))), choice.model


def create_auxiliary(settings: Settings, main: tuple[Provider, str]) -> tuple[Provider, str]:
    """The model for small jobs: the one that the config names for them, else the main one."""
    wanted = settings.auxiliary
    if not (wanted.model or wanted.provider or wanted.base_url):
        return main
    named, slash, _ = wanted.model.partition("/")
    if slash and not wanted.provider and not wanted.base_url and Places(settings).knows(named):
        # Whatever provider the main model has: both parts are named.
        choice = explain_fallback(settings, wanted.model)
    else:
        choice = explain_choice(settings, model=wanted.model, provider=wanted.provider, base_url=wanted.base_url)
    return _opened(settings, choice), choice.model


def _fallback(settings: Settings, text: str) -> OpenProvider:
    def open_it() -> tuple[Provider, str]:
        choice = explain_fallback(settings, text)
        return _opened(settings, choice), choice.model

    return open_it


def _opened(settings: Settings, choice: Choice, *, context_window: int = 0) -> Provider:
    found = _bare(settings, choice, context_window)
    if settings.model.prices:
        found = Priced(found, settings.model.prices)
    return SettingAside(Resilient(found, max_retries=settings.model.max_retries))


def _bare(settings: Settings, choice: Choice, context_window: int) -> Provider:
    places = Places(settings)
    preset = places.find(choice.provider)
    if preset.protocol == "embedded":
        return EmbeddedProvider(settings.home, find_model(choice.model).name)
    if preset.protocol == "scripted":
        return read_script(_script(choice))
    _check(preset, choice)
    variable, key = places.key(preset)
    if preset.needs_key and not key and choice.base_url == _own_address(preset):
        raise _missing_key(preset, variable)
    entry = settings.providers.get(choice.provider)
    profile = _profile(context_window or (entry.context_window if entry is not None else 0))
    if preset.protocol == "anthropic":
        return AnthropicMessages(
            name=preset.name, base_url=choice.base_url, api_key=key, profile=profile, key_variable=variable
        )
    return OpenAIChat(
        name=preset.name,
        base_url=choice.base_url,
        api_key=key,
        dialect=preset.dialect,
        profile=profile,
        default_headers=preset.headers,
        options=_options(preset, choice),
        key_variable=variable,
    )


def _profile(context_window: int) -> Callable[[str], ModelProfile]:
    if not context_window:
        return known_profile
    return lambda model: msgspec.structs.replace(known_profile(model), context_window=context_window)


def _options(preset: Preset, choice: Choice) -> WireOptions:
    """What is special about a service; somebody else's server under the name of OpenAI has nothing of OpenAI's own."""
    is_elsewhere = preset.name == "openai" and choice.base_url != preset.base_url
    return WireOptions() if is_elsewhere else preset.options


def _own_address(preset: Preset) -> str:
    known = PRESETS.get(preset.name)
    return known.base_url if known is not None else preset.base_url


def _check(preset: Preset, choice: Choice) -> None:
    if not choice.base_url:
        raise ModelError(
            f"the provider {preset.name!r} has no address; set `providers.{preset.name}.base_url` in the config",
            kind="network",
        )
    if not choice.model:
        raise ModelError(
            f"no model of {preset.name!r} is named; name one that the server has: --model {preset.name}/NAME, "
            f"or for good `toolcrib model use {preset.name}/NAME`",
            kind="unknown_model",
        )


def _missing_key(preset: Preset, variable: str) -> ModelError:
    where = OPTIONAL_ENV_VARS.get(variable, {}).get("url", "")
    source = f"get a key at {where}, then " if where else ""
    return ModelError(
        f"{preset.title} needs a key, and {variable} is not set; {source}type `toolcrib setup`", kind="key"
    )


def _script(choice: Choice) -> str:
    if choice.base_url:
        return choice.base_url
    raise ModelError(
        "the scripted provider has no script; set `providers.scripted.base_url` in the config to a JSON file of steps",
        kind="bad_request",
    )
