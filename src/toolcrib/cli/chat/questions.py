"""Questions to the person during a run: approvals, and questions of tools."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rich.text import Text

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.approval.approvers.question_queue import QuestionQueue
from toolcrib.cli.chat.frontend import Frontend
from toolcrib.cli.chat.status import Status
from toolcrib.cli.console import chosen
from toolcrib.cli.output import clean, one_line
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError

T = TypeVar("T")

ANY_ANSWER = "Enter a number, choose with the arrow keys, or type your own answer."
YES_OR_NO = "Type y or n and press Enter, or choose with the arrow keys."
YES, NO = ("y", "yes"), ("n", "no")
NOBODY = "nobody can answer: the input of this chat does not come from a terminal"


class ChatApprover:
    """Asks for approval at the terminal of the chat, which pauses meanwhile. Ctrl-C also stops the run."""

    has_own_timeout = True

    def __init__(self, console: ConsoleApprover, frontend: Frontend, status: Status, stop: Callable[[], None]) -> None:
        self._console = console
        self._frontend = frontend
        self._status = status
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self.own_calls: set[str] = set()
        """Calls that the person typed: they have decided already. What is always denied never gets here."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        if request.call_id in self.own_calls:
            return ApprovalAnswer(choice="once")
        return await self._in_chat(self._ask(request))

    async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        """What the person types, hidden; None without an answer in time."""
        return await self._in_chat(self._ask_secret(prompt, timeout_seconds))

    async def _ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        asked = time.monotonic()
        self._frontend.await_person(f"toolcrib needs your approval: {request.description}")
        try:
            async with self._frontend.suspended():
                answer = await self._console.ask(request)
        finally:
            self._frontend.person_came()
        self._status.activity.call_answered(request.call_id, time.monotonic() - asked)
        if answer.choice == "cancelled":
            self._stop()
        return answer

    async def _ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        async with self._frontend.suspended():
            return await self._console.ask_secret(prompt, timeout_seconds)

    async def _in_chat(self, asking: Coroutine[Any, Any, T]) -> T:
        """Ask in the event loop of the chat, which owns the terminal; subagents and services may run in other loops."""
        if asyncio.get_running_loop() is self._loop:
            return await asking
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))


class ChatAsker:
    """Shows a question above the input line; the next input is the answer."""

    def __init__(self, frontend: Frontend, status: Status, *, attended: bool) -> None:
        self._frontend = frontend
        self._status = status
        self._attended = attended
        self._turns = QuestionQueue()
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[str] | None = None
        self._wants_line = asyncio.Event()
        """Set while the next line of the input is an answer, from a pipe as well."""

    @property
    def is_attended(self) -> bool:
        """Whether a person can answer."""
        return self._attended

    @property
    def is_waiting(self) -> bool:
        return self._answer is not None

    async def wait_for_question(self, other: Coroutine[Any, Any, None]) -> None:
        """Wait until a question is open, or for something else."""
        waits = [asyncio.ensure_future(one) for one in (other, self._wants_line.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        """The person's answer: one of the choices, or free text."""
        asking = self.put(question, choices)
        if asyncio.get_running_loop() is self._loop:
            return await asking
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))

    async def confirm(self, question: str, yes: str, no: str) -> bool:
        """Whether the person says yes: by y or n, by number, in words, or with the arrow keys."""
        while True:
            answer = await self._put(question, (yes, no), YES_OR_NO)
            if answer.lower() in (yes.lower(), *YES):
                return True
            if answer.lower() in (no.lower(), *NO):
                return False
            self._frontend.show(Text(clean(f"{answer!r} is neither yes nor no."), "yellow"))

    async def put(self, question: str, choices: tuple[str, ...] = ()) -> str:
        """Like `ask`, for the chat itself; raises UsageError if nobody can answer."""
        if not self._attended:
            raise UsageError(NOBODY)
        return await self._put(question, choices, ANY_ANSWER)

    async def _put(self, question: str, choices: tuple[str, ...], hint: str) -> str:
        async with self._turns.turn():
            self._answer = self._loop.create_future()
            self._wants_line.set()
            self._status.ask(choices, hint)
            self._show(question, choices, hint)
            self._frontend.await_person(f"toolcrib asks: {question}")
            try:
                return await self._answer
            finally:
                self._answer = None
                self._wants_line.clear()
                self._status.asked()
                self._frontend.refresh()

    def take(self, text: str) -> str:
        """Answer the open question with what was typed, or with the marked choice; empty if that is no answer."""
        answer = text.strip() or self._status.marked_choice
        if self._answer is None or self._answer.done() or not answer:
            return ""
        answer = chosen(answer, self._status.choices)
        self._wants_line.clear()
        if not self._attended and answer.lower() not in (*(one.lower() for one in self._status.choices), *YES, *NO):
            # In a pipe, whoever wrote this line may not have expected a question.
            self._answer.set_result(NO[0])
            self._frontend.show(Text(f"{NOBODY}; that counts as no", "yellow"))
            return ""
        self._answer.set_result(answer)
        return answer

    def _show(self, question: str, choices: tuple[str, ...], hint: str) -> None:
        rows = [Text(clean(question), "bold")]
        if not self._frontend.is_live:
            # Where nothing can be redrawn, the choices are not drawn above the input line.
            rows += [Text(f"  {number}. {one_line(choice)}") for number, choice in enumerate(choices, 1)]
            rows += [Text(hint, "dim")] if choices else []
        self._frontend.show(*rows, gap=True)
        self._frontend.refresh()
