"""Questions from servers go to the person behind the call that the server is working on, and to nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from toolcrib.core.attempt import attempt_async
from toolcrib.core.context import NO_ANSWER, Services, ToolContext, current_context
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.mcp.client.callbacks import Contexts
from toolcrib.mcp.client.untrusted_text import one_line, shown

T = TypeVar("T")

POLL_SECONDS = 0.25
"""How often we check whether the call that a question belongs to is still running."""
MAX_QUESTION_SECONDS = 600.0


class NoUserAvailable(ToolcribError):
    """There is nobody to ask; the message says why."""


class CallEnded(ToolcribError):
    """The call that a question belongs to has ended, or the question was open for too long."""


def context_for_question(contexts: Contexts, services: Callable[[], Services | None]) -> ToolContext:
    """The context of the call that a question belongs to, or that of the runtime for one outside any call.

    In the newer protocol a question is part of its call, so its context is the current one. In the older protocol the
    server does not say which call it means: if calls of several sessions are in flight, nobody is asked.
    """
    active, current = contexts(), current_context.get()
    if current is not None and _is_among(current, active):
        return current
    if not active:
        served = services()
        if served is None:
            raise NoUserAvailable("the client is shutting down")
        return ToolContext(services=served)
    if len({one.session_id for one in active}) > 1:
        raise NoUserAvailable(
            "the server is working for several sessions and does not say which one the question is for"
        )
    return active[-1]


async def ask_during_call(ctx: ToolContext, contexts: Contexts, asking: Coroutine[Any, Any, T]) -> T:
    """The answer; raises CallEnded if the call of `ctx` ends first, because an answer would come too late."""
    task = asyncio.ensure_future(asking)
    ends = asyncio.get_running_loop().time() + MAX_QUESTION_SECONDS
    is_in_call = _is_among(ctx, contexts())
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=POLL_SECONDS)
            if task.done():
                break
            if is_in_call and not _is_among(ctx, contexts()):
                raise CallEnded("the call it belonged to has ended")
            if asyncio.get_running_loop().time() > ends:
                raise CallEnded("nobody answered in time")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=1)


class RefusalCounter:
    """Counts how often a person declined in each call of one server; questions outside calls count together."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._refused: list[ToolContext | None] = []

    def count(self, ctx: ToolContext) -> int:
        call = self._call_of(ctx)
        return sum(1 for one in self._refused if one is call)

    def add(self, ctx: ToolContext) -> None:
        active = self._contexts()
        kept = [one for one in self._refused if one is None or _is_among(one, active)]
        self._refused = [*kept, self._call_of(ctx)]

    def _call_of(self, ctx: ToolContext) -> ToolContext | None:
        return ctx if _is_among(ctx, self._contexts()) else None


def _is_among(ctx: ToolContext, contexts: list[ToolContext]) -> bool:
    return any(one is ctx for one in contexts)


logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 2000
MAX_ATTEMPTS = 5
"""How often a question is repeated before it counts as unanswered."""
DECLINE, CANCEL = ":decline", ":cancel"


class QuestionClosed(ToolcribError):
    """The person does not want to continue: the action for the server, and why."""

    def __init__(self, action: Literal["decline", "cancel"], reason: str) -> None:
        super().__init__(reason)
        self.action = action


class SessionUser:
    """The person behind a session, asked on behalf of one server."""

    def __init__(self, ctx: ToolContext, server: str) -> None:
        self._ctx = ctx
        self.server = one_line(server, 80)

    async def ask(self, question: str, choices: tuple[str, ...] = ()) -> str:
        """The person's answer; raises QuestionClosed if there is nobody to ask or they decline."""
        answer, error = await attempt_async(self._ctx.ask(question, choices))
        if isinstance(error, UsageError):
            raise QuestionClosed("decline", "nobody can be asked in this session")
        if error is not None or not isinstance(answer, str):
            logger.error("a question from the MCP server %r could not be asked", self.server, exc_info=error)
            raise QuestionClosed("decline", "the question could not be asked")
        word = answer.strip().lower()
        if word == DECLINE:
            raise QuestionClosed("decline", "the person declined")
        if word == CANCEL or answer == NO_ANSWER:
            raise QuestionClosed("cancel", "the person closed the question")
        return answer


async def ask_for_choice(person: SessionUser, question: str, yes: str, no: str, *others: str) -> str:
    """Ask until the person picks one of the choices; raises QuestionClosed for `no` or no clear answer."""
    choices = (yes, *others, no)
    for _ in range(MAX_ATTEMPTS):
        answer = (await person.ask(question, choices)).strip()
        found = next((choice for choice in choices if choice.casefold() == answer.casefold()), "")
        if found == no:
            raise QuestionClosed("decline", "the person declined")
        if found:
            return found
    raise QuestionClosed("cancel", "the person gave no clear answer")


def quote(message: str) -> str:
    """A server's text, formatted so that none of its lines can pass for ours."""
    text = shown(message).strip()
    text = text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
    lines = text.splitlines()
    return text if len(lines) <= 1 else "\n" + "\n".join(f"  | {line}" for line in lines)
