"""`agent.secret_scope`, `agent.web_search_provider` and `agent.browser_provider`: what plugins need for a provider.

That is the keys that it may use, and the class to subclass. Providers of images and videos build on `MediaProvider`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any

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


class NamedProvider(ABC):
    """A service by one vendor. A subclass has a `name`, as an attribute or a property."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name for the config, such as `fal`."""

    @property
    def display_name(self) -> str:
        """The name for people."""
        return self.name

    def get_setup_schema(self) -> dict[str, Any]:
        """What the set-up wizard shows and asks for."""
        return {"name": self.display_name, "badge": "", "tag": "", "env_vars": []}


class MediaProvider(NamedProvider):
    """A service that makes images or videos."""

    @property
    def display_name(self) -> str:
        return self.name.title()

    def is_available(self) -> bool:
        """Whether it can be used now; quick, without network."""
        return True

    def list_models(self) -> list[dict[str, Any]]:
        """Its models, each with at least an `id`; the first one is the default."""
        return []

    def default_model(self) -> str | None:
        models = self.list_models()
        return str(models[0]["id"]) if models and models[0].get("id") else None


def failure(kind: str, details: dict[str, Any]) -> dict[str, Any]:
    """The result of a generation that failed; `kind` is the key under which a success has its file."""
    return {"success": False, kind: None, **details}


def success(details: dict[str, Any], extra: dict[str, Any] | None) -> dict[str, Any]:
    """The result of a generation; `extra` adds keys and replaces none."""
    return {"success": True, **details, **{key: value for key, value in (extra or {}).items() if key not in details}}


class WebSearchProvider(NamedProvider):
    """A service that searches the web, or extracts the text of pages."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether it can be used now, for example because its key is set; quick, without network."""

    def supports_search(self) -> bool:
        return True

    def supports_extract(self) -> bool:
        return False

    def search(self, query: str, limit: int = 5) -> dict[str, Any]:
        raise NotImplementedError(f"{self.name} does not search; its supports_search() should return False")

    def extract(self, urls: list[str], **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.name} does not extract pages; its supports_extract() should return False")


class BrowserProvider(NamedProvider):
    """A service that runs browsers elsewhere."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether it can be used now; quick, without network."""

    @abstractmethod
    def create_session(self, task_id: str) -> dict[str, object]:
        """Start a browser and say how to reach it."""

    @abstractmethod
    def close_session(self, session_id: str) -> bool:
        """End a browser."""

    @abstractmethod
    def emergency_cleanup(self, session_id: str) -> None:
        """End a browser while the process exits; never raises."""

    def is_configured(self) -> bool:
        return self.is_available()

    def provider_name(self) -> str:
        return self.display_name


def get_provider_env(name: str) -> str:
    """A key of a provider, without surrounding blanks; "" if it is not set."""
    return (get_secret(name) or "").strip()
