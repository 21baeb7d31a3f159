"""Runs over the API, with their events and timelines; and the approvals and questions that they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolcrib.approval.audit_log import ApprovalLog, ApprovalRecord
from toolcrib.config.redact import redact
from toolcrib.core.approvals import ApprovalRequest
from toolcrib.core.messages import Message, Text, image_at, user_message
from toolcrib.core.types import JsonObject
from toolcrib.http_server import error_response
from toolcrib.serve.api_routes import LIMIT, ApiRoute, QueryParameter, body_of, limit_of, number_of
from toolcrib.serve.guard import identity_of
from toolcrib.serve.openai_api import PING, event_stream, require_choice, with_pings
from toolcrib.serve.questions import OpenQuestion, PendingQuestions, code_of, unknown_question
from toolcrib.serve.run_store import RunRecord, RunStoreError, StoredEvent
from toolcrib.serve.runs import Run, RunManager, RunRefused, digest_of
from toolcrib.serve.tokens import TokenIdentity
from toolcrib.sessions.store import SessionStore

RETRY_MS = 1000
EVENTS = "text/event-stream"
MODEL = "model"
SpanKind = Literal["model", "tool", "waiting"]


class RunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/runs`."""

    text: str
    session_id: str | None = None
    """The session to go on in; a new one without it."""
    images: tuple[str, ...] = ()
    """Images as `data:` URLs."""


class SteerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/runs/{id}/steer`."""

    text: str


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/approvals/{id}`."""

    choice: str
    reason: str = ""
    every_scope: bool = False
    command: str = ""
    """With `once`: run this instead, as the person edited it."""


class AnswerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/questions/{id}`."""

    text: str


class RunsApi:
    """`/api/runs`, `/api/approvals`, `/api/questions` and `/api/audit`."""

    def __init__(self, sessions: SessionStore, runs: RunManager, questions: PendingQuestions, log: ApprovalLog) -> None:
        self._sessions = sessions
        self._runs = runs
        self._questions = questions
        self._log = log

    def routes(self) -> list[ApiRoute]:
        one = "/api/runs/{id}"
        of_session = QueryParameter("session", "Only the runs of this session.")
        after = QueryParameter("after", "Only events after this number; the header Last-Event-ID wins.", "integer")
        return [
            ApiRoute(method="GET", path="/api/runs", handler=self.runs, summary="List runs.",
                     query=(of_session, LIMIT)),
            ApiRoute(method="POST", path="/api/runs", handler=self.start, body=RunRequest, statuses=(202, 200),
                     summary="Start a run; with the header Idempotency-Key, once."),
            ApiRoute(method="GET", path=one, handler=self.run, summary="One run."),
            ApiRoute(method="GET", path=f"{one}/events", handler=self.events, summary="Its events as a stream.",
                     query=(after,), statuses=(200, 204), media_type=EVENTS),
            ApiRoute(method="GET", path=f"{one}/timeline", handler=self.timeline,
                     summary="When it worked with the model, with tools, and waited for a person."),
            ApiRoute(method="POST", path=f"{one}/stop", handler=self.stop, summary="Stop it.", statuses=(202,)),
            ApiRoute(method="POST", path=f"{one}/steer", handler=self.steer, body=SteerRequest, statuses=(202,),
                     summary="Send the agent a message while it works."),
            ApiRoute(method="GET", path="/api/approvals", handler=self.approvals, summary="What waits for approval."),
            ApiRoute(method="POST", path="/api/approvals/{id}", handler=self.decide, scope="approve",
                     body=DecisionRequest, summary="Allow or deny a call, by the id or the code of the request."),
            ApiRoute(method="GET", path="/api/questions", handler=self.open_questions,
                     summary="Questions of the model."),
            ApiRoute(method="POST", path="/api/questions/{id}", handler=self.answer, body=AnswerRequest,
                     summary="Answer a question of the model."),
            ApiRoute(method="GET", path="/api/audit", handler=self.audit, query=(LIMIT,),
                     summary="The record of requests for approval and their answers, newest first."),
        ]  # fmt: skip

    async def runs(self, request: Request) -> Response:
        limit, session, identity = limit_of(request), request.query_params.get("session"), identity_of(request.scope)

        def listed() -> list[RunRecord]:
            # Some tokens see only what happened in sessions of a server, so there may be fewer.
            found = self._runs.store.list(owner=identity.owner, session_id=session, limit=limit)
            return [one for one in found if self._runs.may_reach(one.session_id, identity)]

        return JSONResponse({"runs": [_shown(one) for one in await asyncio.to_thread(listed)]})

    async def start(self, request: Request) -> Response:
        wanted = await body_of(request, RunRequest)
        if not wanted.text.strip():
            return error_response(422, "the text of the question is empty")
        question = _question(wanted)
        identity, key = identity_of(request.scope), request.headers.get("idempotency-key")
        # A key belongs to a token: another one must not find the run by guessing.
        key, digest = key and digest_of(identity.key, key), digest_of(wanted.text, wanted.session_id, wanted.images)
        known = await asyncio.to_thread(self._runs.repeated, key, digest)
        if known is not None:
            return JSONResponse(_shown(known), status_code=200)
        self._runs.require_room(identity)
        session_id = None
        if wanted.session_id is not None:
            session_id = (await self._runs.session(wanted.session_id, identity)).id
        try:
            run = await self._runs.start(session_id, question, identity, key=key, digest=digest)
        except RunStoreError:
            # The same request may have come twice at the same time.
            known = await asyncio.to_thread(self._runs.repeated, key, digest)
            if known is None:
                raise
            return JSONResponse(_shown(known), status_code=200)
        return JSONResponse(_shown(run.record), status_code=202)

    async def run(self, request: Request) -> Response:
        return JSONResponse(_shown(await self._record(request)))

    async def _record(self, request: Request) -> RunRecord:
        id, identity = request.path_params["id"], identity_of(request.scope)

        def read() -> RunRecord:
            found = self._runs.store.get(id, identity.owner)
            if found is None or not self._runs.may_reach(found.session_id, identity):
                raise RunRefused(f"there is no run {id!r}", 404)
            return found

        return await asyncio.to_thread(read)

    async def _recent(self, request: Request) -> Run | None:
        """The run, if it works or ended recently; raises RunRefused if there is none for this token."""
        run, identity = self._runs.find(request.path_params["id"], _owner(request)), identity_of(request.scope)
        if run is None or not identity.sees_all_sessions:
            await self._record(request)
        return run

    async def events(self, request: Request) -> Response:
        """The events as a stream; a client that comes back names the last one it saw in `Last-Event-ID`."""
        run_id, last = request.path_params["id"], request.headers.get("last-event-id", "")
        after = int(last) if last.isascii() and last.isdigit() and len(last) < 12 else number_of(request, "after", 0)
        run = await self._recent(request)
        stored: Sequence[StoredEvent] = ()
        if run is None:
            stored = await asyncio.to_thread(self._runs.store.events, run_id, after)
        if not stored and (run is None or (run.result is not None and after >= len(run.events))):
            # A browser's EventSource comes back when a stream ends; this tells it to stay away.
            return Response(status_code=204)
        identity = identity_of(request.scope)
        self._runs.require_stream(identity)
        return event_stream(self._runs, identity, _stored(stored) if run is None else _live(run, after))

    async def timeline(self, request: Request) -> Response:
        record, live = await self._record(request), self._runs.find(request.path_params["id"], _owner(request))
        if live is not None:
            await self._runs.written(live)
        spans = timeline(await asyncio.to_thread(self._runs.store.events, record.id))
        return JSONResponse({"run": _shown(record), "spans": [msgspec.to_builtins(one) for one in spans]})

    async def stop(self, request: Request) -> Response:
        run = await self._live_run(request)
        run.agent.interrupt("stopped over the API")
        return JSONResponse({"stopping": run.id}, status_code=202)

    async def steer(self, request: Request) -> Response:
        run, wanted = await self._live_run(request), await body_of(request, SteerRequest)
        if run.result is not None:
            return error_response(409, "the run has ended; start another one")
        run.agent.steer(wanted.text)
        return JSONResponse({"steered": run.id}, status_code=202)

    async def _live_run(self, request: Request) -> Run:
        run = await self._recent(request)
        if run is None:
            raise RunRefused(f"the run {request.path_params['id']!r} has ended; start another one", 409)
        return run

    # Approvals and questions

    async def approvals(self, request: Request) -> Response:
        found = [one for one in await self._open(request) if one.request is not None]
        return JSONResponse({"approvals": [_question_shown(one) for one in found]})

    async def open_questions(self, request: Request) -> Response:
        found = [one for one in await self._open(request) if one.request is None]
        return JSONResponse({"questions": [_question_shown(one) for one in found]})

    async def _open(self, request: Request) -> list[OpenQuestion]:
        identity = identity_of(request.scope)

        def read() -> list[OpenQuestion]:
            found = self._questions.open(owner=identity.owner)
            return [one for one in found if self._may_see(one, identity)]

        return await asyncio.to_thread(read)

    def _may_see(self, one: OpenQuestion, identity: TokenIdentity) -> bool:
        """Who answers approvals sees those of every session; in a thread."""
        is_approver = one.request is not None and identity.may("approve")
        return is_approver or self._runs.may_reach(one.session_id, identity)

    async def decide(self, request: Request) -> Response:
        wanted, identity = await body_of(request, DecisionRequest), identity_of(request.scope)
        found = await asyncio.to_thread(self._questions.find, request.path_params["id"], identity.owner)
        require_choice(wanted.choice, identity)
        is_late = not self._questions.is_waiting(found.session_id)
        if wanted.command and (is_late or wanted.choice != "once" or not _is_editable(found)):
            raise RunRefused("only a command that waits can be edited, and only with `once`", 422)
        is_first = await asyncio.to_thread(
            lambda: self._questions.decide(
                found, wanted.choice, wanted.reason, every_scope=wanted.every_scope, command=wanted.command
            )
        )
        if not is_first:
            raise RunRefused("this request was answered already", 409)
        run_id = await self._go_on(found, identity) if is_late and wanted.choice != "deny" else None
        answer = {"decided": found.asked.id, "choice": wanted.choice, "late": is_late, "run_id": run_id}
        return JSONResponse(answer)

    async def _go_on(self, found: OpenQuestion, identity: TokenIdentity) -> str | None:
        """Start a run that goes on after an approval whose own run is gone; None if the session is busy."""
        if self._runs.is_busy(found.session_id):
            return None
        await asyncio.to_thread(self._questions.grant_late, found)
        # The model wrote the command, so what it names does not become the person's words.
        said = replace(user_message(f"I approve now, once: {found.asked.command}\nGo on with it."), origin="derived")
        return (await self._runs.start(found.session_id, said, identity)).id

    async def answer(self, request: Request) -> Response:
        wanted, identity = await body_of(request, AnswerRequest), identity_of(request.scope)
        found = await asyncio.to_thread(self._questions.find, request.path_params["id"], identity.owner)
        if not await asyncio.to_thread(self._may_see, found, identity):
            raise unknown_question(request.path_params["id"])
        if not self._questions.answer(found, wanted.text):
            raise RunRefused("this question was answered already", 409)
        return JSONResponse({"answered": found.asked.id})

    async def audit(self, request: Request) -> Response:
        identity, limit = identity_of(request.scope), limit_of(request)

        def read() -> list[ApprovalRecord]:
            records = self._log.records()[::-1]
            owners = self._sessions.owners({one.request.session_key for one in records})
            # Calls without a session are those of the terminal, which belongs to the owner of the home.
            mine = [one for one in records if owners.get(one.request.session_key, "") == identity.owner]
            reached = (one for one in mine if self._runs.may_reach(one.request.session_key, identity))
            return list(islice(reached, limit))

        found = await asyncio.to_thread(read)
        return JSONResponse({"decisions": [_decision(one) for one in found]})


def _owner(request: Request) -> str:
    return identity_of(request.scope).owner


def _question(wanted: RunRequest) -> Message:
    if any(not one.startswith("data:image/") for one in wanted.images):
        raise msgspec.ValidationError("send images as `data:image/…` URLs; the server fetches none")
    if not wanted.images:
        return user_message(wanted.text)
    return Message(role="user", content=(Text(wanted.text), *(image_at(one) for one in wanted.images)))


def _shown(record: RunRecord) -> JsonObject:
    shown: JsonObject = msgspec.to_builtins(record)
    return {name: value for name, value in shown.items() if name not in ("digest", "owner")}


async def _live(run: Run, after: int) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    async for one in with_pings(run, min(after, len(run.events))):
        yield PING if one is None else _sse(one.number, one.body)


async def _stored(events: Sequence[StoredEvent]) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    for one in events:
        yield _sse(one.number, one.body)


def _sse(number: int, body: str) -> str:
    return f"id: {number}\ndata: {body}\n\n"


def _question_shown(one: OpenQuestion) -> JsonObject:
    shown = {"session_id": one.session_id, "asked_at": one.asked_at, **msgspec.to_builtins(one.asked)}
    if one.request is not None:
        shown |= {**_details(one.request), "editable": _is_editable(one)}
    return shown


def _is_editable(one: OpenQuestion) -> bool:
    """Whether a person may change the command; not if a secret in it is masked, which they would send back."""
    return one.request is not None and one.request.can_be_edited and one.asked.command == one.request.command


def _details(request: ApprovalRequest) -> JsonObject:
    """What a person wants to know before they decide; not in events: a diff holds what files contain."""
    dangers = [
        {"name": one.description, "reason": redact(one.reason), "scope": one.scope, "paths": one.paths}
        for one in request.dangers
    ]
    return {
        "tool": request.tool,
        "title": request.title or request.tool,
        "call_id": request.call_id,
        "cwd": request.cwd,
        "backend": request.backend,
        "dangers": dangers,
        "origins": [redact(str(one)) for one in request.findings if not one.vouched],
        "diff": redact(request.diff),
    }


def _decision(record: ApprovalRecord) -> JsonObject:
    request, answer = record.request, record.answer
    return {
        "id": record.id,
        "code": code_of(record.id),
        "session_id": request.session_key,
        "tool": request.tool,
        "command": request.command,
        "description": request.description,
        "reasons": [danger.reason for danger in request.dangers],
        "asked_at": request.asked_at,
        "answered_at": record.answered_at or None,
        "choice": answer.choice if answer is not None else None,
        "reason": answer.reason if answer is not None else "",
        "decided_by": answer.decided_by if answer is not None else "",
    }


class TimelineSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One bar of the timeline."""

    kind: SpanKind
    name: str
    started_at: float
    ended_at: float | None
    """None while it goes on."""
    id: str = ""
    status: str = ""
    summary: str = ""


class _Timeline:
    """Where the time of a run went, while its events are read."""

    def __init__(self) -> None:
        self.spans: list[TimelineSpan] = []
        self._open: dict[str, int] = {}

    def start(self, key: str, kind: SpanKind, name: str, at: float, summary: str = "") -> None:
        self._open[key] = len(self.spans)
        id = key if kind != "model" else ""
        self.spans.append(TimelineSpan(kind=kind, name=name, started_at=at, ended_at=None, id=id, summary=summary))

    def end(self, key: str, at: float, status: str = "") -> None:
        place = self._open.pop(key, None)
        if place is not None:
            self.spans[place] = msgspec.structs.replace(self.spans[place], ended_at=at, status=status)

    def end_all(self, at: float) -> None:
        for key in list(self._open):
            self.end(key, at)


def timeline(events: Iterable[StoredEvent]) -> list[TimelineSpan]:
    """The spans of a run, in the order in which they started."""
    found = _Timeline()
    name = ""
    for stored in events:
        event: dict[str, Any] = msgspec.json.decode(stored.body)
        match event["event"]:
            case "run_started":
                name = event["model"] or event["provider"]
            case "turn_started":
                found.end(MODEL, stored.at)
                found.start(MODEL, "model", name, stored.at)
            case "call_started":
                found.end(MODEL, stored.at)
                call = event["call"]
                shown = event.get("title") or call["name"]
                found.start(call["id"], "tool", shown, stored.at, event.get("summary", ""))
            case "message_added" if event["message"].get("role") == "assistant":
                found.end(MODEL, stored.at)
            case "call_finished":
                found.end(event["call_id"], stored.at, event["status"])
            case "question_asked":
                found.start(event["id"], "waiting", event["kind"], stored.at, event["text"])
            case "question_answered":
                found.end(event["id"], stored.at, event["answer"])
            case "run_ended":
                found.end_all(stored.at)
    return found.spans
