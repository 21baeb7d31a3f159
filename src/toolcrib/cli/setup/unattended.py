"""The set-up without questions: everything is checked first, then written, then the model is tried."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from toolcrib.cli.commands.model_check import try_answer
from toolcrib.cli.model_choice import choose_model
from toolcrib.cli.models import lack_of, megabytes, missing_weights
from toolcrib.cli.output import error_line, note, print_line
from toolcrib.cli.runtime import open_runtime
from toolcrib.cli.setup.saved_settings import Saved
from toolcrib.cli.setup.wizard import toolset_names
from toolcrib.config.env_vars import mask
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.models import ModelError
from toolcrib.environments.specs import backend_name
from toolcrib.providers.choose import Choice, Places, explain_choice

FLAGS = "--provider, --model, --base-url, --key-env, --key-stdin, --toolsets, --approvals, --backend, --set or --yes"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the flags of `toolcrib setup` say; None and empty mean: leave it as it is."""

    provider: str
    model: str
    base_url: str
    key_env: str
    key_stdin: bool
    toolsets: str | None
    approvals: str | None
    backend: str
    variables: tuple[str, ...]
    """As NAME=VALUE."""
    no_test: bool
    yes: bool

    @property
    def is_given(self) -> bool:
        """Whether any of the flags decides something, so that nobody is asked."""
        return bool(self.names_model or self.wants_key or self.backend or self.variables or self.yes) or (
            self.toolsets,
            self.approvals,
        ) != (None, None)

    @property
    def names_model(self) -> bool:
        return bool(self.provider or self.model or self.base_url)

    @property
    def wants_key(self) -> bool:
        return bool(self.key_env or self.key_stdin)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The wishes, checked: nothing of it can be refused any more."""

    variables: dict[str, str]
    choice: Choice | None
    settings: dict[tuple[str, ...], object]


def run_unattended(wishes: Wishes) -> int:
    """Do what the flags say; exit code 1 when the model does not answer, all else is saved then too."""
    settings = load_settings()
    plan = _checked(wishes, settings)
    saved = Saved(settings.home, tell=note)
    for name, value in plan.variables.items():
        saved.variable(name, value, mask(value))
    if plan.choice is not None:
        saved.model(settings, plan.choice)
    if plan.settings:
        saved.settings(plan.settings)
    if not _answers(wishes, plan):
        return 1
    print_line(f"Done; {saved}. Type `toolcrib doctor` to see the whole state.")
    return 0


def _checked(wishes: Wishes, settings: Settings) -> _Plan:
    variables = dict(_assignment(text) for text in wishes.variables)
    choice = None
    if wishes.names_model:
        choice = choose_model(settings, wishes.model, wishes.provider, wishes.base_url)
    if wishes.wants_key:
        provider = choice.provider if choice is not None else explain_choice(settings).provider
        variable = _key_variable(settings, provider)
        variables[variable] = _key(wishes)
    return _Plan(variables=variables, choice=choice, settings=_settings(wishes))


def _settings(wishes: Wishes) -> dict[tuple[str, ...], object]:
    values: dict[tuple[str, ...], object] = {}
    if wishes.toolsets is not None:
        names = toolset_names(wishes.toolsets)
        open_runtime().toolsets.require(names)
        values["toolsets",] = names
    if wishes.approvals is not None:
        values["approvals", "mode"] = wishes.approvals
    if wishes.backend:
        values["terminal", "backend"] = backend_name(wishes.backend)
    return values


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set takes NAME=VALUE, not {text!r}; for example `toolcrib setup --set EXA_API_KEY=…`")
    if not (name.isascii() and name.isidentifier()):
        raise UsageError(f"{name!r} is not the name of a variable; `toolcrib setup --list` shows what can be entered")
    return name, value


def _key_variable(settings: Settings, provider: str) -> str:
    preset = Places(settings).find(provider)
    if not preset.needs_key:
        raise UsageError(
            f"{provider} needs no key; leave the key out, or name another: `toolcrib setup --provider NAME`"
        )
    return preset.key_variables[0]


def _key(wishes: Wishes) -> str:
    if wishes.key_env and wishes.key_stdin:
        raise UsageError("the key comes from --key-env or --key-stdin, not from both; type `toolcrib setup --help`")
    if wishes.key_env:
        key = environment().get(wishes.key_env, "").strip()
        where = f"the variable {wishes.key_env!r} is not set, or empty"
    else:
        key = sys.stdin.readline().strip()
        where = "nothing came on stdin"
    if not key:
        raise UsageError(f"there is no key: {where}; type `toolcrib setup --help` to see how it is given")
    return key


def _answers(wishes: Wishes, plan: _Plan) -> bool:
    """Whether the model answers, where it was set up and is to be tried."""
    if wishes.no_test or not (wishes.names_model or wishes.wants_key):
        return True
    settings = load_settings()
    choice = plan.choice or explain_choice(settings)
    weights = missing_weights(settings, choice)
    if weights is not None and not wishes.yes:
        size = megabytes(weights.bytes)
        note(f"Not tested: its weights ({size}) are fetched when it is first used, or now with --yes.")
        return True
    lack = lack_of(settings, choice)
    try:
        if lack is not None:
            raise ModelError(str(lack))
        note(f"{try_answer(settings, choice, note)}.")
    except ModelError as error:
        note("Everything was saved, but the model does not answer.")
        error_line(str(error))
        return False
    return True
