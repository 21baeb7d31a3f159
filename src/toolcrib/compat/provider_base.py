"""The common part of the providers that plugins subclass: a name, a label, and what set-up needs to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


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
