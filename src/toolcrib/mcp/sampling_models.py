"""Which model answers a server that wants to ask one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from toolcrib.config.mcp_settings import McpSamplingSettings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.models import Dialect, Provider
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects import render

if TYPE_CHECKING:
    from toolcrib.core.services import Services


@runtime_checkable
class SessionModels(Protocol):
    """The service `llm`, as far as it knows what models sessions talk to."""

    def model_of(self, session_id: str) -> tuple[Provider, str]: ...


class Models:
    """The providers for the servers of one runtime; opened when a server first asks."""

    def __init__(self, settings: Settings, services: Callable[[], Services | None]) -> None:
        self._settings = settings
        self._services = services
        self._opened: dict[str, tuple[Provider, str]] = {}

    def find(self, model: str, session_id: str) -> tuple[Provider, str]:
        """The provider and the name of a model; without a name, of the one that the session talks to.

        Raises ModelError where it cannot be reached as things are set.
        """
        sessions = None if model else self._service("llm")
        if isinstance(sessions, SessionModels):
            return sessions.model_of(session_id)
        if model not in self._opened:
            # As with the SDK: what speaks to models is loaded when the first server wants one.
            from toolcrib.providers.create import create_provider  # noqa: PLC0415

            self._opened[model] = create_provider(self._settings, model=model, render=_rendered)
        return self._opened[model]

    async def close(self) -> None:
        """Close the connections to models that were opened here."""
        opened, self._opened = self._opened, {}
        for provider, _ in opened.values():
            await provider.close()

    def _service(self, name: str) -> Any:
        services = self._services()
        try:
            return services.get(name) if services is not None else None
        except UsageError:
            return None


def chosen_model(settings: McpSamplingSettings, hints: Sequence[str]) -> str:
    """The first hint that names one of the allowed models, whole or in part; else the configured one, or none."""
    for hint in (text.strip().lower() for text in hints):
        for is_meant in (str.__eq__, str.__contains__):
            for allowed in settings.allowed_models:
                if hint and is_meant(allowed.lower(), hint):
                    return allowed
    return settings.model


def _rendered(tools: Sequence[JsonObject], dialect: Dialect) -> list[JsonObject]:
    return render(tools, dialect).tools
