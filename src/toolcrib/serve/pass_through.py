"""Chat requests whose tools run on the client: the server only passes them to its model.

Asked for by a header. The model gets the client's messages and tools alone, so that no name of theirs can be taken for
one of ours: no agent, no tools and no session of the server take part.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
from starlette.datastructures import Headers

from toolcrib.agent.host import AgentHost, rendered
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.models import Delta, ModelRequest, ModelResponse, TextDelta
from toolcrib.core.types import JsonObject
from toolcrib.serve.openai_requests import BadRequest, content_of
from toolcrib.serve.run_store import RunRecord
from toolcrib.serve.runs import RunManager
from toolcrib.serve.tokens import TokenIdentity

HEADER = "X-Toolcrib-Client-Tools"
PASS_THROUGH = "pass-through"


class ClientFunction(msgspec.Struct, frozen=True):
    """A function of a client, or a call of one."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    arguments: str = ""


class ClientTool(msgspec.Struct, frozen=True):
    """A tool, or a call of one."""

    function: ClientFunction
    id: str = ""


class ClientMessage(msgspec.Struct, frozen=True):
    """A message with calls and results of the client's tools."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ClientTool] | None = None
    tool_call_id: str = ""


class ClientToolsRequest(msgspec.Struct, frozen=True):
    """The part of the body of `POST /v1/chat/completions` that is passed on."""

    messages: list[ClientMessage]
    tools: list[ClientTool] = []


def is_asked(headers: Headers) -> bool:
    return headers.get(HEADER, "").strip().lower() == PASS_THROUGH


class PassedRequest:
    """One request on its way to the model."""

    def __init__(self, host: AgentHost, runs: RunManager, body: bytes, identity: TokenIdentity) -> None:
        """Raises BadRequest and msgspec's errors for a request that means nothing."""
        self._host = host
        self._runs = runs
        self._identity = identity
        wanted = msgspec.json.decode(body, type=ClientToolsRequest)
        system = [one for one in wanted.messages if one.role in ("system", "developer")]
        self._system = "\n\n".join(_text(one) for one in system)
        self._messages = [_message(one) for one in wanted.messages if one.role not in ("system", "developer")]
        if not self._messages:
            raise BadRequest("there is no message to answer", "messages")
        self._definitions = [_definition(one.function) for one in wanted.tools]

    async def pieces(self) -> AsyncIterator[str | ModelResponse]:
        """The pieces of the answer's text, and at last the whole response; raises ModelError."""
        queue: asyncio.Queue[str | None] = asyncio.Queue()

        def emit(delta: Delta) -> None:
            if isinstance(delta, TextDelta):
                queue.put_nowait(delta.text)

        with self._runs.room(self._identity):
            working = asyncio.ensure_future(self._complete(emit))
            working.add_done_callback(lambda _: queue.put_nowait(None))
            try:
                while (piece := await queue.get()) is not None:
                    yield piece
                yield working.result()
            finally:
                working.cancel()

    async def _complete(self, emit: Any) -> ModelResponse:
        provider, model = await asyncio.to_thread(self._host.provider_for)
        tools = rendered(self._definitions, provider.dialect)
        request = ModelRequest(
            model=model, messages=self._messages, system=self._system, tools=tools, definitions=self._definitions
        )
        store = self._runs.store
        record = RunRecord(
            id=f"run_{secrets.token_hex(12)}",
            session_id="",
            state="working",
            created_at=store.clock(),
            owner=self._identity.owner,
        )
        # It counts for the cost of a day.
        await asyncio.to_thread(store.add, record)
        response: ModelResponse | None = None
        try:
            response = await provider.complete(request, emit)
            return response
        finally:
            cost = (response.usage.cost_usd or 0.0) if response is not None else 0.0
            state: Literal["answered", "failed"] = "failed" if response is None else "answered"
            store.end(record.id, state, "", cost)


def calls_shown(message: Message) -> list[JsonObject]:
    """The calls that the client must make, in OpenAI's format."""
    return [
        {"index": at, "id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for at, one in enumerate(message.tool_calls)
    ]


def _message(one: ClientMessage) -> Message:
    calls = tuple(
        RequestedCall(id=call.id, name=call.function.name, arguments=call.function.arguments or "{}")
        for call in one.tool_calls or ()
    )
    if one.role == "tool":
        return Message(role="tool", content=_text(one), call_id=one.tool_call_id)
    role: Literal["user", "assistant"] = "assistant" if one.role == "assistant" else "user"
    return Message(role=role, content=content_of(one.content, "messages"), tool_calls=calls)


def _text(one: ClientMessage) -> str:
    return Message(role="user", content=content_of(one.content, "messages")).text


def _definition(function: ClientFunction) -> JsonObject:
    parameters = function.parameters or {"type": "object", "properties": {}}
    about = {"name": function.name, "description": function.description, "parameters": parameters}
    return {"type": "function", "function": about}
