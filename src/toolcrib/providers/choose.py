"""Chooses the provider and the model: by argument, config, or the keys that are set. Opens no connection."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolcrib.config.agent_settings import AuxiliarySettings, ProviderEntry
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.media_settings import VisionModelSettings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UnknownName
from toolcrib.providers.embedded.catalog import DEFAULT_MODEL, MODELS
from toolcrib.providers.presets import ALIASES, PRESETS, PROTOCOLS, Preset

OPENAI_ADDRESS_VARIABLE = PRESETS["openai"].address_variable
GATEWAY = "openrouter"
_UNDECIDED = ("", "auto")


class UnknownProvider(UnknownName):
    kind = "provider"


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A provider, a model, and the reason for the choice."""

    provider: str
    model: str
    """Empty if none was named and the provider has no default."""
    why: str
    """The reason for this provider, as a clause."""
    base_url: str = ""


class ConfiguredModels:
    """Every provider that can be named, and the variables with their keys."""

    def __init__(self, settings: Settings) -> None:
        self._entries = settings.providers
        self.variables = _variables(settings)

    def find(self, name: str) -> Preset:
        """The provider with this name: a preset, an entry of the config, or both combined."""
        entry = self._entries.get(name)
        preset = PRESETS.get(ALIASES.get(name.lower(), name.lower()))
        if entry is not None:
            return _with_entry(preset, entry) if preset is not None else _of_entry(name, entry)
        if preset is None:
            raise self.unknown(name)
        return preset

    def unknown(self, name: str, model: str = "") -> UnknownProvider:
        """The error for a provider that does not exist, or that a model name begins with."""
        advice = "`toolcrib model list` shows all of them"
        if model:
            advice = f"the part of {model!r} before the slash names the provider; {advice}"
        return UnknownProvider(name, [*self._entries, *PRESETS], advice=advice)

    def knows(self, name: str) -> bool:
        return name in self._entries or ALIASES.get(name.lower(), name.lower()) in PRESETS

    def key(self, preset: Preset) -> tuple[str, str]:
        """The variable of the provider's key, and the key; empty if it needs none or none is set."""
        named = [(variable, self.variables.get(variable, "").strip()) for variable in preset.key_variables]
        return next((found for found in named if found[1]), named[0] if named else ("", ""))

    def with_key(self) -> list[Preset]:
        """The providers whose key is set, in order of preference."""
        providers = [self.find(name) for name in dict.fromkeys([*PRESETS, *self._entries])]
        return [preset for preset in providers if preset.needs_key and self.key(preset)[1]]


def explain_choice(settings: Settings, *, model: str = "", provider: str = "", base_url: str = "") -> ModelChoice:
    """Where a request would go, and why; raises UnknownProvider for an unknown name."""
    providers = ConfiguredModels(settings)
    configured = settings.model
    home = None if configured.provider in _UNDECIDED else providers.find(configured.provider)
    address = base_url or configured.base_url
    if provider not in _UNDECIDED:
        preset = providers.find(provider)
        is_home = home is not None and home.name == preset.name
        text = _without_own_name(providers, preset, model or (configured.default if is_home else ""))
        return _choice(providers, preset, text, "it was named", base_url or (configured.base_url if is_home else ""))
    text = model or configured.default
    says_so = "the model was named" if model else "`model.default` in the config says so"
    if home is not None:
        preset, text = _inside(providers, home, text) if model else (home, _without_own_name(providers, home, text))
        why = "`model.provider` in the config says so" if preset is home else says_so
        return _choice(providers, preset, text, why, address if preset is home else base_url)
    if text:
        return _by_model(providers, text, says_so, address)
    if address:
        return _choice(providers, PRESETS["openai"], "", f"the address {address!r} was named", address)
    return _by_key(providers)


def explain_fallback(settings: Settings, text: str) -> ModelChoice:
    """What an entry of `model.fallbacks` means: `provider/model`, independent of the configured provider."""
    return _by_model(ConfiguredModels(settings), text, "it is a fallback", "")


def is_vision_named(settings: Settings) -> bool:
    """Whether the config names a model for images."""
    wanted = settings.auxiliary.vision
    # Hermes Agent writes `auto` for a choice that is left open.
    return bool(wanted.model or wanted.base_url or wanted.provider not in ("", "auto", "main"))


def explain_named(settings: Settings, wanted: AuxiliarySettings | VisionModelSettings) -> ModelChoice:
    """The model that a section of the config names, and why."""
    named, slash, _ = wanted.model.partition("/")
    if slash and not wanted.provider and not wanted.base_url and ConfiguredModels(settings).knows(named):
        # Independent of the main model's provider, because both parts are named.
        return explain_fallback(settings, wanted.model)
    return explain_choice(settings, model=wanted.model, provider=wanted.provider, base_url=wanted.base_url)


def _by_model(providers: ConfiguredModels, text: str, why: str, address: str) -> ModelChoice:
    """The provider for a model name: the part before its slash, its prefix, or the first provider with a key."""
    head, _, rest = text.partition("/")
    keyed = providers.with_key()
    # At a custom address, `mistral` is a model of that server.
    if providers.knows(head) and (rest or not address):
        preset = providers.find(head)
        gateway = next((one for one in keyed if one.name == GATEWAY and not address), None)
        if rest and preset.needs_key and preset not in keyed and gateway is not None:
            missing = providers.key(preset)[0]
            return _choice(
                providers, gateway, text, f"{missing} is not set, but the key of {gateway.title} is", address
            )
        return _choice(providers, preset, rest, why, address)
    if address:
        return _choice(providers, PRESETS["openai"], text, f"the address {address!r} was named", address)
    if text in MODELS:
        return _choice(providers, PRESETS["embedded"], text, why, "")
    makers = [preset for preset in PRESETS.values() if text.lower().startswith(_prefixes(preset))]
    maker = next((preset for preset in makers if preset in keyed), None)
    if maker is not None:
        return _choice(providers, maker, text, why, "")
    chosen = next((preset for preset in keyed if preset.chosen_by_key), None)
    if chosen is not None:
        return _choice(providers, chosen, text, f"{providers.key(chosen)[0]} is set", "")
    if not makers and providers.variables.get(OPENAI_ADDRESS_VARIABLE):
        return _choice(providers, PRESETS["openai"], text, f"{OPENAI_ADDRESS_VARIABLE} is set", "")
    if rest and not makers:
        raise providers.unknown(head, text)
    return _choice(providers, makers[0] if makers else PRESETS["embedded"], text, why, "")


def _by_key(providers: ConfiguredModels) -> ModelChoice:
    chosen = next((preset for preset in providers.with_key() if preset.chosen_by_key), None)
    if chosen is not None:
        return _choice(providers, chosen, "", f"{providers.key(chosen)[0]} is set", "")
    if providers.variables.get(OPENAI_ADDRESS_VARIABLE):
        return _choice(providers, PRESETS["openai"], "", f"{OPENAI_ADDRESS_VARIABLE} is set", "")
    return _choice(providers, PRESETS["embedded"], "", "no provider key is set", "")


def _inside(providers: ConfiguredModels, home: Preset, text: str) -> tuple[Preset, str]:
    """The provider of a model named on top of a configured provider: that one, unless the name gives another."""
    head, _, rest = text.partition("/")
    if not rest or not providers.knows(head):
        return home, text
    named = providers.find(head)
    if named.name == home.name:
        return home, rest
    # `openai/…` at a gateway is a model of that vendor; `groq/…` can only be the provider.
    is_maker = bool(named.model_prefixes)
    return (home, text) if home.slashed_models and is_maker else (named, rest)


def _without_own_name(providers: ConfiguredModels, preset: Preset, text: str) -> str:
    head, _, rest = text.partition("/")
    is_own = bool(rest) and providers.knows(head) and providers.find(head).name == preset.name
    # The gateway has models of its own whose names start with its name.
    return rest if is_own and not (preset.name == GATEWAY and "/" not in rest) else text


def _choice(providers: ConfiguredModels, preset: Preset, model: str, why: str, address: str) -> ModelChoice:
    if preset.address_variable:
        address = address or providers.variables.get(preset.address_variable, "")
    default = DEFAULT_MODEL if preset.protocol == "embedded" else preset.default_model
    return ModelChoice(provider=preset.name, model=model or default, why=why, base_url=address or preset.base_url)


def _prefixes(preset: Preset) -> tuple[str, ...]:
    return tuple(prefix.lower() for prefix in preset.model_prefixes)


def _variables(settings: Settings) -> Mapping[str, str]:
    """The environment, with values of `.env` as defaults; an empty variable counts as unset."""
    merged = {name: value for name, value in environment().items() if value.strip()}
    load_env_file(settings.home, merged)
    return merged


def _of_entry(name: str, entry: ProviderEntry) -> Preset:
    return Preset(
        name=name,
        title=name,
        base_url=entry.base_url,
        key_variables=(entry.key_env,) if entry.key_env else (),
        protocol=entry.protocol,
        dialect=PROTOCOLS[entry.protocol].dialect or entry.dialect,
        default_model=entry.model,
        slashed_models=True,
    )


def _with_entry(preset: Preset, entry: ProviderEntry) -> Preset:
    """A preset with the overrides of the config."""
    return msgspec.structs.replace(
        preset,
        base_url=entry.base_url or preset.base_url,
        key_variables=(entry.key_env,) if entry.key_env else preset.key_variables,
        default_model=entry.model or preset.default_model,
    )
