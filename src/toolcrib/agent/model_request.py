"""Sends requests to models: the agent's, with hooks, middleware, events and interrupts, and auxiliary ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from toolcrib.agent.events import AnyEvent, ModelProgressed, Notified, ReasoningStreamed, TextStreamed
from toolcrib.agent.hooks import as_json, fire, send_through_middleware
from toolcrib.core.cancel import CancelToken
from toolcrib.core.messages import Message
from toolcrib.core.models import (
    Delta,
    ModelError,
    ModelRequest,
    ModelResponse,
    Notice,
    Provider,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolcrib.core.types import JsonObject
from toolcrib.hooks.manager import HookManager
from toolcrib.providers.complete import complete
from toolcrib.registry.results import sendable

T = TypeVar("T")
logger = logging.getLogger(__name__)

INCOMPLETE = "\n\n[incomplete: the answer broke off here]"
"""Follows a text that is all there is of an answer, for people and for the model that reads it later."""


class Interrupted(Exception):
    """The run was stopped; `text` is the partial answer."""

    def __init__(self, text: str = "") -> None:
        super().__init__("interrupted")
        self.text = text


class RequestIds(Struct, frozen=True, kw_only=True):
    """What hooks receive."""

    session_id: str
    turn_id: str
    api_request_id: str
    api_call_count: int


class ModelRequestSender:
    """Sends one request."""

    def __init__(
        self,
        provider: Provider,
        hooks: HookManager,
        ids: RequestIds,
        emit: Callable[[AnyEvent], None],
        cancel: CancelToken,
    ) -> None:
        self._provider = provider
        self._hooks = hooks
        self._ids = ids
        self._emit = emit
        self._cancel = cancel
        self._text: list[str] = []
        self._discarded = ""

    async def send(self, request: ModelRequest) -> ModelResponse:
        """The whole response; raises Interrupted or ModelError with the partial text."""
        try:
            if self._hooks.is_empty:
                return await self.stoppable(complete(self._provider, request, self._hear), self._cancel)
            return await self.stoppable(self._send_watched(request), self._cancel)
        except Interrupted as interrupted:
            raise Interrupted("".join(self._text)) from interrupted
        except ModelError as error:
            error.partial_text = self._keep_streamed()
            raise

    def _keep_streamed(self) -> str:
        """The text of the answer that broke off, and streams what marks it as incomplete.

        If the last attempt brought nothing, the text of an earlier one is better than none.
        """
        streamed = "".join(self._text)
        text = streamed or self._discarded
        if not text.strip():
            return ""
        self._emit(TextStreamed(text=sendable(f"{'' if streamed else text}{INCOMPLETE}")))
        return text + INCOMPLETE

    async def _send_watched(self, request: ModelRequest) -> ModelResponse:
        ids = self._keywords(request)
        watched = any(self._hooks.has(name) for name in ("pre_api_request", "post_api_request", "api_request_error"))
        shown = as_json(request) if watched else {}
        await fire(self._hooks, "pre_api_request", **ids, request=shown)
        started = time.perf_counter()
        try:
            response = await send_through_middleware(
                self._hooks, request, ids, lambda changed: complete(self._provider, changed, self._hear)
            )
        except ModelError as error:
            await fire(
                self._hooks,
                "api_request_error",
                **ids,
                request=shown,
                error=str(error),
                duration_ms=_since(started),
            )
            raise
        await fire(
            self._hooks,
            "post_api_request",
            **ids,
            request=shown,
            response=as_json(response) if watched else {},
            usage=as_json(response.usage),
            duration_ms=_since(started),
        )
        return response

    def _keywords(self, request: ModelRequest) -> JsonObject:
        return {
            **asdict(self._ids),
            "task_id": self._ids.session_id,
            "model": request.model,
            "provider": self._provider.name,
            "base_url": self._provider.base_url,
            "api_mode": self._provider.api_mode,
        }

    def _hear(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta):
            self._text.append(delta.text)
            self._emit(TextStreamed(text=sendable(delta.text)))
        elif isinstance(delta, ReasoningDelta):
            self._emit(ReasoningStreamed(text=sendable(delta.text)))
        elif isinstance(delta, Notice) and delta.kind == "working":
            self._emit(ModelProgressed(message=delta.message))
        elif isinstance(delta, Notice):
            if delta.kind == "restart":
                self._discarded = "".join(self._text) or self._discarded
                self._text.clear()
            self._emit(Notified.of(delta))

    @staticmethod
    async def stoppable(work: Coroutine[Any, Any, T], cancel: CancelToken) -> T:
        """The result of the work; if the token is cancelled, cancels the work and raises Interrupted."""
        _refuse_after_stop(work, cancel)
        stop = _Stop(cancel)
        try:
            return await work
        except asyncio.CancelledError:
            if stop.took_back():
                raise Interrupted from None
            raise
        finally:
            stop.over()


class _Stop:
    """Cancels the task that created it when a token is cancelled. A separate task for the work would cost two loop
    iterations, which adds up with many agents at once."""

    def __init__(self, cancel: CancelToken) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] | None = task
        self._others = task.cancelling()
        self._stopped = False
        loop = asyncio.get_running_loop()

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # The loop may already be closed.
                loop.call_soon_threadsafe(self._stop)

        self._unregister = cancel.on_cancel(stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._stopped = True
            self._task.cancel()

    def took_back(self) -> bool:
        """Whether the cancellation was only ours; if so, clears it, and the task continues."""
        if not self._stopped or self._task is None:
            return False
        self._stopped = False
        return self._task.uncancel() <= self._others

    def over(self) -> None:
        self._unregister()
        # If the work finished despite the cancellation, clear the cancellation.
        self.took_back()
        self._task = None


def _refuse_after_stop(work: Coroutine[Any, Any, Any], cancel: CancelToken) -> None:
    if cancel.cancelled:
        work.close()
        raise Interrupted


def _since(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)


class AuxiliaryModel:
    """A model for small jobs: it judges commands for the approval gate and writes summaries.

    `spent` receives the usage of each request.
    """

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
            await asyncio.to_thread(self._spent, response.usage, purpose)
        return response.message.text


def _ignore(_: Delta) -> None:
    """No front end watches these requests."""
