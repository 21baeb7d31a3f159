"""A provider that goes on without a tool when that tool is what makes a request be refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from toolcrib.core.messages import user_message
from toolcrib.core.models import (
    Delta,
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

MAX_TRIES = 8
MAX_NOTICES = 3
TRIAL_OUTPUT_TOKENS = 1_024
"""Enough for models that think first: some servers call it a bad request when an answer gets no room."""


class SettingAside:
    """A provider that leaves out refused tools, says so, and remembers them by name and schema."""

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


class _Search:
    """Finds the tools that make one request be refused, within a few tries.

    Groups of tools are tried with a request of one word, so that the answer itself is given with every good tool.
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
        """What to leave out of a refused request: the tools that were named, or one that is looked for."""
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
        """The way out when the tries are used up: only the largest group that passed stays, and then none."""
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
