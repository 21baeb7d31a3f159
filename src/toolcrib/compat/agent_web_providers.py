"""`agent.web_search_provider` and `agent.browser_provider`: what plugins subclass to offer such a service."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from toolcrib.compat.agent_secret_scope import get_secret
from toolcrib.compat.provider_base import NamedProvider


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
