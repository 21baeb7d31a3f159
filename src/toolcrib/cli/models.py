"""Model providers: which are configured, what keeps one from answering, and which models a server has."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolcrib.cli.commands.completion import matching_names
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.environment import environment
from toolcrib.config.files import replace_file, writing
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ConfigError
from toolcrib.core.models import ModelError
from toolcrib.providers.choose import ConfiguredModels, ModelChoice
from toolcrib.providers.create import create_provider
from toolcrib.providers.embedded.catalog import DEFAULT_MODEL, MODELS, EmbeddedModel, UnknownEmbeddedModel, find_model
from toolcrib.providers.embedded.weights import open_store
from toolcrib.providers.model_options import ModelOption, model_choices
from toolcrib.providers.presets import PRESETS, PROTOCOLS, Preset, is_on_this_machine, known_profile

HIDDEN = frozenset({"scripted"})
"""For tests: hidden from people who look for a model, unless their config names it."""
LIST_SECONDS = 10.0
PROBE_SECONDS = 0.3
MEMORY_RESERVE = 1.5
"""The share of its memory that has to be free before a model is recommended: other programs need some too."""
PICKER_SECONDS = 3.0
KEPT_SECONDS = 3600.0
MAX_LIST_BYTES = 20_000_000


class ProviderState(Struct, frozen=True, kw_only=True):
    """A provider, and what is known about it without a request."""

    preset: Preset
    base_url: str
    default_model: str
    key_variable: str
    """The variable for its key; empty if it needs none."""
    has_key: bool
    answers: bool | None = None
    """Whether a local server responds; None for a remote one, or if it was not probed."""

    @property
    def is_local(self) -> bool:
        return is_on_this_machine(self.base_url)

    @property
    def is_ready(self) -> bool:
        """Whether it can be used without entering a key."""
        return self.has_key or not self.preset.needs_key

    @property
    def key_url(self) -> str:
        """Where to get a key."""
        return key_url_of(self.key_variable)


class MissingRequirement(Struct, frozen=True, kw_only=True):
    """What a model needs before it can answer, and how to provide it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def provider_states(settings: Settings, *, probe: bool = False) -> list[ProviderState]:
    """All providers, those of the config first; `probe` checks whether local servers respond."""
    places = ConfiguredModels(settings)
    names = dict.fromkeys([*settings.providers, *(name for name in PRESETS if name not in HIDDEN)])
    states = [_state(places, places.find(name)) for name in names]
    local = [state for state in states if state.is_local] if probe else []
    answers = probe_servers([(state.preset, state.base_url) for state in local])
    answered = {state.preset.name: found for state, found in zip(local, answers, strict=True)}
    return [replace(state, answers=answered.get(state.preset.name)) for state in states]


def key_url_of(variable: str) -> str:
    """Where to get the value of a variable; empty if unknown."""
    return str(OPTIONAL_ENV_VARS.get(variable, {}).get("url") or "")


def missing_requirement(settings: Settings, choice: ModelChoice) -> MissingRequirement | None:
    """What the chosen model needs, as far as can be told without a request; None if nothing is missing."""
    preset = ConfiguredModels(settings).find(choice.provider)
    try:
        create_provider(settings, model=choice.model, provider=choice.provider, base_url=choice.base_url)
        if preset.protocol == "embedded":
            find_model(choice.model)
    except (ModelError, UnknownEmbeddedModel) as error:
        what, _, remedy = str(error).partition("; ")
        return MissingRequirement(what=what, remedy=remedy)
    package = PROTOCOLS[preset.protocol].package
    if package and not installed_version(package):
        return MissingRequirement(
            what=f"the package `{package}`, which {preset.name} needs, is not installed",
            remedy=f"run `pip install 'toolcrib[{preset.protocol}]'`",
        )
    return None


def context_window(settings: Settings, choice: ModelChoice) -> int:
    """The context window of the model in tokens, as far as known without a request."""
    try:
        provider, model = create_provider(
            settings, model=choice.model, provider=choice.provider, base_url=choice.base_url
        )
        return provider.profile(model).context_window
    except (ModelError, UnknownEmbeddedModel):
        return settings.model.context_window or known_profile(choice.model).context_window


def missing_weights(settings: Settings, choice: ModelChoice) -> EmbeddedModel | None:
    """The embedded model whose weights must be downloaded first; None if none must."""
    if choice.provider != "embedded":
        return None
    model = find_model(choice.model)
    return model if open_store(environment(), settings.home).path(model) is None else None


def embedded_lines(free_bytes: int | None = None) -> list[str]:
    """The embedded models, one line each, and for a larger one whether this machine has the memory for it."""
    free = free_memory_bytes() if free_bytes is None else free_bytes
    lines = []
    for model in MODELS.values():
        line = f"{model.name} ({megabytes(model.bytes)}): {model.remark}"
        if model.memory_bytes > find_model(DEFAULT_MODEL).memory_bytes:
            fits = free >= model.memory_bytes * MEMORY_RESERVE
            line += (
                " This machine has enough memory for it."
                if fits
                else f" It needs {megabytes(model.memory_bytes)} of memory; {megabytes(free)} are free here."
            )
        lines.append(line)
    return lines


def free_memory_bytes() -> int:
    """The memory that programs can still use, as the system estimates it; 0 if unknown."""
    try:
        rows = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.0f} MB"


def installed_version(package: str) -> str:
    """The installed version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def complete_providers(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Provider names for the shell."""
    return matching_names(lambda: dict.fromkeys([*load_settings().providers, *PRESETS]), incomplete)


def _state(places: ConfiguredModels, preset: Preset) -> ProviderState:
    variable, key = places.key(preset)
    return ProviderState(
        preset=preset,
        base_url=preset.base_url,
        default_model=preset.default_model or (DEFAULT_MODEL if preset.protocol == "embedded" else ""),
        key_variable=variable,
        has_key=bool(key),
    )


def server_models(preset: Preset, base_url: str, key: str, *, seconds: float = LIST_SECONDS) -> list[str]:
    """The names of the server's models; raises ModelError with what to do. Needs no SDK."""
    request = _request(preset, base_url, key)
    # A configured proxy cannot reach a server on this machine.
    proxies = [urllib.request.ProxyHandler({})] if is_on_this_machine(base_url) else []
    try:
        with urllib.request.build_opener(*proxies).open(request, timeout=seconds) as answer:
            return _names(json.loads(answer.read(MAX_LIST_BYTES)))
    except HTTPError as error:
        error.close()
        raise _refused(preset, base_url, error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(preset, base_url, error) from error
    except ValueError as error:
        raise ModelError(
            f"the server at {base_url} does not list models; set the address of {preset.title} with `toolcrib setup`",
            kind="server",
        ) from error


def listed_models(settings: Settings, *, seconds: float = PICKER_SECONDS) -> list[ModelOption]:
    """All models that can be used now: those of the config, and what each provider with a key or server here lists.

    Providers are asked at the same time and briefly; their answers are kept for an hour, and used when one fails.
    """
    file = settings.home.model_lists_file
    kept = _kept_lists(file)
    ready = [state for state in provider_states(settings, probe=True) if _can_list(state)]
    now = time.time()
    stale = [one for one in ready if now - kept.get(one.preset.name, _KeptList()).at > KEPT_SECONDS]
    places = ConfiguredModels(settings)

    def ask(state: ProviderState) -> list[str] | None:
        try:
            return server_models(state.preset, state.base_url, places.key(state.preset)[1], seconds=seconds)
        except ModelError:
            return None

    if stale:
        with ThreadPoolExecutor(len(stale)) as pool:
            answers = list(pool.map(ask, stale))
        kept |= {
            one.preset.name: _KeptList(now, tuple(names))
            for one, names in zip(stale, answers, strict=True)
            if names is not None
        }
        with contextlib.suppress(OSError, ConfigError), writing(file) as target:
            replace_file(target, msgspec.json.encode(kept))
    listed = [
        ModelOption(provider=one.preset.name, model=name, about=one.preset.title)
        for one in ready
        for name in kept.get(one.preset.name, _KeptList()).names
    ]
    options = [one for one in model_choices(settings) if one.model]
    return list({one.name: one for one in (*listed, *options)}.values())


class _KeptList(Struct, frozen=True):
    """What a provider listed, and when."""

    at: float = 0.0
    names: tuple[str, ...] = ()


def _kept_lists(file: Path) -> dict[str, _KeptList]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, _KeptList])
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}


def _can_list(state: ProviderState) -> bool:
    if state.preset.protocol in ("embedded", "scripted") or not state.base_url.startswith(("http://", "https://")):
        return False
    return bool(state.answers) if state.is_local else state.has_key or not state.preset.needs_key


def probe_servers(places: Sequence[tuple[Preset, str]]) -> list[bool]:
    """Whether a model server responds at each address, within a moment; probes all at once."""
    if not places:
        return []
    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(lambda address: _answers(*address), places))


def _answers(preset: Preset, base_url: str) -> bool:
    try:
        server_models(preset, base_url, "", seconds=PROBE_SECONDS)
    except ModelError as error:
        # A server that asks for a key is there.
        return error.kind == "key"
    return True


def _request(preset: Preset, base_url: str, key: str) -> urllib.request.Request:
    if not base_url.startswith(("http://", "https://")):
        raise ModelError(
            f"{base_url!r} is not an address; use one that starts with http:// or https://: "
            "`toolcrib setup --base-url URL`",
            kind="bad_request",
        )
    protocol = PROTOCOLS[preset.protocol]
    header, _, prefix = protocol.key_header.partition(": ")
    headers = preset.headers | protocol.headers | ({header: prefix + key} if key else {})
    return urllib.request.Request(base_url.rstrip("/") + protocol.models_path, headers=headers)


def _names(answer: Any) -> list[str]:
    """The names in a response, which some servers send as a bare list. Raises ValueError."""
    rows = answer.get("data") if isinstance(answer, dict) else answer
    if not isinstance(rows, list):
        raise ValueError("no list")
    names = [row.get("id") or row.get("name") for row in rows if isinstance(row, dict)]
    return sorted({name.removeprefix("models/") for name in names if isinstance(name, str)})


def _refused(preset: Preset, base_url: str, status: int) -> ModelError:
    if status in (401, 403):
        return ModelError(
            f"{preset.title} does not list its models without a valid key (HTTP {status}); "
            "set one with `toolcrib setup`",
            kind="key",
        )
    if status in (404, 405):
        return ModelError(
            f"{preset.title} does not list its models at {base_url}; find a name in its documentation: "
            f"`toolcrib model use {preset.name}/NAME`",
            kind="unknown_model",
        )
    return ModelError(f"{preset.title} returned HTTP {status} at {base_url}; try again in a minute", kind="server")


def _unreachable(preset: Preset, base_url: str, error: Exception) -> ModelError:
    reason = error.reason if isinstance(error, URLError) else error
    if is_on_this_machine(base_url):
        return ModelError(
            f"nothing responds at {base_url}, the address of {preset.name}; start the server, or set another address "
            "with `toolcrib setup`",
            kind="network",
        )
    return ModelError(
        f"{preset.title} cannot be reached at {base_url} ({reason}); check your network and the address", kind="network"
    )
