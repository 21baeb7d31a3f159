"""A model for small jobs: it judges commands for the approval gate and writes summaries."""

from __future__ import annotations

from collections.abc import Callable

from toolcrib.core.messages import Message
from toolcrib.core.models import Delta, ModelRequest, Provider, Usage
from toolcrib.providers.complete import complete


def _ignore(_: Delta) -> None:
    """No front end watches these requests."""


class AuxiliaryModel:
    """Completes texts with one model. `spent` receives the usage of each request."""

    def __init__(self, provider: Provider, model: str, spent: Callable[[Usage, str], None] | None = None) -> None:
        self.provider = provider
        self.model = model
        self._spent = spent

    async def complete(self, prompt: str, *, timeout_seconds: float = 120.0, purpose: str = "approval") -> str:
        """The model's answer to one text."""
        request = ModelRequest(
            model=self.model, messages=[Message(role="user", content=prompt)], timeout_seconds=timeout_seconds
        )
        response = await complete(self.provider, request, _ignore)
        if self._spent is not None:
            self._spent(response.usage, purpose)
        return response.message.text
