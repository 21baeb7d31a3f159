"""Sessions over the API: list, create, search, rename, fork, export, delete; and what they did to files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolcrib.agent.host import AgentHost
from toolcrib.core.errors import SessionError
from toolcrib.core.types import JsonObject
from toolcrib.serve.api_routes import LIMIT, OFFSET, ApiRoute, QueryParameter, body_of, limit_of, number_of, text_of
from toolcrib.serve.guard import identity_of
from toolcrib.serve.questions import PLATFORM
from toolcrib.serve.runs import RunManager, RunRefused
from toolcrib.serve.tokens import TokenIdentity
from toolcrib.sessions.export import as_markdown, as_openai, as_sharegpt, masked, read_transcript
from toolcrib.sessions.records import Session, StoredMessage
from toolcrib.sessions.search import SearchRequest, search_messages
from toolcrib.undo.history import UndoResult

MAX_QUERY_CHARS = 1_000
FORMATS = ("markdown", "openai", "sharegpt")


class SessionDraft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/sessions`."""

    title: str = ""


class SessionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `PATCH /api/sessions/{id}`."""

    title: str


class ForkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/sessions/{id}/fork`."""

    up_to: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    """The last message to copy; all without it."""


class UndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/sessions/{id}/undo`."""

    action: Literal["undo", "redo"] = "undo"
    to: str | None = None
    """Undo everything back to and including this call; without it, the latest call alone."""
    force: bool = False
    """Also restore files that changed since."""
    dry_run: bool = False
    """Only say what would be done."""


class SessionsApi:
    """`/api/sessions`."""

    def __init__(self, host: AgentHost, runs: RunManager) -> None:
        self._host = host
        self._runs = runs

    def routes(self) -> list[ApiRoute]:
        one = "/api/sessions/{id}"
        export = QueryParameter("format", "One of markdown, openai and sharegpt.")
        return [
            ApiRoute(method="GET", path="/api/sessions", handler=self.sessions, summary="List sessions.",
                     query=(LIMIT, OFFSET)),
            ApiRoute(method="POST", path="/api/sessions", handler=self.create, summary="Open a session.",
                     body=SessionDraft, statuses=(201,)),
            ApiRoute(method="GET", path="/api/sessions/search", handler=self.search, summary="Search all messages.",
                     query=(QueryParameter("q", "The words to find.", is_required=True), LIMIT)),
            ApiRoute(method="GET", path=one, handler=self.session, summary="One session."),
            ApiRoute(method="PATCH", path=one, handler=self.rename, summary="Rename a session.", body=SessionChange),
            ApiRoute(method="DELETE", path=one, handler=self.delete, summary="Delete a session."),
            ApiRoute(method="GET", path=f"{one}/messages", handler=self.messages, summary="Its messages."),
            ApiRoute(method="POST", path=f"{one}/fork", handler=self.fork, summary="Copy a session into a new one.",
                     body=ForkRequest, statuses=(201,)),
            ApiRoute(method="GET", path=f"{one}/export", handler=self.export, summary="A session as a document.",
                     query=(export,)),
            ApiRoute(method="GET", path=f"{one}/changes", handler=self.changes,
                     summary="The files that a session changed, and the calls that can be undone."),
            ApiRoute(method="GET", path=f"{one}/diff", handler=self.diff, summary="What a session did to a file.",
                     query=(QueryParameter("path", "The file.", is_required=True),)),
            ApiRoute(method="POST", path=f"{one}/undo", handler=self.undo, body=UndoRequest,
                     summary="Undo or redo what calls did to files, or preview that."),
        ]  # fmt: skip

    async def sessions(self, request: Request) -> Response:
        identity = identity_of(request.scope)
        limit, offset = limit_of(request), number_of(request, "offset", 0)
        source = None if identity.sees_all_sessions else PLATFORM

        def listed() -> list[JsonObject]:
            store = self._host.store
            found = store.list(limit=limit, offset=offset, source=source, owner=identity.owner)
            return [self._shown(one, store.first_words(one.id)) for one in found]

        return JSONResponse({"sessions": await asyncio.to_thread(listed)})

    async def create(self, request: Request) -> Response:
        draft = await body_of(request, SessionDraft)
        owner = identity_of(request.scope).owner
        session = await asyncio.to_thread(self._runs.new_session, owner, draft.title)
        return JSONResponse(self._shown(session), status_code=201)

    async def search(self, request: Request) -> Response:
        identity, typed, limit = identity_of(request.scope), text_of(request, "q"), limit_of(request, 20)
        if len(typed) > MAX_QUERY_CHARS:
            raise msgspec.ValidationError(f"'q' may have at most {MAX_QUERY_CHARS:,} characters")
        return JSONResponse({"hits": await asyncio.to_thread(self._hits, typed, limit, identity)})

    def _hits(self, typed: str, limit: int, identity: TokenIdentity) -> list[JsonObject]:
        store = self._host.store
        # Some tokens see only what the server opened, so there may be fewer.
        found = search_messages(store, typed, limit=limit, wanted=SearchRequest(owner=identity.owner))
        shown = [(hit, text) for hit, text in found if identity.sees_all_sessions or hit.source == PLATFORM]
        titles = {hit.session_id: store.get(hit.session_id).title for hit, _ in shown}
        return [{**msgspec.to_builtins(hit), "title": titles[hit.session_id], "text": text} for hit, text in shown]

    async def session(self, request: Request) -> Response:
        return JSONResponse(self._shown(await self._session(request)))

    async def rename(self, request: Request) -> Response:
        session, change = await self._session(request), await body_of(request, SessionChange)
        await asyncio.to_thread(lambda: self._host.store.update(session.id, title=change.title))
        return JSONResponse(self._shown(await self._session(request)))

    async def delete(self, request: Request) -> Response:
        async with self._idle_session(request) as session:
            count = await self._runs.delete_session(session.id)
        return JSONResponse({"deleted": session.id, "subagents": count - 1})

    async def messages(self, request: Request) -> Response:
        session = await self._session(request)
        found = await asyncio.to_thread(self._host.store.messages, session.id)
        return JSONResponse({"messages": [_message(one) for one in found]})

    async def fork(self, request: Request) -> Response:
        session = await self._session(request)
        wanted = await body_of(request, ForkRequest) if await request.body() else ForkRequest()
        try:
            copy = await asyncio.to_thread(lambda: self._host.store.branch(session.id, up_to=wanted.up_to))
        except SessionError as error:
            raise RunRefused(str(error), 422) from error
        return JSONResponse(self._shown(copy), status_code=201)

    async def export(self, request: Request) -> Response:
        kind = request.query_params.get("format", "markdown")
        if kind not in FORMATS:
            raise msgspec.ValidationError(f"the format {kind!r} is not known; use one of {', '.join(FORMATS)}")
        session = await self._session(request)
        transcript = await asyncio.to_thread(lambda: masked(read_transcript(self._host.store, session.id)))
        if kind == "markdown":
            return JSONResponse({"format": kind, "text": as_markdown(transcript)})
        return JSONResponse(as_openai(transcript) if kind == "openai" else as_sharegpt(transcript))

    # Files

    async def changes(self, request: Request) -> Response:
        session, history = await self._session(request), self._host.file_history
        files = await asyncio.to_thread(history.changed, session.id)
        calls = await asyncio.to_thread(history.calls, session.id)
        return JSONResponse(
            {
                "files": [asdict(one) for one in files],
                "calls": [{**asdict(one), "undone": one.undone, "can_be_undone": one.can_be_undone} for one in calls],
            }
        )

    async def diff(self, request: Request) -> Response:
        session, path = await self._session(request), text_of(request, "path")
        if "\0" in path:
            raise msgspec.ValidationError("a path cannot contain a NUL byte")
        text = await asyncio.to_thread(self._host.file_history.diff, session.id, path)
        return JSONResponse({"path": path, "diff": text})

    async def undo(self, request: Request) -> Response:
        wanted = await body_of(request, UndoRequest)
        if wanted.dry_run:
            done = await asyncio.to_thread(self._undone, (await self._session(request)).id, wanted)
        else:
            async with self._idle_session(request) as session:
                done = await asyncio.to_thread(self._undone, session.id, wanted)
        calls = [one.call_id for one in done.calls]
        return JSONResponse({"dry_run": wanted.dry_run, "calls": calls, "files": [asdict(one) for one in done.files]})

    def _undone(self, session_id: str, wanted: UndoRequest) -> UndoResult:
        history, force, dry_run = self._host.file_history, wanted.force, wanted.dry_run
        if wanted.action == "redo":
            return history.redo(session_id, force=force, dry_run=dry_run)
        if wanted.to is not None:
            return history.undo_to(session_id, wanted.to, force=force, dry_run=dry_run)
        return history.undo_calls(session_id, force=force, dry_run=dry_run)

    async def _session(self, request: Request) -> Session:
        """The session in the path."""
        return await self._runs.session(request.path_params["id"], identity_of(request.scope))

    @asynccontextmanager
    async def _idle_session(self, request: Request) -> AsyncIterator[Session]:
        """The session in the path, while no run works on it and none starts."""
        with self._runs.reserved((await self._session(request)).id):
            # It may have been deleted in the meantime.
            yield await self._session(request)

    def _shown(self, session: Session, first_words: str = "") -> JsonObject:
        shown: JsonObject = msgspec.to_builtins(session)
        working = self._runs.of_session(session.id)
        shown |= {"first_words": first_words, "working_run": working.id if working is not None else None}
        return {name: value for name, value in shown.items() if name not in ("system_prompt", "owner")}


def _message(stored: StoredMessage) -> JsonObject:
    usage = msgspec.to_builtins(stored.usage) if stored.usage is not None else None
    about = {"id": stored.id, "created_at": stored.created_at, "turn_id": stored.turn_id, "usage": usage}
    return {**about, **msgspec.to_builtins(stored.message)}
