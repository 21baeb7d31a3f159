"""`agent.secret_scope`: the keys that a plugin or tool may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar, Token

from toolcrib.config.env_file import get_env_value
from toolcrib.config.paths import find_home


class UnscopedSecretError(RuntimeError):
    """A key was asked for while several profiles are served and none is active. toolcrib serves one profile."""


# Set around the work for one profile; a key that it lacks is not taken from another profile.
_secret_scope: ContextVar[Mapping[str, str] | None] = ContextVar("toolcrib_secret_scope", default=None)


def get_secret(name: str, default: str | None = None) -> str | None:
    """A key of the active profile, else of the environment or `.env`; `default` if it is not set."""
    scope = _secret_scope.get()
    if scope is not None:
        return scope.get(name, default)
    found = get_env_value(find_home(), name, os.environ)
    return default if found is None else found


def set_secret_scope(secrets: Mapping[str, str] | None) -> Token[Mapping[str, str] | None]:
    """Use only these keys in the current context; None means those of the environment again."""
    return _secret_scope.set(secrets)


def reset_secret_scope(token: Token[Mapping[str, str] | None]) -> None:
    _secret_scope.reset(token)


def current_secret_scope() -> Mapping[str, str] | None:
    return _secret_scope.get()
