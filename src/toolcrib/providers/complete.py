"""Sends one request to a provider, which may be foreign code."""

from __future__ import annotations

import asyncio
import logging

from toolcrib.core.attempt import attempt_async
from toolcrib.core.models import Emit, ModelError, ModelRequest, ModelResponse, Provider

logger = logging.getLogger(__name__)


async def complete(provider: Provider, request: ModelRequest, emit: Emit) -> ModelResponse:
    """The provider's answer; whatever the provider raises becomes a ModelError."""
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
