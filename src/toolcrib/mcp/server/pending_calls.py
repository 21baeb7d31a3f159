"""The pending calls of clients: their progress, the questions to the user meanwhile, and their results.

A call runs in its own task and outlives the request that started it: since protocol version 2026-07-28 a question ends
the request, and the client returns with the answer in another one. Whoever serves a request takes the events of its
call one by one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import msgspec

from toolcrib.core.cancel import CancelToken
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.registry.results import sendable

MAX_UNSENT_REPORTS = 64
MAX_REPORT_CHARS = 4000
MAX_CALLS_PER_SESSION = 64


class ClientReply(msgspec.Struct, frozen=True):
    """The client's answer to a question."""

    action: str
    """accept, decline or cancel, as in the protocol; failed if the client could not ask."""
    content: JsonObject = msgspec.field(default_factory=dict)


class ProgressReport(msgspec.Struct, frozen=True):
    """The progress of a call."""

    number: int
    message: str


class ClientQuestion:
    """One form for the user of a client."""

    def __init__(self, message: str, schema: JsonObject) -> None:
        self.id = f"question-{secrets.token_hex(4)}"
        self.message = message
        self.schema = schema
        self.reply: Future[ClientReply] = Future()
        """Cancelled when the asker no longer waits."""

    @property
    def is_open(self) -> bool:
        return not self.reply.done()

    def settle(self, reply: ClientReply) -> None:
        # The asker may give up at the same moment on another thread.
        with suppress(InvalidStateError):
            self.reply.set_result(reply)

    async def closed(self) -> None:
        """Wait until it is answered or withdrawn; cancelling this wait changes nothing."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self.reply.add_done_callback(lambda _: _call_on(loop, done.set))
        await done.wait()


CallEvent = ProgressReport | ClientQuestion | ToolResult


class PendingCall:
    """One call, from its request to its result. Reports and questions may come from any thread."""

    def __init__(self, session_id: str, name: str) -> None:
        self.id = f"call-{secrets.token_hex(16)}"
        self.session_id = session_id
        self.name = name
        self.cancel = CancelToken()
        self.can_be_asked = False
        """Whether the client that follows this call can show forms to its user."""
        self.result: ToolResult | None = None
        self._loop = asyncio.get_running_loop()
        self._has_event = asyncio.Event()
        self._reports: deque[ProgressReport] = deque(maxlen=MAX_UNSENT_REPORTS)
        self._questions: list[ClientQuestion] = []
        self._count = 0

    def report(self, message: str) -> None:
        """Report progress; a client that is too slow gets only the latest reports."""
        text = sendable(message[:MAX_REPORT_CHARS])
        _call_on(self._loop, lambda: self._add_report(text))

    async def ask(self, message: str, schema: JsonObject) -> ClientReply:
        """Ask the user to fill in a form; from any loop. Cancelling it withdraws the question."""
        question = ClientQuestion(message, schema)
        _call_on(self._loop, lambda: self._add_question(question))
        return await asyncio.wrap_future(question.reply)

    def answer(self, question_id: str, reply: ClientReply) -> None:
        """Answer an open question; an unknown one is ignored, as the protocol requires."""
        for question in self._questions:
            if question.id == question_id:
                question.settle(reply)

    def finish(self, result: ToolResult) -> None:
        # Through the same queue as the reports, so that none of them comes too late.
        _call_on(self._loop, lambda: self._set_result(result))

    async def next_event(self) -> CallEvent:
        """The next event for the client: reports first, then a question, finally the result."""
        while True:
            self._has_event.clear()
            if self._reports:
                return self._reports.popleft()
            if self.result is not None:
                return self.result
            self._questions = [question for question in self._questions if question.is_open]
            if self._questions:
                return self._questions[0]
            await self._has_event.wait()

    def _add_report(self, message: str) -> None:
        self._count += 1
        self._reports.append(ProgressReport(self._count, message))
        self._has_event.set()

    def _set_result(self, result: ToolResult) -> None:
        self.result = result
        self._has_event.set()

    def _add_question(self, question: ClientQuestion) -> None:
        self._questions.append(question)
        self._has_event.set()


class PendingCalls:
    """The pending calls of all clients."""

    def __init__(self) -> None:
        self._calls: dict[str, PendingCall] = {}

    def add(self, call: PendingCall) -> None:
        self._calls[call.id] = call

    def remove(self, call: PendingCall) -> None:
        self._calls.pop(call.id, None)

    def get(self, call_id: str) -> PendingCall | None:
        return self._calls.get(call_id)

    def find(self, call_id: str, session_id: str) -> PendingCall | None:
        """The call with that id; for a nested call, the latest pending one of its session."""
        known = self._calls.get(call_id)
        if known is not None:
            return known
        return next((call for call in reversed(self.of_session(session_id)) if call.result is None), None)

    def of_session(self, session_id: str) -> list[PendingCall]:
        return [call for call in list(self._calls.values()) if call.session_id == session_id]

    def has_too_many(self, session_id: str) -> bool:
        pending = [call for call in self.of_session(session_id) if call.result is None]
        return len(pending) >= MAX_CALLS_PER_SESSION

    def stop(self, reason: str, session_id: str | None = None) -> None:
        """Cancel the calls of a session, or all of them."""
        for call in list(self._calls.values()):
            if session_id in (None, call.session_id):
                call.cancel.cancel(reason)


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    # An abandoned thread may still report after the server is gone.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)
