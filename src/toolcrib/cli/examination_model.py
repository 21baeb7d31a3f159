"""What `toolcrib doctor` sees of the model: which one answers, and whether it can."""

from __future__ import annotations

from msgspec import Struct

from toolcrib.cli.model_trial import Trial, try_answer
from toolcrib.cli.models import PACKAGES, Lack, context_window, installed_version, lack_of, megabytes, missing_weights
from toolcrib.cli.output import note
from toolcrib.config.settings import Settings
from toolcrib.core.models import ModelError
from toolcrib.core.types import JsonObject
from toolcrib.providers.choose import ConfiguredModels, ModelChoice, UnknownProvider, explain_choice


class ModelState(Struct, frozen=True, kw_only=True):
    """The model that answers, and what it lacks."""

    choice: ModelChoice | None
    lack: Lack | None
    key_variable: str = ""
    has_key: bool = False
    package: str = ""
    package_version: str = ""
    context_window: int = 0
    weights: str = ""
    """Of an embedded model: whether its weights are here."""
    is_wanted: bool = False
    """The config names it, so that it is broken when it cannot answer."""
    trial: Trial | None = None
    auxiliary_problem: str = ""
    """What is wrong with the model for small jobs, as far as the config tells."""

    def lines(self) -> list[str]:
        if self.choice is None:
            return ["none can answer"]
        named = f"{self.choice.model or 'no model is named'} of {self.choice.provider}: {self.choice.why}"
        facts = [f"{self.key_variable} is {'set' if self.has_key else 'missing'}"] if self.key_variable else []
        if self.package:
            facts.append(f"package {self.package} {self.package_version or 'is not installed'}")
        facts += [self.weights] if self.weights else []
        tried = [f"{self.trial}"] if self.trial is not None else []
        lacks = [str(self.lack)] if self.lack is not None and not self.is_wanted else []
        return [line for line in (named, ", ".join(facts), *tried, *lacks) if line]

    def as_json(self) -> JsonObject:
        choice = self.choice
        return {
            "provider": choice.provider if choice else "",
            "model": choice.model if choice else "",
            "why": choice.why if choice else "",
            "base_url": choice.base_url if choice else "",
            "context_window": self.context_window,
            "usable": self.lack is None,
            "detail": self.lack.what if self.lack else "",
            "remedy": self.lack.remedy if self.lack else "",
            "key_variable": self.key_variable,
            "key_set": self.has_key,
            "package": self.package,
            "package_version": self.package_version,
            "weights": self.weights,
            "trial": self.trial.as_json() if self.trial is not None else None,
        }


def examine_model(settings: Settings, *, online: bool) -> ModelState:
    """Which model answers and what it lacks; `online` sends it one small request."""
    is_wanted = bool(settings.model.provider or settings.model.default or settings.model.base_url)
    try:
        choice = explain_choice(settings)
    except UnknownProvider as error:
        return ModelState(choice=None, lack=Lack(what=str(error), remedy="`toolcrib model use NAME`"), is_wanted=True)
    places = ConfiguredModels(settings)
    preset = places.find(choice.provider)
    variable, key = places.key(preset)
    package = PACKAGES.get(preset.protocol, "")
    lack = lack_of(settings, choice)
    trial = None
    if online and lack is None:
        try:
            trial = try_answer(settings, choice, note)
        except ModelError as error:
            what, _, remedy = str(error).partition("; ")
            lack, is_wanted = Lack(what=what, remedy=remedy), True
    return ModelState(
        choice=choice,
        lack=lack,
        key_variable=variable,
        has_key=bool(key),
        package=package,
        package_version=installed_version(package) if package else "",
        context_window=context_window(settings, choice),
        weights=_weights(settings, choice, lack),
        is_wanted=is_wanted,
        trial=trial,
        auxiliary_problem=_auxiliary_problem(settings),
    )


def _auxiliary_problem(settings: Settings) -> str:
    wanted = settings.auxiliary
    try:
        explain_choice(settings, model=wanted.model, provider=wanted.provider, base_url=wanted.base_url)
    except UnknownProvider as error:
        return f"config key auxiliary.provider: {error}"
    return ""


def _weights(settings: Settings, choice: ModelChoice, lack: Lack | None) -> str:
    if choice.provider != "embedded" or lack is not None:
        return ""
    missing = missing_weights(settings, choice)
    if missing is None:
        return "its weights are here"
    return f"its weights ({megabytes(missing.bytes)}) are fetched when it is first used"
