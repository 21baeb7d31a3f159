"""Tool calls over stdio without the SDK in between: the one request that is made thousands of times.

The SDK opens the connection, agrees on the protocol, lists, listens and answers what the server asks. For a call it
would build, check and copy each message several times, which takes longer than many a tool. So calls are written and
read here, beside its own messages on the same pipes, under ids that it does not use.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from mcp import MCPError
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from opentelemetry import propagate, trace

from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.errors import ConnectionLost, RequestFailed

FIRST_ID = 1_000_000
"""The SDK counts its own requests from one."""
STAMPS = "io.modelcontextprotocol/"

Tell = Callable[[float, float | None, str | None], None]
"""Hears how far a call is."""


class Pipe(Protocol):
    """Where messages are written to."""

    async def write(self, data: bytes) -> None:
        """Raises NotSent when the server is gone, and nothing was written."""
        ...


class _Waiting(msgspec.Struct):
    answer: asyncio.Future[JsonObject]
    tell: Tell | None


class DirectCalls:
    """The calls of one connection that have no answer yet."""

    def __init__(self) -> None:
        self.pipe: Pipe | None = None
        """Set by the transport when it is open."""
        self._stamp: JsonObject = {}
        self._waiting: dict[int, _Waiting] = {}
        self._ids = itertools.count(FIRST_ID)

    async def call(self, tool: str, arguments: JsonObject, tell: Tell | None) -> JsonObject:
        """The raw result of `tools/call`; whoever is cancelled tells the server."""
        assert self.pipe is not None
        number = next(self._ids)
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        line = _line({"id": number, "method": "tools/call", "params": self._params(number, tool, arguments, tell)})
        self._waiting[number] = _Waiting(answer, tell)
        try:
            await self.pipe.write(line)
            return await answer
        except asyncio.CancelledError:
            told = {"requestId": number, "reason": "the caller does not wait any more"}
            notice = _line({"method": "notifications/cancelled", "params": told})
            # Not awaited: the one who would wait is gone. A server that is gone too needs no notice.
            _begin(self.pipe.write(notice))
            raise
        finally:
            del self._waiting[number]

    def _params(self, number: int, tool: str, arguments: JsonObject, tell: Tell | None) -> JsonObject:
        params: JsonObject = {"name": tool, "arguments": arguments}
        meta = self._stamp
        if tell is not None:
            meta = {**meta, "progressToken": number}
        if trace.get_current_span().is_recording():
            meta = dict(meta)
            propagate.inject(meta)
        if meta:
            params["_meta"] = meta
        return params

    def learn(self, request: JSONRPCRequest) -> None:
        """See with what the SDK marks its requests in the newer protocol: calls must carry the same."""
        if request.method == "tools/list" and request.params:
            meta = request.params.get("_meta") or {}
            self._stamp = {key: value for key, value in meta.items() if key.startswith(STAMPS)}

    def takes(self, message: Any) -> bool:
        """Whether a message belongs to a call here; then it is dealt with."""
        if isinstance(message, JSONRPCNotification):
            return message.method == "notifications/progress" and self._progress(message.params or {})
        if not isinstance(message, (JSONRPCResponse, JSONRPCError)) or not isinstance(message.id, int):
            return False
        waiting = self._waiting.get(message.id)
        if waiting is None:
            # An answer to a call that nobody waits for any more is not the SDK's either.
            return message.id >= FIRST_ID
        if not waiting.answer.done():
            if isinstance(message, JSONRPCResponse):
                waiting.answer.set_result(message.result)
            else:
                waiting.answer.set_exception(MCPError.from_jsonrpc_error(message))
        return True

    def lose(self, reason: str) -> None:
        """No more answers will come."""
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(ConnectionLost(reason))

    def _progress(self, params: JsonObject) -> bool:
        token, done = params.get("progressToken"), params.get("progress")
        if not isinstance(token, int) or isinstance(token, bool) or token < FIRST_ID:
            return False
        waiting = self._waiting.get(token)
        if waiting is not None and waiting.tell is not None and isinstance(done, (int, float)):
            total, message = params.get("total"), params.get("message")
            waiting.tell(
                done,
                total if isinstance(total, (int, float)) else None,
                message if isinstance(message, str) else None,
            )
        return True


def _line(message: JsonObject) -> bytes:
    try:
        return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestFailed(f"the arguments cannot be sent as JSON: {error}") from error


def _begin(writing: Any) -> None:
    """Run a coroutine that seldom waits, without anybody to wait for it."""
    task = asyncio.ensure_future(writing)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
