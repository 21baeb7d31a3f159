"""Tool calls over stdio that bypass the SDK, because they are the one request made thousands of times.

The SDK opens the connection, negotiates the protocol, lists tools, listens and answers the server's requests. For a
call it would build, validate and copy each message several times, which takes longer than many tools. So calls are
written and read here, next to the SDK's own messages on the same pipes, under ids that the SDK does not use.
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
"""The SDK numbers its own requests from one."""
META_PREFIX = "io.modelcontextprotocol/"

ProgressCallback = Callable[[float, float | None, str | None], None]
"""Receives progress, total and message."""


class MessageWriter(Protocol):
    """Where messages are written."""

    async def write(self, data: bytes) -> None:
        """Raises RequestNotSent if the server is gone and nothing was written."""
        ...


class _WaitingCall(msgspec.Struct):
    answer: asyncio.Future[JsonObject]
    on_progress: ProgressCallback | None


class DirectCalls:
    """The calls of one connection that are waiting for a response."""

    def __init__(self) -> None:
        self.writer: MessageWriter | None = None
        """Set by the transport once it is open."""
        self._meta: JsonObject = {}
        self._waiting: dict[int, _WaitingCall] = {}
        self._ids = itertools.count(FIRST_ID)

    async def call(self, tool: str, arguments: JsonObject, on_progress: ProgressCallback | None) -> JsonObject:
        """The raw result of `tools/call`; cancelling it notifies the server."""
        assert self.writer is not None
        number = next(self._ids)
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        line = _line(
            {"id": number, "method": "tools/call", "params": self._params(number, tool, arguments, on_progress)}
        )
        self._waiting[number] = _WaitingCall(answer, on_progress)
        try:
            await self.writer.write(line)
            return await answer
        except asyncio.CancelledError:
            params = {"requestId": number, "reason": "the caller cancelled the call"}
            notification = _line({"method": "notifications/cancelled", "params": params})
            # Not awaited, because the caller is gone; a server that is gone too needs no notification.
            _run_in_background(self.writer.write(notification))
            raise
        finally:
            del self._waiting[number]

    def _params(
        self, number: int, tool: str, arguments: JsonObject, on_progress: ProgressCallback | None
    ) -> JsonObject:
        params: JsonObject = {"name": tool, "arguments": arguments}
        meta = self._meta
        if on_progress is not None:
            meta = {**meta, "progressToken": number}
        if trace.get_current_span().is_recording():
            meta = dict(meta)
            propagate.inject(meta)
        if meta:
            params["_meta"] = meta
        return params

    def learn_meta(self, request: JSONRPCRequest) -> None:
        """Copy the metadata that the SDK adds to its requests in the newer protocol: calls must carry the same."""
        if request.method == "tools/list" and request.params:
            meta = request.params.get("_meta") or {}
            self._meta = {key: value for key, value in meta.items() if key.startswith(META_PREFIX)}

    def handle(self, message: Any) -> bool:
        """Process a message if it belongs to one of these calls; returns whether it did."""
        if isinstance(message, JSONRPCNotification):
            return message.method == "notifications/progress" and self._handle_progress(message.params or {})
        if not isinstance(message, (JSONRPCResponse, JSONRPCError)) or not isinstance(message.id, int):
            return False
        waiting = self._waiting.get(message.id)
        if waiting is None:
            # A response to a cancelled call is not for the SDK either.
            return message.id >= FIRST_ID
        if not waiting.answer.done():
            if isinstance(message, JSONRPCResponse):
                waiting.answer.set_result(message.result)
            else:
                waiting.answer.set_exception(MCPError.from_jsonrpc_error(message))
        return True

    def fail_all(self, reason: str) -> None:
        """The connection is lost: fail every waiting call."""
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(ConnectionLost(reason))

    def _handle_progress(self, params: JsonObject) -> bool:
        token, progress = params.get("progressToken"), params.get("progress")
        if not isinstance(token, int) or isinstance(token, bool) or token < FIRST_ID:
            return False
        waiting = self._waiting.get(token)
        if waiting is not None and waiting.on_progress is not None and isinstance(progress, (int, float)):
            total, message = params.get("total"), params.get("message")
            waiting.on_progress(
                progress,
                total if isinstance(total, (int, float)) else None,
                message if isinstance(message, str) else None,
            )
        return True


def _line(message: JsonObject) -> bytes:
    try:
        return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestFailed(f"the arguments cannot be sent as JSON: {error}") from error


def _run_in_background(writing: Any) -> None:
    """Run a coroutine that rarely blocks, ignoring its result."""
    task = asyncio.ensure_future(writing)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
