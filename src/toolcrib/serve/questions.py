"""Pending approvals and questions of runs: each has a short code, answered over the API or by the next message."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from toolcrib.agent.events import AgentEvent
from toolcrib.approval.approvers.gateway import GatewayApprover, Payload
from toolcrib.approval.audit_log import ApprovalLog, digest_of_call
from toolcrib.config.redact import redact
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.context import NO_ANSWER, ToolContext
from toolcrib.core.errors import SessionError, ToolcribError
from toolcrib.sessions.store import SessionStore

PLATFORM = "serve"
"""The source of the sessions that the server opens."""
CODE_CHARS = 6
LEAVE_SECONDS = 2.0
CANCELLED = "the call was cancelled"


class QuestionAsked(AgentEvent, frozen=True, kw_only=True):
    """The run waits for a person: for an approval, or for the answer to a question of the model."""

    id: str
    code: str
    kind: Literal["approval", "question"]
    text: str
    """What is asked, in a sentence or two."""
    command: str = ""
    """For an approval: exactly what would run."""
    reasons: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    expires_at: float = 0.0


class QuestionAnswered(AgentEvent, frozen=True, kw_only=True):
    """The question was answered, nobody answered in time, or its call was cancelled."""

    id: str
    answer: str
    is_allowed: bool | None = None
    """For an approval: whether the call may run."""


QuestionEvent = QuestionAsked | QuestionAnswered
OnQuestion = Callable[[QuestionEvent], None]


class UnknownQuestion(ToolcribError):
    """No open question has this id or code."""


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question that waits for its answer."""

    asked: QuestionAsked
    session_id: str
    asked_at: float
    request: ApprovalRequest | None = None
    answer: asyncio.Future[str] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    """Where its call waits."""


class PendingQuestions(GatewayApprover):
    """The approver and the asker of the server's agents."""

    def __init__(
        self,
        log: ApprovalLog,
        timeout_seconds: float,
        sessions: SessionStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = sessions
        super().__init__(log, timeout_seconds=timeout_seconds)
        self._now = clock
        self._watchers: dict[str, OnQuestion] = {}
        self._questions: dict[str, OpenQuestion] = {}
        self._counter = 0
        self._asking = 0
        self._log = log
        self._late_grants: dict[tuple[str, str], str] = {}
        """Approved after the run was gone: by session and exact call, the id of the request. Used once, and only by the
        run that goes on."""

    # What agents use

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """As the approver: hold the call until a person decides."""
        granted = self._late_grants and self._late_grants.pop((request.session_key, digest_of_call(request)), "")
        if granted:
            return ApprovalAnswer(choice="once", reason=f"approved as request {granted}", decided_by="user")
        self._asking += 1
        watcher: OnQuestion | None = None
        answer: ApprovalAnswer | None = None
        try:
            watcher = await asyncio.to_thread(self._watcher_of, request.session_key)
            answer = await super().ask(request)
            return answer
        finally:
            self._asking -= 1
            if watcher is not None:
                said = (answer.reason or answer.choice) if answer is not None else CANCELLED
                is_allowed = answer is not None and answer.allows
                watcher(QuestionAnswered(id=request.id, answer=said, is_allowed=is_allowed))

    def asker(self) -> QuestionAsker:
        """The asker for the tool `clarify` and for MCP servers."""
        return QuestionAsker(self)

    async def ask_text(self, session_id: str, question: str, choices: tuple[str, ...]) -> str:
        watcher = await asyncio.to_thread(self._watcher_of, session_id)
        if watcher is None:
            return NO_ANSWER
        self._counter += 1
        id = f"question-{session_id}-{self._counter}"
        asked = QuestionAsked(
            id=id,
            code=code_of(id),
            kind="question",
            text=question,
            choices=choices,
            expires_at=self._now() + self._timeout_seconds,
        )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        self._questions[id] = OpenQuestion(
            asked=asked, session_id=session_id, asked_at=self._now(), answer=answer, loop=loop
        )
        watcher(asked)
        said = CANCELLED
        try:
            async with asyncio.timeout(self._timeout_seconds):
                said = await answer
        except TimeoutError:
            said = NO_ANSWER
        finally:
            self._questions.pop(id, None)
            watcher(QuestionAnswered(id=id, answer=said))
        return said

    # What the server uses

    def set_timeout(self, seconds: float) -> None:
        """How long later questions wait."""
        self._timeout_seconds = seconds

    def watch(self, session_id: str, watcher: OnQuestion) -> None:
        """Report the questions of a session; without a watcher, nobody could answer. In a thread."""
        self._watchers[session_id] = watcher
        self._report(session_id, watcher)

    def _watcher_of(self, session_id: str) -> OnQuestion | None:
        """Who reports the questions of a session; those of a subagent go to the session that started it."""
        if session_id in self._watchers:
            return self._watchers[session_id]
        try:
            line = self._sessions.lineage(session_id)
        except SessionError:
            return None
        found = next((self._watchers[one.id] for one in reversed(line) if one.id in self._watchers), None)
        if found is not None:
            self._report(session_id, found)
        return found

    def _report(self, session_id: str, watcher: OnQuestion) -> None:
        async def notify(payload: Payload) -> None:
            for one in await asyncio.to_thread(self.open, session_id):
                if one.asked.id == payload["request_id"]:
                    watcher(one.asked)

        self.register_notify(session_id, notify)

    def unwatch(self, session_id: str) -> None:
        """Stop reporting; what still waits is cancelled. In a thread."""
        self._watchers.pop(session_id, None)
        self._late_grants = {key: id for key, id in self._late_grants.items() if key[0] != session_id}
        self.unregister_notify(session_id)

    async def stop_waiting(self) -> None:
        """End all waiting, but leave the approvals open: they can still be answered after a restart."""
        self.leave_open()
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._asking and time.monotonic() < deadline:  # noqa: ASYNC110 - calls may wait on other loops
            await asyncio.sleep(0)

    def open(self, session_id: str | None = None, *, owner: str | None = None) -> list[OpenQuestion]:
        """The open questions of the server's sessions, of one owner or of all, oldest first, including approvals from
        before a restart."""
        pending = self.pending(session_id)
        approvals = [self._as_question(request) for request in pending if self._is_ours(request.session_key)]
        others = [one for one in list(self._questions.values()) if session_id in (None, one.session_id)]
        found = [*approvals, *others]
        if owner is not None:
            owners = self._sessions.owners({one.session_id for one in found})
            found = [one for one in found if owners.get(one.session_id) == owner]
        return sorted(found, key=lambda one: one.asked_at)

    def is_served(self, session_id: str) -> bool:
        """Whether a server opened a session, or the one that started it."""
        try:
            return self._sessions.lineage(session_id)[0].source == PLATFORM
        except SessionError:
            return False

    def _is_ours(self, session_id: str) -> bool:
        """Whether we ask for a session: one that a server opened or works on; others have their own front end."""
        return self.is_served(session_id) or self._watcher_of(session_id) is not None

    def find(self, id_or_code: str, owner: str) -> OpenQuestion:
        """The open question of an owner with this id or code; raises UnknownQuestion."""
        wanted = id_or_code.strip()
        found = [one for one in self.open(owner=owner) if wanted == one.asked.id or wanted.upper() == one.asked.code]
        if not found:
            raise unknown_question(wanted)
        return found[0]

    def decide(
        self, question: OpenQuestion, choice: str, reason: str = "", *, every_scope: bool = False, command: str = ""
    ) -> bool:
        """Answer an approval once; False if somebody else was quicker. With `once`, `command` runs instead."""
        request = question.request
        if request is None:
            raise UnknownQuestion(f"{question.asked.code} is a question, not an approval; answer it with a text")
        count = self.resolve(
            request.session_key,
            choice,
            reason=reason or None,
            request_id=request.id,
            every_scope=every_scope,
            command=command,
        )
        return count > 0

    def grant_late(self, question: OpenQuestion) -> None:
        """Let the call of an approval whose run is gone run once, if the session asks for exactly it again."""
        request = question.request
        records = [one for one in self._log.find(question.asked.id) if one.id == question.asked.id]
        if request is not None and records and records[0].call_digest:
            # The log keeps a masked command without the arguments, and the digest of the exact call.
            self._late_grants[request.session_key, records[0].call_digest] = request.id

    def answer(self, question: OpenQuestion, text: str) -> bool:
        """Answer a question of the model once; False if it was answered already."""
        if question.answer is None or question.loop is None:
            raise UnknownQuestion(f"{question.asked.code} is an approval; decide it with once, session, always or deny")
        if self._questions.pop(question.asked.id, None) is None:
            return False
        waiting = question.answer
        question.loop.call_soon_threadsafe(lambda: None if waiting.done() else waiting.set_result(text))
        return True

    def _as_question(self, request: ApprovalRequest) -> OpenQuestion:
        choices = ("once", "session", *(("always",) if request.may_be_permanent else ()), "deny")
        asked = QuestionAsked(
            id=request.id,
            code=code_of(request.id),
            kind="approval",
            text=redact(f"{request.title or request.tool} needs approval: {request.description or 'a call'}"),
            command=redact(request.command),
            reasons=tuple(redact(danger.reason) for danger in request.dangers),
            choices=choices,
            expires_at=request.asked_at + self._timeout_seconds,
        )
        return OpenQuestion(asked=asked, session_id=request.session_key, asked_at=request.asked_at, request=request)


class QuestionAsker:
    """Asks the user of the session that a call belongs to."""

    def __init__(self, questions: PendingQuestions) -> None:
        self._questions = questions

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        return await self._questions.ask_text(ctx.session_id, question, choices)


def unknown_question(wanted: str) -> UnknownQuestion:
    return UnknownQuestion(
        f"no open question has the code {wanted!r}: it was answered or has expired; `toolcrib approvals list` shows "
        "what was decided"
    )


def code_of(question_id: str) -> str:
    """A short code for people to type; the same after a restart."""
    digest = hashlib.sha256(question_id.encode()).digest()
    return base64.b32encode(digest).decode()[:CODE_CHARS]
