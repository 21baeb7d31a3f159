"""toolcrib's own API: sessions, runs with their events, approvals and questions, and tools."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolcrib.agent.host import AgentHost
from toolcrib.config.redact import redact
from toolcrib.core.approvals import ApprovalRequest
from toolcrib.core.errors import SessionError, UnknownName, UnknownSession
from toolcrib.core.messages import Image, Message, attachment, user_message
from toolcrib.core.types import JsonObject
from toolcrib.http_server import error_response
from toolcrib.serve.guard import identity_of
from toolcrib.serve.openai_api import PING, event_stream, with_pings
from toolcrib.serve.questions import PLATFORM, OpenQuestion, PendingQuestions, UnknownQuestion
from toolcrib.serve.run_store import RunStoreError, StoredEvent
from toolcrib.serve.runs import Run, RunManager, RunRefused, digest_of
from toolcrib.sessions.records import Session, StoredMessage

MAX_ROWS = 200
RETRY_MS = 1000

T = TypeVar("T")


class AttachedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image or a text that goes along with a question."""

    name: str
    media_type: str
    data: str
    """Base64."""


class RunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/runs`."""

    text: str
    session_id: str | None = None
    attachments: tuple[AttachedFile, ...] = ()

    def message(self) -> Message:
        """The question as a message: texts follow it between marks, images are parts of their own."""
        images = [Image(media_type=one.media_type, data=one.data) for one in self.attachments if _is_image(one)]
        texts = [attachment(one.name, _text_of(one)) for one in self.attachments if not _is_image(one)]
        return user_message(self.text + "".join(texts), images)


class SteerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


class SessionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/approvals/{id}`."""

    choice: str
    reason: str = ""
    every_scope: bool = False


class AnswerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


class NativeApi:
    """`/api`."""

    def __init__(self, host: AgentHost, runs: RunManager, questions: PendingQuestions) -> None:
        self._host = host
        self._runs = runs
        self._questions = questions

    def routes(self) -> list[Route]:
        return [
            Route("/api/sessions", self.sessions, methods=["GET"]),
            Route("/api/sessions/{id}", self.session, methods=["GET"]),
            Route("/api/sessions/{id}", self.rename, methods=["PATCH"]),
            Route("/api/sessions/{id}", self.delete, methods=["DELETE"]),
            Route("/api/sessions/{id}/messages", self.messages, methods=["GET"]),
            Route("/api/sessions/{id}/fork", self.fork, methods=["POST"]),
            Route("/api/runs", self.runs, methods=["GET"]),
            Route("/api/runs", self.start, methods=["POST"]),
            Route("/api/runs/{id}", self.run, methods=["GET"]),
            Route("/api/runs/{id}/events", self.events, methods=["GET"]),
            Route("/api/runs/{id}/stop", self.stop, methods=["POST"]),
            Route("/api/runs/{id}/steer", self.steer, methods=["POST"]),
            Route("/api/approvals", self.approvals, methods=["GET"]),
            Route("/api/approvals/{id}", self.decide, methods=["POST"]),
            Route("/api/questions", self.open_questions, methods=["GET"]),
            Route("/api/questions/{id}", self.answer, methods=["POST"]),
            Route("/api/tools", self.tools, methods=["GET"]),
        ]

    # Sessions

    async def sessions(self, request: Request) -> Response:
        limit, offset = _number(request, "limit", 50), _number(request, "offset", 0)
        source = None if identity_of(request.scope).may("admin") else PLATFORM
        found = self._host.store.list(limit=min(limit, MAX_ROWS), offset=offset, source=source)
        return JSONResponse({"sessions": [_session(one) for one in found]})

    async def session(self, request: Request) -> Response:
        return JSONResponse(_session(self._session(request)))

    async def rename(self, request: Request) -> Response:
        session, change = self._session(request), await _body(request, SessionChange)
        self._host.store.update(session.id, title=change.title)
        return JSONResponse(_session(self._host.store.get(session.id)))

    async def delete(self, request: Request) -> Response:
        session = self._session(request)
        if self._runs.of_session(session.id) is not None:
            raise RunRefused(f"a run is working on session {session.id!r}; stop it first", 409)
        self._host.store.delete(session.id)
        return JSONResponse({"deleted": session.id})

    async def messages(self, request: Request) -> Response:
        session = self._session(request)
        found = self._host.store.messages(session.id)
        return JSONResponse({"messages": [_message(one) for one in found]})

    async def fork(self, request: Request) -> Response:
        session = self._session(request)
        return JSONResponse(_session(self._host.store.branch(session.id)), status_code=201)

    def _session(self, request: Request) -> Session:
        """The session in the path."""
        return self._runs.session(request.path_params["id"], identity_of(request.scope))

    # Runs

    async def runs(self, request: Request) -> Response:
        limit = min(_number(request, "limit", 50), MAX_ROWS)
        found = self._runs.store.list(session_id=request.query_params.get("session"), limit=limit)
        return JSONResponse({"runs": [msgspec.to_builtins(one) for one in found]})

    async def start(self, request: Request) -> Response:
        wanted = await _body(request, RunRequest)
        if not wanted.text.strip():
            return error_response(422, "the text of the question is empty")
        identity, key = identity_of(request.scope), request.headers.get("idempotency-key")
        # A key belongs to a token: another one must not find the run by guessing.
        key, digest = key and digest_of(identity.name, key), digest_of(msgspec.to_builtins(wanted))
        known = self._runs.repeated(key, digest)
        if known is not None:
            return JSONResponse(msgspec.to_builtins(known), status_code=200)
        self._runs.require_room()
        session_id = None if wanted.session_id is None else self._runs.session(wanted.session_id, identity).id
        run = self._runs.start(self._runs.agent(session_id), wanted.message(), key, digest)
        return JSONResponse(msgspec.to_builtins(run.record), status_code=202)

    async def run(self, request: Request) -> Response:
        found = self._runs.store.get(request.path_params["id"])
        if found is None:
            return _no_run(request)
        return JSONResponse(msgspec.to_builtins(found))

    async def events(self, request: Request) -> Response:
        """The events as a stream; a client that comes back names the last one it saw in `Last-Event-ID`."""
        run_id, last = request.path_params["id"], request.headers.get("last-event-id", "")
        after = int(last) if last.isascii() and last.isdigit() and len(last) < 12 else _number(request, "after", 0)
        run = self._runs.find(run_id)
        if run is None and self._runs.store.get(run_id) is None:
            return _no_run(request)
        stored = [] if run is not None else self._runs.store.events(run_id, after)
        if not stored and (run is None or (run.result is not None and after >= len(run.events))):
            # A browser's EventSource comes back when a stream ends; this tells it to stay away.
            return Response(status_code=204)
        self._runs.require_stream()
        events = _stored(stored) if run is None else _live(run, after)
        return event_stream(self._runs, events)

    async def stop(self, request: Request) -> Response:
        run = self._runs.find(request.path_params["id"])
        if run is None:
            return _no_run(request)
        run.agent.interrupt("stopped over the API")
        return JSONResponse({"stopping": run.id}, status_code=202)

    async def steer(self, request: Request) -> Response:
        run, wanted = self._runs.find(request.path_params["id"]), await _body(request, SteerRequest)
        if run is None:
            return _no_run(request)
        if run.result is not None:
            return error_response(409, "the run has ended; start another one")
        run.agent.steer(wanted.text)
        return JSONResponse({"steered": run.id}, status_code=202)

    # Approvals and questions

    async def approvals(self, request: Request) -> Response:
        found = [one for one in self._questions.open() if one.request is not None]
        return JSONResponse({"approvals": [_question(one) for one in found]})

    async def open_questions(self, request: Request) -> Response:
        found = [one for one in self._questions.open() if one.request is None]
        return JSONResponse({"questions": [_question(one) for one in found]})

    async def decide(self, request: Request) -> Response:
        wanted = await _body(request, DecisionRequest)
        found = self._questions.find(request.path_params["id"])
        is_waiting = self._questions.is_waiting(found.session_id)
        if not self._questions.decide(found, wanted.choice, wanted.reason, every_scope=wanted.every_scope):
            raise RunRefused("this request was answered already", 409)
        return JSONResponse({"decided": found.asked.id, "choice": wanted.choice, "late": not is_waiting})

    async def answer(self, request: Request) -> Response:
        wanted = await _body(request, AnswerRequest)
        found = self._questions.find(request.path_params["id"])
        if not self._questions.answer(found, wanted.text):
            raise RunRefused("this question was answered already", 409)
        return JSONResponse({"answered": found.asked.id})

    # Tools

    async def tools(self, request: Request) -> Response:
        runtime = self._host.runtime
        rows = [
            {"name": entry.name, "toolset": entry.toolset, "description": entry.description, "emoji": entry.emoji}
            for entry in sorted(runtime.registry.entries(), key=lambda one: one.name)
        ]
        return JSONResponse({"tools": rows})


def handled_errors() -> dict[Any, Any]:
    """The responses for what routes raise, for Starlette."""
    return {
        msgspec.MsgspecError: lambda _, error: error_response(422, str(error)),
        RunRefused: lambda _, error: error_response(error.status, str(error)),
        UnknownQuestion: lambda _, error: error_response(404, str(error)),
        UnknownSession: lambda _, error: error_response(404, str(error)),
        SessionError: lambda _, error: error_response(503, str(error)),
        RunStoreError: lambda _, error: error_response(503, str(error)),
        RecursionError: lambda *_: error_response(422, "the JSON is nested too deeply"),
        UnknownName: lambda _, error: error_response(422, str(error)),
    }


async def _body(request: Request, kind: type[T]) -> T:
    return msgspec.json.decode(await request.body(), type=kind)


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise msgspec.ValidationError(f"{name!r} must be a whole number")
    return int(text)


async def _live(run: Run, after: int) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    async for one in with_pings(run, min(after, len(run.events))):
        yield PING if one is None else _sse(one.number, msgspec.json.encode(one.event).decode())


async def _stored(events: Sequence[StoredEvent]) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    for one in events:
        yield _sse(one.number, one.body)


def _is_image(one: AttachedFile) -> bool:
    return one.media_type.startswith("image/")


def _text_of(one: AttachedFile) -> str:
    try:
        return base64.b64decode(one.data, validate=True).decode()
    except ValueError:
        raise msgspec.ValidationError(f"the attached file {one.name!r} is neither an image nor UTF-8 text") from None


def _no_run(request: Request) -> Response:
    return error_response(404, f"there is no run {request.path_params['id']!r}")


def _sse(number: int, body: str) -> str:
    return f"id: {number}\ndata: {body}\n\n"


def _session(session: Session) -> JsonObject:
    shown: JsonObject = msgspec.to_builtins(session)
    return {name: value for name, value in shown.items() if name != "system_prompt"}


def _message(stored: StoredMessage) -> JsonObject:
    message: Message = stored.message
    return {"id": stored.id, "created_at": stored.created_at, **msgspec.to_builtins(message)}


def _question(one: OpenQuestion) -> JsonObject:
    shown: JsonObject = {"session_id": one.session_id, "asked_at": one.asked_at, **msgspec.to_builtins(one.asked)}
    return shown if one.request is None else shown | _details(one.request)


def _details(request: ApprovalRequest) -> JsonObject:
    """What a person wants to know before they decide; never stored with the run, because a diff holds file content."""
    dangers = [
        {"name": one.description, "reason": redact(one.reason), "scope": one.scope, "paths": one.paths}
        for one in request.dangers
    ]
    return {
        "tool": request.title or request.tool,
        "call_id": request.call_id,
        "cwd": request.cwd,
        "backend": request.backend,
        "dangers": dangers,
        "origins": [redact(str(one)) for one in request.findings if not one.vouched],
        "diff": redact(request.diff),
    }
