"""OpenAI's Responses API: answers are stored, and a client continues one by its id."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolcrib.agent.events import CallFinished, CallStarted, RunResult, TextStreamed, TurnStarted
from toolcrib.agent.host import AgentHost
from toolcrib.core.errors import ToolcribError
from toolcrib.core.models import Usage
from toolcrib.core.types import JsonObject
from toolcrib.serve.guard import identity_of
from toolcrib.serve.openai_api import (
    PING,
    SESSION_HEADER,
    answered_run,
    event_stream,
    question_text,
    refused,
    remember,
    session_of_history,
    while_connected,
    with_pings,
)
from toolcrib.serve.openai_requests import (
    MODEL,
    AgentQuestion,
    BadRequest,
    ResponsesRequest,
    api_error,
    question_of_response,
)
from toolcrib.serve.page_routes import page_url
from toolcrib.serve.questions import PendingQuestions, QuestionAsked
from toolcrib.serve.run_store import StoredResponse
from toolcrib.serve.runs import LoggedRunEvent, Run, RunManager
from toolcrib.serve.tokens import TokenIdentity


class ResponsesApi:
    """`/v1/responses`."""

    def __init__(self, host: AgentHost, runs: RunManager, questions: PendingQuestions) -> None:
        self._host = host
        self._runs = runs
        self._questions = questions

    def routes(self) -> list[Route]:
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/{id}", self.get, methods=["GET"]),
            Route("/v1/responses/{id}", self.delete, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        identity = identity_of(request.scope)
        try:
            body = msgspec.json.decode(await request.body(), type=ResponsesRequest)
            asked = question_of_response(body)
            if body.stream:
                self._runs.require_stream(identity)
            run, after = await self._run_for(request, body, asked)
        except (msgspec.MsgspecError, RecursionError, ToolcribError) as error:
            return refused(error)
        page = page_url(request, self._host.settings)
        answer = ResponseAnswer(self._host, self._runs, run, body, asked, identity.key, page)
        headers = {SESSION_HEADER: run.session_id}
        if body.stream:
            return event_stream(self._runs, identity, answer.stream(after), headers)
        return await while_connected(request, answer.whole(after, headers))

    async def _run_for(self, request: Request, body: ResponsesRequest, asked: AgentQuestion) -> tuple[Run, int]:
        identity = identity_of(request.scope)
        held = await answered_run(self._runs, self._questions, asked, identity)
        if held is not None:
            return held
        self._runs.require_room(identity)
        session_id: str | None = None
        if body.previous_response_id is not None:
            session_id = await asyncio.to_thread(self._continued, body.previous_response_id, identity)
        elif asked.history:
            # Clients that keep the history themselves send all of it.
            store = self._host.store
            session_id = await asyncio.to_thread(session_of_history, store, self._runs, asked, identity)
        run = await self._runs.start(session_id, asked.question, identity, instructions=asked.instructions)
        return run, 0

    def _stored(self, response_id: str, identity: TokenIdentity) -> StoredResponse | None:
        """An earlier answer, if the token reaches its session; in a thread."""
        found = self._runs.store.response(response_id, identity.owner)
        return found if found is not None and self._runs.may_reach(found.session_id, identity) else None

    def _continued(self, response_id: str, identity: TokenIdentity) -> str:
        """The session of an earlier answer; a branch of it, if the session has gone on since."""
        earlier = self._stored(response_id, identity)
        session_id = earlier and self._runs.continued(earlier.session_id, earlier.message_id or None)
        if not session_id:
            raise BadRequest(f"there is no response {response_id!r}; send the whole history", "previous_response_id")
        return session_id

    async def get(self, request: Request) -> Response:
        id = request.path_params["id"]
        found = await asyncio.to_thread(self._stored, id, identity_of(request.scope))
        if found is None:
            return api_error(404, f"there is no response {id!r}")
        return Response(found.body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        id, identity = request.path_params["id"], identity_of(request.scope)
        found = await asyncio.to_thread(self._stored, id, identity)
        if found is None or not await asyncio.to_thread(self._runs.store.delete_response, id, identity.owner):
            return api_error(404, f"there is no response {id!r}")
        return JSONResponse({"id": id, "object": "response", "deleted": True})


class ResponseAnswer:
    """One answer: a message, and the calls of our own tools as completed items."""

    def __init__(
        self,
        host: AgentHost,
        runs: RunManager,
        run: Run,
        body: ResponsesRequest,
        asked: AgentQuestion,
        token_key: str,
        page: str,
    ) -> None:
        self._host = host
        self._runs = runs
        self._run = run
        self._body = body
        self._asked = asked
        self._token_key = token_key
        self._page = page
        self._id = f"resp_{secrets.token_hex(16)}"
        self._created = int(runs.store.clock())
        self._items: list[JsonObject] = []
        self._arguments: dict[str, str] = {}
        self._sequence = 0

    async def whole(self, after: int, headers: dict[str, str]) -> Response:
        """The whole answer; if the run has a question, the answer so far with the question, and the run goes on
        waiting."""
        with self._run.client():
            async for one in self._run.follow(after):
                self._events(one)
                if self._run.waits_for(one):
                    break
            self._end_message()
            return JSONResponse(await asyncio.to_thread(self._finished), headers=headers)

    async def stream(self, after: int) -> AsyncIterator[str]:
        with self._run.client():
            yield self._event("response.created", response=self._response("in_progress"))
            async for one in with_pings(self._run, after):
                if one is None:
                    yield PING
                    continue
                for event in self._events(one):
                    yield event
            for event in self._end_message():
                yield event
            response = await asyncio.to_thread(self._finished)
            yield self._event(f"response.{response['status']}", response=response)

    def _end_message(self) -> list[str]:
        result, events = self._run.result, []
        if result is not None and result.problem:
            events = self._say(f"\n\n{result.problem}" if result.answer else result.problem)
        return [*events, *self._close_message()]

    def _finished(self) -> JsonObject:
        """The response as it is stored; a run that waits for a person is no reason for a client to fail."""
        result, state = self._run.result, "completed"
        if result is not None and (result.outcome == "failed" or result.is_incomplete):
            state = "failed" if result.outcome == "failed" else "incomplete"
        response = self._response(state, result)
        said = [item["content"][0]["text"] for item in self._items if item["type"] == "message"]
        remember(self._runs, self._run, self._asked, "".join(said), self._token_key)
        if self._body.store is not False:
            session_id = self._run.session_id
            stored = StoredResponse(
                id=self._id,
                session_id=session_id,
                message_id=self._host.store.newest_message(session_id) if result is not None else 0,
                body=json.dumps(response, ensure_ascii=False),
                owner=self._run.record.owner,
            )
            self._runs.store.add_response(stored)
        return response

    def _events(self, one: LoggedRunEvent) -> list[str]:
        event = one.event
        if isinstance(event, TextStreamed):
            return self._say(event.text)
        if isinstance(event, QuestionAsked):
            return self._say(f"\n\n{question_text(event, self._page)}\n\n")
        if isinstance(event, TurnStarted):
            return self._close_message()
        if isinstance(event, CallStarted):
            self._arguments[event.call.id] = event.call.arguments
            return []
        if isinstance(event, CallFinished):
            return [*self._close_message(), *self._call(event)]
        return []

    # The message that is being written

    def _say(self, text: str) -> list[str]:
        events = []
        if not self._items or self._items[-1].get("status") != "in_progress":
            item: JsonObject = {
                "id": f"msg_{secrets.token_hex(12)}",
                "type": "message",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
            self._items.append(item)
            events.append(self._event("response.output_item.added", output_index=self._index, item=dict(item)))
            item["content"] = [{"type": "output_text", "text": "", "annotations": []}]
            events.append(self._part("response.content_part.added", part=dict(item["content"][0])))
        self._items[-1]["content"][0]["text"] += text
        events.append(self._part("response.output_text.delta", delta=text, logprobs=[]))
        return events

    def _close_message(self) -> list[str]:
        if not self._items or self._items[-1].get("status") != "in_progress":
            return []
        item = self._items[-1]
        part = item["content"][0]
        done = [
            self._part("response.output_text.done", text=part["text"], logprobs=[]),
            self._part("response.content_part.done", part=part),
        ]
        item["status"] = "completed"
        return [*done, self._event("response.output_item.done", output_index=self._index, item=item)]

    def _call(self, event: CallFinished) -> list[str]:
        call = {
            "id": f"fc_{secrets.token_hex(12)}",
            "type": "function_call",
            "status": "completed",
            "call_id": event.call_id,
            "name": event.name,
            "arguments": self._arguments.pop(event.call_id, "{}"),
        }
        output = {
            "id": f"fco_{secrets.token_hex(12)}",
            "type": "function_call_output",
            "status": "completed",
            "call_id": event.call_id,
            "output": event.text,
        }
        events = []
        for item in (call, output):
            self._items.append(item)
            events.append(self._event("response.output_item.added", output_index=self._index, item=item))
            events.append(self._event("response.output_item.done", output_index=self._index, item=item))
        return events

    @property
    def _index(self) -> int:
        return len(self._items) - 1

    def _part(self, kind: str, **more: Any) -> str:
        item = self._items[-1]
        return self._event(kind, item_id=item["id"], output_index=self._index, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> str:
        body = {"type": kind, "sequence_number": self._sequence, **more}
        self._sequence += 1
        return f"event: {kind}\ndata: {json.dumps(body, ensure_ascii=False)}\n\n"

    def _response(self, status: str, result: RunResult | None = None) -> JsonObject:
        usage = result.usage if result is not None else None
        failed = {"code": "server_error", "message": result.problem} if result and status == "failed" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": failed,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self._body.instructions,
            "model": MODEL,
            "output": list(self._items),
            "parallel_tool_calls": True,
            "previous_response_id": self._body.previous_response_id,
            "tool_choice": "auto",
            "tools": [],
            "metadata": self._body.metadata or {},
            "usage": _usage(usage) if usage is not None else None,
        }


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
