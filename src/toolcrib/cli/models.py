"""What the commands about models share: the providers that are here, and what keeps one from answering."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import click
from msgspec import Struct
from msgspec.structs import replace

from toolcrib.cli.model_servers import answering
from toolcrib.cli.output import silence
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ToolcribError
from toolcrib.core.models import ModelError
from toolcrib.providers.choose import ConfiguredModels, ModelChoice
from toolcrib.providers.create import create_provider
from toolcrib.providers.embedded.catalog import DEFAULT_MODEL, EmbeddedModel, UnknownEmbeddedModel, find_model
from toolcrib.providers.embedded.weights import open_store
from toolcrib.providers.failures import is_on_this_machine
from toolcrib.providers.presets import PRESETS, Preset, known_profile

PACKAGES = {"openai": "openai", "anthropic": "anthropic", "embedded": "xllamacpp"}
"""The package that each protocol needs; the extra has the name of the protocol."""
HIDDEN = frozenset({"scripted"})
"""For tests: not shown to people who look for a model, unless their config names it."""


class ProviderState(Struct, frozen=True, kw_only=True):
    """One provider, and what is known here about it without asking it."""

    preset: Preset
    base_url: str
    default_model: str
    key_variable: str
    """The variable for its key; empty where none is needed."""
    has_key: bool
    answers: bool | None = None
    """Whether a server on this machine answers; None when it is not on this machine, or was not asked."""

    @property
    def is_local(self) -> bool:
        return is_on_this_machine(self.base_url)

    @property
    def is_ready(self) -> bool:
        """Whether nothing has to be entered before it can be used."""
        return self.has_key or not self.preset.needs_key

    @property
    def key_address(self) -> str:
        """Where a key can be had."""
        return where_to_get(self.key_variable)


class Lack(Struct, frozen=True, kw_only=True):
    """What keeps a model from answering, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def provider_states(settings: Settings, *, probe: bool = False) -> list[ProviderState]:
    """Every provider that can be named, those of the config first; `probe` asks the servers on this machine."""
    places = ConfiguredModels(settings)
    names = dict.fromkeys([*settings.providers, *(name for name in PRESETS if name not in HIDDEN)])
    states = [_state(places, places.find(name)) for name in names]
    local = [state for state in states if state.is_local] if probe else []
    answers = answering([(state.preset, state.base_url) for state in local])
    answered = {state.preset.name: found for state, found in zip(local, answers, strict=True)}
    return [replace(state, answers=answered.get(state.preset.name)) for state in states]


def where_to_get(variable: str) -> str:
    """The address at which the value of a variable can be had; empty when nobody said."""
    return str(OPTIONAL_ENV_VARS.get(variable, {}).get("url") or "")


def lack_of(settings: Settings, choice: ModelChoice) -> Lack | None:
    """What the chosen model lacks, as far as that can be told without asking anybody; None when nothing is missing."""
    preset = ConfiguredModels(settings).find(choice.provider)
    try:
        create_provider(settings, model=choice.model, provider=choice.provider, base_url=choice.base_url)
        if preset.protocol == "embedded":
            find_model(choice.model)
    except (ModelError, UnknownEmbeddedModel) as error:
        what, _, remedy = str(error).partition("; ")
        return Lack(what=what, remedy=remedy)
    package = PACKAGES.get(preset.protocol, "")
    if package and not installed_version(package):
        return Lack(
            what=f"the package `{package}`, which {preset.name} needs, is not installed",
            remedy=f"type `pip install 'toolcrib[{preset.protocol}]'`",
        )
    return None


def context_window(settings: Settings, choice: ModelChoice) -> int:
    """How many tokens the model takes, as far as it is known without asking it."""
    try:
        provider, model = create_provider(
            settings, model=choice.model, provider=choice.provider, base_url=choice.base_url
        )
        return provider.profile(model).context_window
    except (ModelError, UnknownEmbeddedModel):
        return settings.model.context_window or known_profile(choice.model).context_window


def missing_weights(settings: Settings, choice: ModelChoice) -> EmbeddedModel | None:
    """The embedded model that would have to be fetched before it can answer; None when nothing would."""
    if choice.provider != "embedded":
        return None
    model = find_model(choice.model)
    return model if open_store(environment(), settings.home).path(model) is None else None


def megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.0f} MB"


def installed_version(package: str) -> str:
    """The version of a package that is installed; empty when it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def complete_providers(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of providers for the shell."""
    try:
        with silence():
            names = [*load_settings().providers, *PRESETS]
    except (ToolcribError, OSError):
        return []  # there is no place for a message while somebody is typing
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _state(places: ConfiguredModels, preset: Preset) -> ProviderState:
    variable, key = places.key(preset)
    return ProviderState(
        preset=preset,
        base_url=preset.base_url,
        default_model=preset.default_model or (DEFAULT_MODEL if preset.protocol == "embedded" else ""),
        key_variable=variable,
        has_key=bool(key),
    )
