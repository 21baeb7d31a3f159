"""Providers around providers: one that tries again, and one that goes on with another model."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.core.models import (
    Delta,
    Dialect,
    Emit,
    ModelError,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    Notice,
    Provider,
)
from toolcrib.core.types import JsonObject

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
LONGEST_RETRY_AFTER_SECONDS = 120.0
COOL_DOWN_SECONDS = 300.0
MAX_TIMEOUT_RETRIES = 1
"""A request that took all of its time is sent once more; each further one would take as long again."""

Render = Callable[[Sequence[JsonObject], Dialect], list[JsonObject]]
"""Canonical definitions into the `tools` field of a dialect."""
OpenProvider = Callable[[], tuple[Provider, str]]
"""Makes a provider and names the model to ask of it."""

_OTHERS_MAY_HELP = frozenset(
    {"key", "quota", "unknown_model", "server", "network", "timeout", "rate_limit", "missing_package", "weights"}
)


class Streamed:
    """An `emit` that knows whether a piece of the answer went through it since the last start."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.anything = False

    def __call__(self, delta: Delta) -> None:
        if not isinstance(delta, Notice):
            self.anything = True
        elif delta.kind == "restart":
            self.anything = False
        self._emit(delta)

    def restart(self) -> None:
        """Say that what was streamed is void, if anything was."""
        if self.anything:
            self(Notice(kind="restart", message="the answer broke off and begins anew"))


class Resilient:
    """A provider that sends a request again when its failure may pass, and says so."""

    def __init__(
        self,
        inner: Provider,
        *,
        max_retries: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.inner = inner
        self.name, self.dialect = inner.name, inner.dialect
        self.base_url, self.api_mode = inner.base_url, inner.api_mode
        self._max_retries = max_retries
        self._sleep = sleep
        self._random = random

    def profile(self, model: str) -> ModelProfile:
        return self.inner.profile(model)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        streamed = Streamed(emit)
        retries = 0
        while True:
            try:
                return await self.inner.complete(request, streamed)
            except ModelError as error:
                seconds = self._wait_seconds(error, retries)
                if seconds is None:
                    raise
                problem = str(error)
            retries += 1
            streamed.restart()
            again = f"trying again in {seconds:.1f} s ({retries} of {self._max_retries})"
            emit(Notice(kind="retry", message=f"{problem}; {again}"))
            await self._sleep(seconds)

    def _wait_seconds(self, error: ModelError, retries: int) -> float | None:
        """How long to wait before the next try; None when there is none."""
        limit = min(self._max_retries, MAX_TIMEOUT_RETRIES) if error.kind == "timeout" else self._max_retries
        if not error.may_retry or retries >= limit:
            return None
        backoff = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(retries, 10))
        # Between half and all of it, so that many sessions which failed together do not come back together.
        backoff *= 0.5 + self._random() / 2
        asked = error.retry_after_seconds
        if asked is None:
            return backoff
        return max(asked, backoff) if asked <= LONGEST_RETRY_AFTER_SECONDS else None

    async def close(self) -> None:
        await self.inner.close()


class WithFallbacks:
    """A provider that goes on with the next model when the first cannot answer, and later comes back to the first.

    Requests carry their tools in the dialect of the first; for a fallback with another dialect they are
    rendered anew from the canonical definitions of the request. `name`, `base_url`, `api_mode` and `profile`
    are those of the one that answers now.
    """

    def __init__(
        self,
        first: Provider,
        others: Sequence[OpenProvider],
        *,
        render: Render,
        cool_down_seconds: float = COOL_DOWN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.first = first
        self.dialect = first.dialect
        self._others = list(others)
        self._opened: dict[int, tuple[Provider, str]] = {}
        self._render = render
        self._cool_down_seconds = cool_down_seconds
        self._clock = clock
        self._back_at = 0.0
        self._use(0)

    def profile(self, model: str) -> ModelProfile:
        if self._now() == 0:
            return self.first.profile(model)
        provider, other_model = self._opened[self._current]
        return provider.profile(other_model)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        streamed = Streamed(emit)
        failures: list[ModelError] = []
        too_small = 0
        for number in self._order():
            opened = self._open(number, request.model, failures)
            # A conversation that was too long for one model only goes to one that takes more.
            if opened is None or (too_small and opened[0].profile(opened[1]).context_window <= too_small):
                continue
            provider, model = opened
            if failures:
                streamed.restart()
                emit(Notice(kind="fallback", message=f"{failures[-1]}; going on with {provider.name}/{model}"))
            try:
                response = await provider.complete(self._translated(request, provider, model), streamed)
            except ModelError as error:
                failures.append(error)
                if error.kind == "too_long":
                    too_small = max(too_small, provider.profile(model).context_window)
                elif error.kind not in _OTHERS_MAY_HELP:
                    raise
                continue
            self._remember(number)
            return msgspec.structs.replace(
                response, provider=response.provider or provider.name, model=response.model or model
            )
        raise _joined(failures)

    async def close(self) -> None:
        await self.first.close()
        for provider, _ in self._opened.values():
            await provider.close()

    def _order(self) -> tuple[int, ...]:
        preferred = self._now()
        return (preferred, *(number for number in range(len(self._others) + 1) if number != preferred))

    def _now(self) -> int:
        """Which one is asked first: the one that worked last, and the first again after a while."""
        if self._current and self._clock() >= self._back_at:
            self._use(0)
        return self._current

    def _remember(self, number: int) -> None:
        if number and number != self._current:
            self._back_at = self._clock() + self._cool_down_seconds
        self._use(number)

    def _use(self, number: int) -> None:
        self._current = number
        provider = self._opened[number][0] if number else self.first
        self.name, self.base_url, self.api_mode = provider.name, provider.base_url, provider.api_mode

    def _open(self, number: int, model: str, failures: list[ModelError]) -> tuple[Provider, str] | None:
        if number == 0:
            return self.first, model
        if number not in self._opened:
            try:
                self._opened[number] = self._others[number - 1]()
            except ToolcribError as error:
                failures.append(error if isinstance(error, ModelError) else ModelError(str(error), kind="key"))
                return None
        return self._opened[number]

    def _translated(self, request: ModelRequest, provider: Provider, model: str) -> ModelRequest:
        if provider is self.first:
            return request
        tools = request.tools
        if tools and provider.dialect != self.dialect:
            tools = self._render(request.definitions or [_canonical(tool) for tool in tools], provider.dialect)
        return msgspec.structs.replace(request, model=model, tools=tools)


def _canonical(tool: JsonObject) -> JsonObject:
    """A rendered tool as a definition again, for a request that carries no definitions."""
    if "input_schema" not in tool:
        return tool
    function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _joined(failures: list[ModelError]) -> ModelError:
    """The first failure, which is what the person asked for, with the last one beside it."""
    first, last = failures[0], failures[-1]
    if first is last:
        return first
    return ModelError(
        f"{first}; the fallbacks failed as well, the last one because {last}",
        kind=first.kind,
        may_retry=False,
        retry_after_seconds=first.retry_after_seconds,
        refused_tools=first.refused_tools,
        status=first.status,
    )
