"""Whom a question of a server is for: the session whose call the server is working on, and nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from toolcrib.core.attempt import attempt_async
from toolcrib.core.context import Services, ToolContext, current_context
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.mcp.client.callbacks import Contexts
from toolcrib.mcp.client.untrusted_text import one_line, shown

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


logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 2000
TRIES = 5
"""How often a person is asked the same before that counts as no answer."""
DECLINE, CANCEL = ":decline", ":cancel"


class Closed(ToolcribError):
    """The person does not want to go on; the action for the server, and why."""

    def __init__(self, action: Literal["decline", "cancel"], reason: str) -> None:
        super().__init__(reason)
        self.action = action


class Person:
    """The person in front of a session, as far as questions of one server go."""

    def __init__(self, ctx: ToolContext, server: str) -> None:
        self._ctx = ctx
        self.server = one_line(server, 80)

    async def ask(self, question: str, choices: tuple[str, ...] = ()) -> str:
        """What the person said; raises Closed where there is nobody, or who is there does not want to."""
        said, error = await attempt_async(self._ctx.ask(question, choices))
        if isinstance(error, UsageError):
            raise Closed("decline", "nobody can be asked in this session")
        if error is not None or not isinstance(said, str):
            logger.error("a question of the MCP server %r could not be put", self.server, exc_info=error)
            raise Closed("decline", "the question could not be put to anybody")
        word = said.strip().lower()
        if word == DECLINE:
            raise Closed("decline", "the person declined")
        if word == CANCEL or said == NO_ANSWER:
            raise Closed("cancel", "the person closed the question")
        return said


async def agreed(person: Person, question: str, yes: str, no: str, *others: str) -> str:
    """One of the answers that let things go on; only a clear one does."""
    choices = (yes, *others, no)
    for _ in range(TRIES):
        said = (await person.ask(question, choices)).strip()
        found = next((choice for choice in choices if choice.casefold() == said.casefold()), "")
        if found == no:
            raise Closed("decline", "the person declined")
        if found:
            return found
    raise Closed("cancel", "the person gave no clear answer")


def quoted(message: str) -> str:
    """The words of a server, of which no line can be taken for one of ours."""
    text = shown(message).strip()
    text = text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
    lines = text.splitlines()
    return text if len(lines) <= 1 else "\n" + "\n".join(f"  | {line}" for line in lines)
