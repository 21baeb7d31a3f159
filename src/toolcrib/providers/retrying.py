"""Wrappers around providers: retries, fallbacks to other models, and filtering of rejected tools and images."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Image, Message, Text, user_message
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
from toolcrib.providers.failures import tool_name

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
LONGEST_RETRY_AFTER_SECONDS = 120.0
COOL_DOWN_SECONDS = 300.0
MAX_TIMEOUT_RETRIES = 1
"""Retry a timeout once; each further attempt would take just as long."""

Render = Callable[[Sequence[JsonObject], Dialect], list[JsonObject]]
"""Renders canonical definitions as the `tools` field of a dialect."""
OpenProvider = Callable[[], tuple[Provider, str]]
"""Opens a provider and names the model to use with it."""

_OTHERS_MAY_HELP = frozenset(
    {"key", "quota", "unknown_model", "server", "network", "timeout", "rate_limit", "missing_package", "weights"}
)


class AnswerEmitter:
    """An `emit` that records whether it passed on any part of the answer since the last restart."""

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
        """Announce that the partial answer is discarded, if there is one."""
        if self.anything:
            self(Notice(kind="restart", message="the answer broke off; the partial answer is discarded"))


class RetryingProvider:
    """A provider that retries temporary failures and announces each retry."""

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
        streamed = AnswerEmitter(emit)
        retries = 0
        while True:
            try:
                return await self.inner.complete(request, streamed)
            except ModelError as error:
                seconds = self._wait_seconds(error, retries)
                if seconds is None:
                    if retries:
                        error.args = (f"{error} (tried {retries + 1} times)",)
                    raise
                # What to do about it is for the failure that stays; the status comes first: it says most.
                problem = f"HTTP {error.status}: " if error.status else ""
                problem += str(error).partition("; ")[0]
            retries += 1
            streamed.restart()
            again = f"retrying in {seconds:.1f} s ({retries} of {self._max_retries})"
            # The number comes first: a narrow terminal cuts the end.
            emit(Notice(kind="retry", message=f"{again}: {problem}"))
            await self._sleep(seconds)

    def _wait_seconds(self, error: ModelError, retries: int) -> float | None:
        """How long to wait before the next attempt; None if there is none."""
        limit = min(self._max_retries, MAX_TIMEOUT_RETRIES) if error.kind == "timeout" else self._max_retries
        if not error.may_retry or retries >= limit:
            return None
        backoff = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(retries, 10))
        # Between half and all of it, so that sessions that failed together do not retry together.
        backoff *= 0.5 + self._random() / 2
        asked = error.retry_after_seconds
        if asked is None:
            return backoff
        return max(asked, backoff) if asked <= LONGEST_RETRY_AFTER_SECONDS else None

    async def close(self) -> None:
        await self.inner.close()


class FallbackProvider:
    """A provider that switches to the next model if the first cannot answer, and later returns to the first.

    Requests carry their tools in the first provider's dialect; a fallback with another dialect gets them
    rendered from the request's canonical definitions. `name`, `base_url`, `api_mode` and `profile` are those
    of the current provider.
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
        streamed = AnswerEmitter(emit)
        failures: list[ModelError] = []
        too_small = 0
        for number in self._order():
            opened = self._open(number, request.model, failures)
            # A conversation that is too long for one model goes only to a model with a larger window.
            if opened is None or (too_small and opened[0].profile(opened[1]).context_window <= too_small):
                continue
            provider, model = opened
            if failures:
                streamed.restart()
                emit(Notice(kind="fallback", message=f"{failures[-1]}; continuing with {provider.name}/{model}"))
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
        """The provider to try first: the last that worked, and the first one again after the cool-down."""
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
    """The definition of a rendered tool, for a request without definitions."""
    if "input_schema" not in tool:
        return tool
    function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _joined(failures: list[ModelError]) -> ModelError:
    """The first failure, which concerns the model the user chose, combined with the last."""
    first, last = failures[0], failures[-1]
    if first is last:
        return first
    return ModelError(
        f"{first}; the fallbacks failed too, the last one because {last}",
        kind=first.kind,
        may_retry=False,
        retry_after_seconds=first.retry_after_seconds,
        refused_tools=first.refused_tools,
        status=first.status,
    )


MAX_TRIES = 8
MAX_NOTICES = 3
TRIAL_OUTPUT_TOKENS = 1_024
"""Enough for models that think first: some servers reject a request that leaves no room for the answer."""


class ToolRejectionFilter:
    """A provider that leaves out rejected tools, announces that, and remembers them by name and schema."""

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        self.name, self.dialect = inner.name, inner.dialect
        self.base_url, self.api_mode = inner.base_url, inner.api_mode
        self._refused: dict[str, set[bytes]] = {}

    def profile(self, model: str) -> ModelProfile:
        return self.inner.profile(model)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        offered = self._without_refused(request.tools)
        search = _Search(self.inner, request, emit)
        while True:
            try:
                return await self.inner.complete(_offering(request, offered), emit)
            except ModelError as error:
                if error.kind != "refused_tool" or not offered:
                    raise
                named = [tool for tool in offered if tool_name(tool) in error.refused_tools]
                refused = await search.culprits(offered, named)
                self._set_aside(refused, error, emit)
            offered = [tool for tool in offered if tool not in refused]

    async def close(self) -> None:
        await self.inner.close()

    def _without_refused(self, tools: Sequence[JsonObject]) -> Sequence[JsonObject]:
        if not self._refused:
            return tools
        return [tool for tool in tools if not self._is_refused(tool)]

    def _is_refused(self, tool: JsonObject) -> bool:
        digests = self._refused.get(tool_name(tool))
        return digests is not None and _digest(tool) in digests

    def _set_aside(self, tools: Sequence[JsonObject], error: ModelError, emit: Emit) -> None:
        names = [tool_name(tool) for tool in tools]
        for name, tool in zip(names, tools, strict=True):
            self._refused.setdefault(name, set()).add(_digest(tool))
        if len(names) > MAX_NOTICES:
            some = ", ".join(map(repr, names[:MAX_NOTICES]))
            emit(Notice(kind="tool_set_aside", message=f"{len(names)} tools are left out ({some} …): {error}"))
            return
        for name in names:
            emit(Notice(kind="tool_set_aside", tool=name, message=f"the tool {name!r} is left out: {error}"))


_ABOUT_IMAGES = re.compile(r"image|vision|multi-?modal|mmproj", re.IGNORECASE)
_ABOUT_ONE_IMAGE = re.compile(
    r"too (?:large|big|small)|exceed|dimension|size|format|media.?type|decode|process|corrupt|base64|download",
    re.IGNORECASE,
)
_NOT_ABOUT_CONTENT = frozenset({"key", "quota", "rate_limit", "network", "timeout", "missing_package", "weights"})
LEFT_OUT_IMAGE = Text("[an image, which this model does not take]")


class ImageRejectionFilter:
    """A provider that leaves out images that its server rejects: they stay in the history, so nothing else would work.

    An image in the user's latest message is never left out, because then the answer would be about nothing.
    """

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        self.name, self.dialect = inner.name, inner.dialect
        self.base_url, self.api_mode = inner.base_url, inner.api_mode
        self._blind: set[str] = set()
        """The models that take no images at all."""

    def profile(self, model: str) -> ModelProfile:
        known = self.inner.profile(model)
        return msgspec.structs.replace(known, sees_images=False) if model in self._blind else known

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        if request.model in self._blind and _may_leave_out(request.messages):
            request = _without_images(request)
        try:
            return await self.inner.complete(request, emit)
        except ModelError as error:
            said = str(error)
            if (
                error.kind in _NOT_ABOUT_CONTENT
                or not _ABOUT_IMAGES.search(said)
                or not _may_leave_out(request.messages)
            ):
                raise
            if not _ABOUT_ONE_IMAGE.search(said):
                self._blind.add(request.model)
            emit(Notice(kind="retry", message=f"{said}; the images are left out"))
        return await self.inner.complete(_without_images(request), emit)

    async def close(self) -> None:
        await self.inner.close()


def _may_leave_out(messages: Sequence[Message]) -> bool:
    """Whether there are images, and none of them is in the user's latest message."""
    latest = next((message for message in reversed(messages) if message.role == "user"), None)
    return any(message.images for message in messages) and not (latest is not None and latest.images)


def _without_images(request: ModelRequest) -> ModelRequest:
    return msgspec.structs.replace(request, messages=[_without_image(message) for message in request.messages])


def _without_image(message: Message) -> Message:
    if not message.images:
        return message
    parts = tuple(LEFT_OUT_IMAGE if isinstance(part, Image) else part for part in message.content)
    return msgspec.structs.replace(message, content=parts)


class _Search:
    """Finds the tools that make a server reject a request, in a few attempts.

    It tries groups of tools with a one-word request, so that the real answer is given with every valid tool.
    """

    def __init__(self, provider: Provider, request: ModelRequest, emit: Emit) -> None:
        self._provider = provider
        self._trial = msgspec.structs.replace(
            request,
            messages=(user_message("Say OK."),),
            system="",
            tool_choice="auto",
            response_schema=None,
            max_output_tokens=TRIAL_OUTPUT_TOKENS,
            reasoning_effort="",
        )
        self._emit = emit
        self._tries_left = MAX_TRIES
        self._accepted: Sequence[JsonObject] = ()

    async def culprits(self, offered: Sequence[JsonObject], named: Sequence[JsonObject]) -> Sequence[JsonObject]:
        """The tools to leave out of a rejected request: the named ones, or one found by bisection."""
        self._tries_left -= bool(named)
        if self._tries_left <= 0:
            return self._all_but_accepted(offered)
        if named:
            return named
        suspects = offered
        while len(suspects) > 1 and self._tries_left > 0:
            half = suspects[: len(suspects) // 2]
            suspects = half if await self._is_refused(half) else suspects[len(half) :]
        return suspects if len(suspects) == 1 else self._all_but_accepted(offered)

    def _all_but_accepted(self, offered: Sequence[JsonObject]) -> Sequence[JsonObject]:
        """When no attempts are left: keep only the largest accepted group, or no tools at all."""
        accepted, self._accepted = self._accepted, ()
        rest = [tool for tool in offered if tool not in accepted]
        return rest or offered

    async def _is_refused(self, tools: Sequence[JsonObject]) -> bool:
        self._tries_left -= 1
        try:
            await self._provider.complete(_offering(self._trial, tools), self._emit_notices)
        except ModelError as error:
            if error.kind != "refused_tool":
                raise
            return True
        if len(tools) > len(self._accepted):
            self._accepted = tools
        return False

    def _emit_notices(self, delta: Delta) -> None:
        if isinstance(delta, Notice) and delta.kind != "restart":
            self._emit(delta)


def _offering(request: ModelRequest, tools: Sequence[JsonObject]) -> ModelRequest:
    if tools is request.tools:
        return request
    choice = request.tool_choice if tools else "auto"
    return msgspec.structs.replace(request, tools=tools, tool_choice=choice)


def _digest(tool: JsonObject) -> bytes:
    return hashlib.sha256(msgspec.json.encode(tool, order="deterministic")).digest()
