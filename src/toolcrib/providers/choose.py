"""Which provider and which model are meant: by argument, by config, by the keys that are set. Opens nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolcrib.config.agent_settings import ProviderEntry
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UnknownName
from toolcrib.providers.embedded.catalog import DEFAULT_MODEL, MODELS
from toolcrib.providers.presets import ALIASES, PRESETS, Preset

OPENAI_ADDRESS_VARIABLE = PRESETS["openai"].address_variable
GATEWAY = "openrouter"
_UNDECIDED = ("", "auto")


class UnknownProvider(UnknownName):
    kind = "provider"


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A provider and a model, and why it is these."""

    provider: str
    model: str
    """Empty where nobody named one and the provider has no default."""
    why: str
    """Half a sentence: why this provider."""
    base_url: str = ""


class ConfiguredModels:
    """Every provider that can be named, and the variables that hold their keys."""

    def __init__(self, settings: Settings) -> None:
        self._entries = settings.providers
        self.variables = _variables(settings)

    def find(self, name: str) -> Preset:
        """The provider of that name, as toolcrib knows it or as the config describes it."""
        entry = self._entries.get(name)
        preset = PRESETS.get(ALIASES.get(name.lower(), name.lower()))
        if entry is not None:
            return _with_entry(preset, entry) if preset is not None else _of_entry(name, entry)
        if preset is None:
            advice = "`toolcrib model list` shows all of them"
            raise UnknownProvider(name, [*self._entries, *PRESETS], advice=advice)
        return preset

    def knows(self, name: str) -> bool:
        return name in self._entries or ALIASES.get(name.lower(), name.lower()) in PRESETS

    def key(self, preset: Preset) -> tuple[str, str]:
        """The variable for the provider's key, and the key; empty where none is needed, or none is set."""
        named = [(variable, self.variables.get(variable, "").strip()) for variable in preset.key_variables]
        return next((found for found in named if found[1]), named[0] if named else ("", ""))

    def with_key(self) -> list[Preset]:
        """The providers whose key is set, in the order in which they are taken."""
        known = [self.find(name) for name in dict.fromkeys([*PRESETS, *self._entries])]
        return [preset for preset in known if preset.needs_key and self.key(preset)[1]]


def explain_choice(settings: Settings, *, model: str = "", provider: str = "", base_url: str = "") -> ModelChoice:
    """What a request would go to, and why; raises UnknownProvider for a name that nobody has."""
    places = ConfiguredModels(settings)
    configured = settings.model
    home = None if configured.provider in _UNDECIDED else places.find(configured.provider)
    address = base_url or configured.base_url
    if provider not in _UNDECIDED:
        preset = places.find(provider)
        is_home = home is not None and home.name == preset.name
        text = _without_own_name(places, preset, model or (configured.default if is_home else ""))
        return _choice(places, preset, text, "it was named", base_url or (configured.base_url if is_home else ""))
    text = model or configured.default
    says_so = "the model was named" if model else "`model.default` in the config says so"
    if home is not None:
        preset, text = _inside(places, home, text) if model else (home, _without_own_name(places, home, text))
        why = "`model.provider` in the config says so" if preset is home else says_so
        return _choice(places, preset, text, why, address if preset is home else base_url)
    if text:
        return _by_model(places, text, says_so, address)
    if address:
        return _choice(places, PRESETS["openai"], "", f"the address {address!r} was named", address)
    return _by_key(places)


def explain_fallback(settings: Settings, text: str) -> ModelChoice:
    """What an entry of `model.fallbacks` means: `provider/model`, whatever provider is configured."""
    return _by_model(ConfiguredModels(settings), text, "it is a fallback", "")


def _by_model(places: ConfiguredModels, text: str, why: str, address: str) -> ModelChoice:
    """The provider that a model's name tells: before its first slash, by how it begins, or the first with a key."""
    head, _, rest = text.partition("/")
    keyed = places.with_key()
    # At an address of one's own, `mistral` is a model that the server has.
    if places.knows(head) and (rest or not address):
        preset = places.find(head)
        gateway = next((one for one in keyed if one.name == GATEWAY and not address), None)
        if rest and preset.needs_key and preset not in keyed and gateway is not None:
            missing = places.key(preset)[0]
            return _choice(places, gateway, text, f"{missing} is not set, but the key of {gateway.title} is", address)
        return _choice(places, preset, rest, why, address)
    if address:
        return _choice(places, PRESETS["openai"], text, f"the address {address!r} was named", address)
    if text in MODELS:
        return _choice(places, PRESETS["embedded"], text, why, "")
    makers = [preset for preset in PRESETS.values() if text.lower().startswith(_prefixes(preset))]
    maker = next((preset for preset in makers if preset in keyed), None)
    if maker is not None:
        return _choice(places, maker, text, why, "")
    chosen = next((preset for preset in keyed if preset.chosen_by_key), None)
    if chosen is not None:
        return _choice(places, chosen, text, f"{places.key(chosen)[0]} is set", "")
    if not makers and places.variables.get(OPENAI_ADDRESS_VARIABLE):
        return _choice(places, PRESETS["openai"], text, f"{OPENAI_ADDRESS_VARIABLE} is set", "")
    return _choice(places, makers[0] if makers else PRESETS["embedded"], text, why, "")


def _by_key(places: ConfiguredModels) -> ModelChoice:
    chosen = next((preset for preset in places.with_key() if preset.chosen_by_key), None)
    if chosen is not None:
        return _choice(places, chosen, "", f"{places.key(chosen)[0]} is set", "")
    if places.variables.get(OPENAI_ADDRESS_VARIABLE):
        return _choice(places, PRESETS["openai"], "", f"{OPENAI_ADDRESS_VARIABLE} is set", "")
    return _choice(places, PRESETS["embedded"], "", "no key of a provider is set", "")


def _inside(places: ConfiguredModels, home: Preset, text: str) -> tuple[Preset, str]:
    """Where a model is that was named beside a configured provider: there, unless another provider is named."""
    head, _, rest = text.partition("/")
    if not rest or not places.knows(head):
        return home, text
    named = places.find(head)
    if named.name == home.name:
        return home, rest
    # `openai/…` at a gateway is a model of that maker; `groq/…` can only be the provider.
    is_maker = bool(named.model_prefixes)
    return (home, text) if home.slashed_models and is_maker else (named, rest)


def _without_own_name(places: ConfiguredModels, preset: Preset, text: str) -> str:
    head, _, rest = text.partition("/")
    is_own = bool(rest) and places.knows(head) and places.find(head).name == preset.name
    # The gateway has models of its own whose names begin with its name.
    return rest if is_own and not (preset.name == GATEWAY and "/" not in rest) else text


def _choice(places: ConfiguredModels, preset: Preset, model: str, why: str, address: str) -> ModelChoice:
    if preset.address_variable:
        address = address or places.variables.get(preset.address_variable, "")
    default = DEFAULT_MODEL if preset.protocol == "embedded" else preset.default_model
    return ModelChoice(provider=preset.name, model=model or default, why=why, base_url=address or preset.base_url)


def _prefixes(preset: Preset) -> tuple[str, ...]:
    return tuple(prefix.lower() for prefix in preset.model_prefixes)


def _variables(settings: Settings) -> Mapping[str, str]:
    """The environment with the values of `.env` behind it; a variable that is set to nothing counts as not set."""
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
        dialect="anthropic" if entry.protocol == "anthropic" else entry.dialect,
        default_model=entry.model,
        slashed_models=True,
    )


def _with_entry(preset: Preset, entry: ProviderEntry) -> Preset:
    """A known provider with what the config says differently."""
    return msgspec.structs.replace(
        preset,
        base_url=entry.base_url or preset.base_url,
        key_variables=(entry.key_env,) if entry.key_env else preset.key_variables,
        default_model=entry.model or preset.default_model,
    )
