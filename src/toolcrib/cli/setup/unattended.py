"""Setup by flags: checks everything, saves it, then tests the model."""

from __future__ import annotations

import sys

from msgspec import Struct

from toolcrib.cli.commands.model_check import check_reply
from toolcrib.cli.model_choice import choose_model
from toolcrib.cli.models import megabytes, missing_requirement, missing_weights
from toolcrib.cli.output import error_line, note, print_line
from toolcrib.cli.runtime import open_runtime
from toolcrib.cli.setup.saved_settings import SavedSettings
from toolcrib.cli.setup.wizard import toolset_names
from toolcrib.config.env_vars import mask
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.models import ModelError
from toolcrib.environments.specs import backend_name
from toolcrib.providers.choose import ConfiguredModels, ModelChoice, explain_choice

FLAGS = (
    "--provider, --model, --base-url, --key-env, --key-stdin, --search, --toolsets, --approvals, --backend, --set or "
    "--yes"
)


class SetupAnswers(Struct, frozen=True, kw_only=True):
    """The flags of `toolcrib setup`; None and empty keep the current setting."""

    provider: str
    model: str
    base_url: str
    key_env: str
    key_stdin: bool
    toolsets: str | None
    search: str | None
    """`free` or `off`: whether free services may search the web."""
    approvals: str | None
    backend: str
    variables: tuple[str, ...]
    """As NAME=VALUE."""
    no_test: bool
    yes: bool

    @property
    def is_given(self) -> bool:
        """Whether a flag sets something, so that nothing is asked."""
        return bool(self.names_model or self.wants_key or self.backend or self.variables or self.yes) or (
            self.toolsets,
            self.search,
            self.approvals,
        ) != (None, None, None)

    @property
    def names_model(self) -> bool:
        return bool(self.provider or self.model or self.base_url)

    @property
    def wants_key(self) -> bool:
        return bool(self.key_env or self.key_stdin)


class _Plan(Struct, frozen=True, kw_only=True):
    """The checked answers: everything in it can be saved."""

    variables: dict[str, str]
    choice: ModelChoice | None
    settings: dict[tuple[str, ...], object]


def run_unattended(answers: SetupAnswers) -> int:
    """Apply the flags; exit code 1 if the model does not answer, though everything is saved."""
    settings = load_settings()
    plan = _checked(answers, settings)
    saved = SavedSettings(settings.home, tell=note)
    for name, value in plan.variables.items():
        saved.variable(name, value, mask(value))
    if plan.choice is not None:
        saved.model(settings, plan.choice)
    if plan.settings:
        saved.settings(plan.settings)
    if not _answers(answers, plan):
        return 1
    print_line(f"Done; {saved}. Run `toolcrib doctor` to check the installation.")
    return 0


def _checked(answers: SetupAnswers, settings: Settings) -> _Plan:
    variables = dict(_assignment(text) for text in answers.variables)
    choice = None
    if answers.names_model:
        choice = choose_model(settings, answers.model, answers.provider, answers.base_url)
    if answers.wants_key:
        provider = choice.provider if choice is not None else explain_choice(settings).provider
        variable = _key_variable(settings, provider)
        variables[variable] = _key(answers)
    return _Plan(variables=variables, choice=choice, settings=_settings(answers))


def _settings(answers: SetupAnswers) -> dict[tuple[str, ...], object]:
    values: dict[tuple[str, ...], object] = {}
    if answers.toolsets is not None:
        names = toolset_names(answers.toolsets)
        open_runtime().toolsets.require(names)
        values["toolsets",] = names
    if answers.search is not None:
        values["web", "keyless"] = answers.search == "free"
    if answers.approvals is not None:
        values["approvals", "mode"] = answers.approvals
    if answers.backend:
        values["terminal", "backend"] = backend_name(answers.backend)
    return values


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set takes NAME=VALUE, not {text!r}; for example `toolcrib setup --set EXA_API_KEY=…`")
    if not (name.isascii() and name.isidentifier()):
        raise UsageError(f"{name!r} is not the name of a variable; `toolcrib setup --list` lists all variables")
    return name, value


def _key_variable(settings: Settings, provider: str) -> str:
    preset = ConfiguredModels(settings).find(provider)
    if not preset.needs_key:
        raise UsageError(
            f"{provider} needs no key; leave it out, or name another provider: `toolcrib setup --provider NAME`"
        )
    return preset.key_variables[0]


def _key(answers: SetupAnswers) -> str:
    if answers.key_env and answers.key_stdin:
        raise UsageError("use either --key-env or --key-stdin; run `toolcrib setup --help`")
    if answers.key_env:
        key = environment().get(answers.key_env, "").strip()
        where = f"the variable {answers.key_env!r} is empty or not set"
    else:
        key = sys.stdin.readline().strip()
        where = "stdin is empty"
    if not key:
        raise UsageError(f"no key: {where}; run `toolcrib setup --help` for usage")
    return key


def _answers(answers: SetupAnswers, plan: _Plan) -> bool:
    """Whether the model answers; True if it was not set up or should not be tested."""
    if answers.no_test or not (answers.names_model or answers.wants_key):
        return True
    settings = load_settings()
    choice = plan.choice or explain_choice(settings)
    weights = missing_weights(settings, choice)
    if weights is not None and not answers.yes:
        size = megabytes(weights.bytes)
        note(f"Not tested: the weights ({size}) will be downloaded on first use; add --yes to download them now.")
        return True
    missing = missing_requirement(settings, choice)
    try:
        if missing is not None:
            raise ModelError(str(missing))
        note(f"{check_reply(settings, choice, note)}.")
    except ModelError as error:
        note("Saved everything, but the model does not answer.")
        error_line(str(error))
        return False
    return True
