"""What the commands about environments share: the settings with all keys, and a backend by its name."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from toolcrib.cli.output import silence
from toolcrib.config.env_file import fill_environment
from toolcrib.config.environment import SECRET_NAMES, child_environment, environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.environments import Environment, EnvironmentSpec
from toolcrib.core.errors import EnvironmentFailed, ToolcribError, UsageError
from toolcrib.environments.create import create_environment, environment_from, environment_request, resolve
from toolcrib.environments.specs import BUILT_IN, third_party

SESSION = "command line"
SHORTEST_SECRET = 8
"""What is shorter is found in many places by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The settings, and the variables of this process with the keys of the .env file among them."""

    settings: Settings
    environ: Mapping[str, str]

    @property
    def configured(self) -> str:
        """The backend that the settings choose."""
        return self.settings.terminal.backend

    def maker(self, backend: str, **overrides: str) -> Callable[[], Environment]:
        """Makes new environments of a backend, by its name or as `module:factory`; raises UnknownName at once."""
        if ":" in backend:
            factory = _factory(backend)
            spec = EnvironmentSpec(backend=backend, session=SESSION, cwd=overrides.get("cwd", ""))
            return lambda: self._made_by(factory, spec)
        wanted = {"backend": backend, **{name: value for name, value in overrides.items() if value}}
        spec = resolve(self.settings, wanted, session=SESSION, workspace=Path.cwd(), environ=self.environ)
        return lambda: create_environment(spec, self.settings, self.environ)

    def _made_by(self, factory: Callable[..., Any], spec: EnvironmentSpec) -> Environment:
        made = factory(spec, self.settings)
        try:
            return environment_from(made, environment_request(spec, self.settings, self.environ))
        except EnvironmentFailed as error:
            raise UsageError(str(error)) from error

    def secrets(self) -> dict[str, str]:
        """The variables of this process that no command may see."""
        handed_on = child_environment(self.environ, passthrough=self.settings.terminal.env_passthrough)
        return {
            name: value
            for name, value in self.environ.items()
            if re.search(SECRET_NAMES, name, re.IGNORECASE) and name not in handed_on and len(value) >= SHORTEST_SECRET
        }


def here() -> Here:
    """What this process knows about backends."""
    settings = load_settings()
    fill_environment(settings.home)
    return Here(settings=settings, environ=environment())


def _factory(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    # A backend that is being written lies in the folder that its author is in.
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"no backend {name!r}: {error}; write it as `MODULE:FUNCTION`") from error
    finally:
        sys.path.pop(0)
    if not callable(factory):
        raise UsageError(f"{name!r} is not a function; write the backend as `MODULE:FUNCTION`")
    return cast(Callable[..., Any], factory)


def complete_backends(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of backends for the shell."""
    try:
        with silence():
            names = [*BUILT_IN, *third_party()]
    except (ToolcribError, OSError):
        return []  # there is no place for a message while somebody is typing
    return [name for name in names if name.startswith(incomplete)]
