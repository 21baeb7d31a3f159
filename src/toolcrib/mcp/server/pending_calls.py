"""Calls of clients on their way: how far they are, what their person is asked meanwhile, how they ended.

A call runs in a task of its own and outlives the request that began it: since protocol version 2026-07-28 a question
ends the request, and the client comes back with the answer in another one. Whoever serves a request takes the news of
its call one by one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import msgspec

from toolcrib.core.context import CancelToken
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.registry.results import sendable

MAX_UNSENT_REPORTS = 64
MAX_REPORT_CHARS = 4000
MAX_OPEN_CALLS_OF_A_SESSION = 64


class Reply(msgspec.Struct, frozen=True):
    """What came back for a question."""

    action: str
    """accept, decline or cancel, as the protocol has it; failed where the client could not ask."""
    content: JsonObject = msgspec.field(default_factory=dict)


class Report(msgspec.Struct, frozen=True):
    """How far a call is."""

    number: int
    message: str


class Question:
    """One form that the person behind a client is asked to fill in."""

    def __init__(self, message: str, schema: JsonObject) -> None:
        self.id = f"question-{secrets.token_hex(4)}"
        self.message = message
        self.schema = schema
        self.reply: Future[Reply] = Future()
        """Cancelled when whoever asked does not wait any more."""

    @property
    def is_open(self) -> bool:
        return not self.reply.done()

    def settle(self, reply: Reply) -> None:
        # Whoever asked may have given up in the same moment, on another thread.
        with suppress(InvalidStateError):
            self.reply.set_result(reply)

    async def closed(self) -> None:
        """Wait until it has its answer, or nobody wants one any more; giving up on this wait changes nothing."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        self.reply.add_done_callback(lambda _: _call_in(loop, over.set))
        await over.wait()


News = Report | Question | ToolResult


class OpenCall:
    """One call, from its request to its result. Reports and questions may come from any thread."""

    def __init__(self, session_id: str, name: str) -> None:
        self.id = f"call-{secrets.token_hex(16)}"
        self.session_id = session_id
        self.name = name
        self.cancel = CancelToken()
        self.can_be_asked = False
        """Whether the client that serves this call now can put a form to its person."""
        self.result: ToolResult | None = None
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._reports: deque[Report] = deque(maxlen=MAX_UNSENT_REPORTS)
        self._questions: list[Question] = []
        self._count = 0

    def report(self, message: str) -> None:
        """Tell the client how far the call is; of many reports that it is too slow for, it gets the latest."""
        shown = sendable(message[:MAX_REPORT_CHARS])
        _call_in(self._loop, lambda: self._keep_report(shown))

    async def ask(self, message: str, schema: JsonObject) -> Reply:
        """Put a form to the person; from any loop. Cancelled, it takes the question back."""
        question = Question(message, schema)
        _call_in(self._loop, lambda: self._keep_question(question))
        return await asyncio.wrap_future(question.reply)

    def answer(self, question_id: str, reply: Reply) -> None:
        """Answer one of the open questions; an unknown one is ignored, as the protocol wants it."""
        for question in self._questions:
            if question.id == question_id:
                question.settle(reply)

    def finish(self, result: ToolResult) -> None:
        # In the same line as the reports, so that none of them comes too late.
        _call_in(self._loop, lambda: self._keep_result(result))

    async def next(self) -> News:
        """The next thing to tell the client: reports first, then a question, in the end the result."""
        while True:
            self._news.clear()
            if self._reports:
                return self._reports.popleft()
            if self.result is not None:
                return self.result
            self._questions = [question for question in self._questions if question.is_open]
            if self._questions:
                return self._questions[0]
            await self._news.wait()

    def _keep_report(self, message: str) -> None:
        self._count += 1
        self._reports.append(Report(self._count, message))
        self._news.set()

    def _keep_result(self, result: ToolResult) -> None:
        self.result = result
        self._news.set()

    def _keep_question(self, question: Question) -> None:
        self._questions.append(question)
        self._news.set()


class CallBook:
    """The open calls of all clients."""

    def __init__(self) -> None:
        self._calls: dict[str, OpenCall] = {}

    def add(self, call: OpenCall) -> None:
        self._calls[call.id] = call

    def remove(self, call: OpenCall) -> None:
        self._calls.pop(call.id, None)

    def get(self, call_id: str) -> OpenCall | None:
        return self._calls.get(call_id)

    def find(self, call_id: str, session_id: str) -> OpenCall | None:
        """The call of that id; for a call inside another one, the latest that its session has open."""
        known = self._calls.get(call_id)
        if known is not None:
            return known
        return next((call for call in reversed(self.of_session(session_id)) if call.result is None), None)

    def of_session(self, session_id: str) -> list[OpenCall]:
        return [call for call in list(self._calls.values()) if call.session_id == session_id]

    def is_full_for(self, session_id: str) -> bool:
        at_work = [call for call in self.of_session(session_id) if call.result is None]
        return len(at_work) >= MAX_OPEN_CALLS_OF_A_SESSION

    def stop(self, reason: str, session_id: str | None = None) -> None:
        """Stop the calls of a session, or all of them."""
        for call in list(self._calls.values()):
            if session_id in (None, call.session_id):
                call.cancel.cancel(reason)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    # A thread that was left behind may still report when the server has gone.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)
