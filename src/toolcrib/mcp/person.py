"""The person in front of a session, as far as the questions of one server go."""

from __future__ import annotations

import logging
from typing import Literal

from toolcrib.core.attempt import attempt_async
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.mcp.asking import NO_ANSWER
from toolcrib.mcp.untrusted_text import one_line, shown

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
