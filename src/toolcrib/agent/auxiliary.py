"""A model for small jobs: it judges commands for the approval gate and writes summaries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from toolcrib.core.attempt import attempt_async
from toolcrib.core.messages import Message
from toolcrib.core.models import Delta, Emit, ModelError, ModelRequest, ModelResponse, Provider, Usage

logger = logging.getLogger(__name__)


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


async def complete(provider: Provider, request: ModelRequest, emit: Emit) -> ModelResponse:
    """The provider's answer. A provider may be foreign code, so any other exception becomes a ModelError too."""
    try:
        response, error = await attempt_async(provider.complete(request, emit))
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # The provider cancelled something of its own; our task was not cancelled.
        response, error = None, cancelled
    if isinstance(error, ModelError):
        raise error
    if error is not None:
        logger.error("provider %r failed", provider.name, exc_info=error)
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ModelError(f"the provider {provider.name!r} failed ({what}); ask again, or see the log") from error
    if not isinstance(response, ModelResponse):
        raise ModelError(f"the provider {provider.name!r} returned {type(response).__name__!r} instead of a response")
    return response
