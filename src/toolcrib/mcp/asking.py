"""Whom a question of a server is for: the session whose call the server is working on, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.errors import ToolcribError
from toolcrib.mcp.seams import Contexts

if TYPE_CHECKING:
    from toolcrib.core.services import Services

T = TypeVar("T")

LOOK_SECONDS = 0.25
"""How often it is looked whether the call that a question belongs to still runs."""
MAX_QUESTION_SECONDS = 600.0
NO_ANSWER = "(the user gave no answer)"
"""What an asker gives for a person who closed the question."""


class NobodyToAsk(ToolcribError):
    """There is nobody whom a question of a server could be for; says why."""


class CallOver(ToolcribError):
    """The call that a question belonged to has ended, or the question was open for too long."""


def asked_for(contexts: Contexts, services: Callable[[], Services | None]) -> ToolContext:
    """The context of the call that a server asks in; of the runtime, where it asks outside of any call.

    In the newer protocol a question is part of its call, whose context is the current one here. In the older one the
    server does not say which call it means: with calls of several sessions at work, nobody is asked.
    """
    at_work, current = contexts(), current_context.get()
    if current is not None and _is_among(current, at_work):
        return current
    if not at_work:
        served = services()
        if served is None:
            raise NobodyToAsk("the program that uses this server is ending")
        return ToolContext(services=served)
    if len({one.session_id for one in at_work}) > 1:
        raise NobodyToAsk("the server works for several sessions at once, and does not say for which one it asks")
    return at_work[-1]


async def while_wanted(ctx: ToolContext, contexts: Contexts, asking: Coroutine[Any, Any, T]) -> T:
    """What `asking` gives; raises CallOver when the call of `ctx` ends first: an answer would come too late."""
    task = asyncio.ensure_future(asking)
    ends = asyncio.get_running_loop().time() + MAX_QUESTION_SECONDS
    is_in_call = _is_among(ctx, contexts())
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=LOOK_SECONDS)
            if task.done():
                break
            if is_in_call and not _is_among(ctx, contexts()):
                raise CallOver("the call that it belonged to has ended")
            if asyncio.get_running_loop().time() > ends:
                raise CallOver("nobody answered in time")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=1)


class Refusals:
    """How often a person said no in each call of one server; what it asks outside of calls counts together."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._refused: list[ToolContext | None] = []

    def count(self, ctx: ToolContext) -> int:
        call = self._call_of(ctx)
        return sum(1 for one in self._refused if one is call)

    def add(self, ctx: ToolContext) -> None:
        at_work = self._contexts()
        kept = [one for one in self._refused if one is None or _is_among(one, at_work)]
        self._refused = [*kept, self._call_of(ctx)]

    def _call_of(self, ctx: ToolContext) -> ToolContext | None:
        return ctx if _is_among(ctx, self._contexts()) else None


def _is_among(ctx: ToolContext, contexts: list[ToolContext]) -> bool:
    return any(one is ctx for one in contexts)
