"""OpenAI's Responses API: answers are stored, and a client continues one by its id."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from toolcrib.agent.events import CallFinished, CallStarted, RunResult, TextStreamed, TurnStarted
from toolcrib.agent.host import AgentHost
from toolcrib.core.models import Usage
from toolcrib.core.types import JsonObject
from toolcrib.serve.openai_api import (
    PING,
    SESSION_HEADER,
    STREAM_HEADERS,
    api_error,
    import_history,
    question_text,
    refused,
    transcript_digest,
    with_pings,
)
from toolcrib.serve.openai_requests import MODEL, AgentQuestion, BadRequest, ResponsesRequest, question_of_response
from toolcrib.serve.questions import QuestionAsked
from toolcrib.serve.run_store import StoredResponse
from toolcrib.serve.runs import LoggedRunEvent, Run, RunManager, RunRefused


class ResponsesApi:
    """`/v1/responses`."""

    def __init__(self, host: AgentHost, runs: RunManager) -> None:
        self._host = host
        self._runs = runs

    def routes(self) -> list[Route]:
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/{id}", self.get, methods=["GET"]),
            Route("/v1/responses/{id}", self.delete, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        try:
            body = msgspec.json.decode(await request.body(), type=ResponsesRequest)
            asked = question_of_response(body)
            run = self._run_for(body, asked)
        except msgspec.MsgspecError as error:
            return api_error(400, str(error))
        except BadRequest as error:
            return api_error(400, str(error), error.param)
        except RunRefused as error:
            return refused(error)
        answer = ResponseAnswer(self._host, self._runs, run, body)
        headers = {SESSION_HEADER: run.session_id}
        if body.stream:
            return StreamingResponse(answer.stream(), media_type="text/event-stream", headers=headers | STREAM_HEADERS)
        return JSONResponse(await answer.whole(), headers=headers)

    def _run_for(self, body: ResponsesRequest, asked: AgentQuestion) -> Run:
        self._runs.require_room()
        store = self._host.store
        session_id: str | None = None
        if body.previous_response_id is not None:
            session_id = self._continued(body.previous_response_id)
        elif asked.history:
            # Clients that keep the history themselves send all of it.
            session_id = self._runs.store.session_for(transcript_digest(asked.visible)) or import_history(store, asked)
        return self._runs.start(self._runs.agent(session_id, asked.instructions), asked.question)

    def _continued(self, response_id: str) -> str:
        """The session of an earlier answer; a branch of it, if the session has gone on since."""
        earlier = self._runs.store.response(response_id)
        if earlier is None:
            raise BadRequest(f"there is no response {response_id!r}; send the whole history", "previous_response_id")
        store = self._host.store
        if store.newest_message(earlier.session_id) == earlier.message_id:
            return earlier.session_id
        return store.branch(earlier.session_id, up_to=earlier.message_id).id

    async def get(self, request: Request) -> Response:
        found = self._runs.store.response(request.path_params["id"])
        if found is None:
            return api_error(404, f"there is no response {request.path_params['id']!r}")
        return Response(found.body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        id = request.path_params["id"]
        if not self._runs.store.delete_response(id):
            return api_error(404, f"there is no response {id!r}")
        return JSONResponse({"id": id, "object": "response", "deleted": True})


class ResponseAnswer:
    """One answer: a message, and the calls of our own tools as completed items."""

    def __init__(self, host: AgentHost, runs: RunManager, run: Run, body: ResponsesRequest) -> None:
        self._host = host
        self._runs = runs
        self._run = run
        self._body = body
        self._id = f"resp_{secrets.token_hex(16)}"
        self._created = int(runs.store.clock())
        self._items: list[JsonObject] = []
        self._arguments: dict[str, str] = {}
        self._sequence = 0

    async def whole(self) -> JsonObject:
        async for _ in self.stream():
            pass
        return self._response("completed")

    async def stream(self) -> AsyncIterator[str]:
        try:
            yield self._event("response.created", response=self._response("in_progress"))
            async for one in with_pings(self._run, 0):
                if one is None:
                    yield PING
                    continue
                for event in self._events(one):
                    yield event
            result = self._run.result
            assert result is not None
            if result.problem:
                for event in self._say(f"\n\n{result.problem}" if result.answer else result.problem):
                    yield event
            for event in self._close_message():
                yield event
            yield self._finished(result)
        finally:
            if self._run.result is None and not self._run.is_waiting:
                self._run.agent.interrupt("the client left")

    def _finished(self, result: RunResult) -> str:
        state = "failed" if result.outcome == "failed" else "incomplete" if result.is_incomplete else "completed"
        response = self._response(state, result)
        if self._body.store is not False:
            stored = StoredResponse(
                id=self._id,
                session_id=self._run.session_id,
                message_id=self._host.store.newest_message(self._run.session_id),
                body=json.dumps(response, ensure_ascii=False),
            )
            self._runs.store.add_response(stored)
        return self._event(f"response.{state}", response=response)

    def _events(self, one: LoggedRunEvent) -> list[str]:
        event = one.event
        if isinstance(event, TextStreamed):
            return self._say(event.text)
        if isinstance(event, QuestionAsked):
            return self._say(f"\n\n{question_text(event)}\n\n")
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
