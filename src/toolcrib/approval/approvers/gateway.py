"""Asks for approval elsewhere: in a chat, over an API, from another thread, or after a restart."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol, get_args

import msgspec

from toolcrib.approval.approvers.smart import is_advised_against
from toolcrib.config.redact import redact
from toolcrib.core.approvals import PENDING, ApprovalAnswer, ApprovalRequest, Choice
from toolcrib.core.cancel import finish_in_thread
from toolcrib.core.errors import UnknownName

Payload = dict[str, Any]
Notify = Callable[[Payload], Awaitable[None] | None]

HUMAN_CHOICES = tuple(choice for choice in get_args(Choice) if choice not in ("timeout", "cancelled"))


class RequestStore(Protocol):
    """Stores requests and answers so that they survive a restart."""

    def requested(self, request: ApprovalRequest) -> None:
        """Store a request; returns once it is durable."""
        ...

    def answered(self, request_id: str, answer: ApprovalAnswer) -> bool:
        """Record an answer; False if the request is unknown or already answered."""
        ...

    def pending(self) -> list[ApprovalRequest]:
        """The requests without an answer."""
        ...


class UnknownChoice(UnknownName, ValueError):
    kind = "choice"


class LateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that arrived after its call stopped waiting. It is recorded, but runs nothing."""

    request: ApprovalRequest
    answer: ApprovalAnswer


class _Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is waiting for its answer."""

    request: ApprovalRequest
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[ApprovalAnswer]

    def deliver(self, answer: ApprovalAnswer) -> bool:
        """Wake the call in its own loop; False if that loop has closed."""
        try:
            self.loop.call_soon_threadsafe(lambda: None if self.answer.done() else self.answer.set_result(answer))
        except RuntimeError:
            return False
        return True


class GatewayApprover:
    """Holds calls until someone resolves them. Each session has its own queue; every method may be called from
    any thread and any loop."""

    def __init__(
        self, store: RequestStore, clock: Callable[[], float] = time.monotonic, *, timeout_seconds: float = 60.0
    ) -> None:
        self._store = store
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        # Only the thread that removes a waiter from the table, under this lock, decides its request.
        self._lock = Lock()
        self._waiters: dict[str, _Waiter] = {}
        self._notify: dict[str, Notify] = {}
        self._late: list[LateAnswer] = []

    def leave_open(self) -> None:
        """Deny the waiting calls but leave their requests open, for a front end that will be back."""
        with self._lock:
            waiters, self._waiters = list(self._waiters.values()), {}
        for waiter in waiters:
            waiter.deliver(_still_pending(waiter.request))

    def register_notify(self, session_key: str, callback: Notify) -> None:
        """Notify this callback of the session's requests; a plain function runs in a worker thread."""
        with self._lock:
            self._notify[session_key] = callback

    def unregister_notify(self, session_key: str) -> None:
        """Remove the callback of a front end that has closed, and cancel the session's waiting calls."""
        closed = ApprovalAnswer(choice="cancelled", reason="the front end was closed", decided_by="policy")
        with self._lock:
            self._notify.pop(session_key, None)
            for waiter in self._waiting(session_key):
                self._settle(waiter.request, closed)

    def resolve(
        self,
        session_key: str,
        choice: str,
        resolve_all: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
        *,
        every_scope: bool = False,
        command: str = "",
    ) -> int:
        """Answer requests of a session and return how many: the given one, all of them, or the oldest that a call
        waits for; if no call waits, the oldest on record. With `once`, `command` runs instead of what was asked."""
        if choice not in HUMAN_CHOICES:
            raise UnknownChoice(choice, HUMAN_CHOICES, advice=f"use one of {', '.join(HUMAN_CHOICES)}")
        with self._lock:
            found = self._pending(session_key)
            if request_id is not None:
                found = [request for request in found if request.id == request_id]
            elif not resolve_all:
                found = ([waiter.request for waiter in self._waiting(session_key)] or found)[:1]
            answers = [_answer_from(choice, reason, every_scope, request, command) for request in found]
            return sum(self._settle(request, answer) for request, answer in zip(found, answers, strict=True))

    def pending(self, session_key: str | None = None) -> list[ApprovalRequest]:
        """Unanswered requests of one session or of all, oldest first, including those from before a restart."""
        with self._lock:
            return self._pending(session_key)

    def has_pending(self, session_key: str) -> bool:
        return bool(self.pending(session_key))

    def is_waiting(self, session_key: str) -> bool:
        """Whether a call of the session is waiting now."""
        with self._lock:
            return bool(self._waiting(session_key))

    def late_answers(self, session_key: str) -> list[LateAnswer]:
        """Answers that came too late for their call; each is returned only once."""
        with self._lock:
            answers = [late for late in self._late if late.request.session_key == session_key]
            self._late = [late for late in self._late if late.request.session_key != session_key]
            return answers

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(request=request, loop=loop, answer=loop.create_future())
        try:
            notify = await finish_in_thread(self._enqueue, waiter)
            return _still_pending(request) if notify is None else await self._wait_for_answer(waiter, notify)
        except OSError as error:
            return _denied(f"the request for approval could not be recorded: {error}")
        except asyncio.CancelledError:
            cancelled = ApprovalAnswer(choice="cancelled", reason="the call was cancelled", decided_by="policy")
            await finish_in_thread(self._give_up, waiter, cancelled)
            raise

    def _enqueue(self, waiter: _Waiter) -> Notify | None:
        """Record a request, and who is told about it; None if nobody is there."""
        request = waiter.request
        with self._lock:
            self._store.requested(request)
            notify = self._notify.get(request.session_key)
            if notify is not None:
                self._waiters[request.id] = waiter
            return notify

    async def _wait_for_answer(self, waiter: _Waiter, notify: Notify) -> ApprovalAnswer:
        deadline = self._clock() + self._timeout_seconds
        notified = asyncio.ensure_future(_call(notify, _payload(waiter.request)))
        both: set[asyncio.Future[Any]] = {notified, waiter.answer}
        try:
            # A callback may be slow, or return only after the person has answered; don't wait for it.
            await asyncio.wait(both, timeout=self._timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if failure := _failure_reason(notified):
                undelivered = _denied(f"the request for approval could not be delivered: {failure}")
                await finish_in_thread(self._give_up, waiter, undelivered)
            await asyncio.wait({waiter.answer}, timeout=max(0.0, deadline - self._clock()))
            if not waiter.answer.done():
                late = ApprovalAnswer(choice="timeout", reason="no one answered in time", decided_by="timeout")
                await finish_in_thread(self._give_up, waiter, late)
            # Whoever settled the request has delivered the answer, or is about to.
            return await waiter.answer
        finally:
            notified.cancel()

    def _give_up(self, waiter: _Waiter, answer: ApprovalAnswer) -> None:
        # If recording fails, `_settle` has already delivered a deny to the waiting call.
        with self._lock, suppress(OSError):
            self._settle(waiter.request, answer)

    def _settle(self, request: ApprovalRequest, answer: ApprovalAnswer) -> bool:
        """Record an answer and wake the waiting call; False if it was already answered. The caller holds the lock."""
        waiter = self._waiters.pop(request.id, None)
        try:
            first = self._store.answered(request.id, answer)
        except OSError as error:
            if waiter is not None:
                waiter.deliver(_denied(f"the answer could not be recorded: {error}"))
            raise
        if not first:
            if waiter is not None:
                waiter.deliver(_denied("the request was already answered elsewhere"))
            return False
        if waiter is None or not waiter.deliver(answer):
            self._late.append(LateAnswer(request=request, answer=answer))
        return True

    def _pending(self, session_key: str | None) -> list[ApprovalRequest]:
        known = {request.id: request for request in self._store.pending()}
        known.update((waiter.request.id, waiter.request) for waiter in self._waiters.values())
        found = [request for request in known.values() if session_key in (None, request.session_key)]
        return sorted(found, key=lambda request: request.asked_at)

    def _waiting(self, session_key: str) -> list[_Waiter]:
        return [waiter for waiter in self._waiters.values() if waiter.request.session_key == session_key]


async def _call(notify: Notify, payload: Payload) -> None:
    if inspect.iscoroutinefunction(notify):
        await notify(payload)
        return
    # It may block, perhaps even on the loop that we run in.
    result = await asyncio.to_thread(notify, payload)
    if inspect.isawaitable(result):
        await result


def _failure_reason(notified: asyncio.Future[None]) -> str:
    """Why a callback failed; empty while it runs and after it succeeded."""
    if not notified.done():
        return ""
    if notified.cancelled():
        return "it was cancelled"
    error = notified.exception()
    return "" if error is None else redact(str(error)) or type(error).__name__


def _payload(request: ApprovalRequest) -> Payload:
    """What a front end receives: the reference system's keys, and the id of this request."""
    keys = list(dict.fromkeys(redact(danger.pattern_key) for danger in request.dangers))
    payload: Payload = {
        "command": redact(request.command),
        "pattern_key": keys[0] if keys else "",
        "pattern_keys": keys,
        "description": redact(request.description),
        "allow_permanent": request.may_be_permanent,
        "request_id": request.id,
    }
    return payload | {"smart_denied": True} if is_advised_against(request) else payload


def _answer_from(
    choice: str, reason: str | None, every_scope: bool, request: ApprovalRequest, command: str
) -> ApprovalAnswer:
    """A person's choice, never wider than what the question offered."""
    named: Choice = next(each for each in HUMAN_CHOICES if each == choice)
    if named == "always" and not request.may_be_permanent:
        named = "session"
    wide = every_scope and named in ("session", "always")
    edited = command if named == "once" and request.can_be_edited and command != request.command else ""
    return ApprovalAnswer(choice=named, reason=reason or "", every_scope=wide, decided_by="user", command=edited)


def _still_pending(request: ApprovalRequest) -> ApprovalAnswer:
    why = f"{request.description or 'this call'} needs approval, which is still pending"
    return ApprovalAnswer(choice="deny", reason=why, decided_by=PENDING)


def _denied(why: str) -> ApprovalAnswer:
    return ApprovalAnswer(choice="deny", reason=why, decided_by="policy")
