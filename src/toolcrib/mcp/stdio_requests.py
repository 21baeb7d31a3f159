"""What is written to a server that is a program: messages, one a line, into its standard input."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from toolcrib.mcp.direct_calls import DirectCalls
from toolcrib.mcp.failures import NotSent

MAX_WAITING = 500


class Requests(asyncio.BaseProtocol):
    """What the SDK writes to: one message at a time into the server's stdin."""

    def __init__(
        self, direct: DirectCalls, on_end: Callable[[str], None], why_gone: Callable[[], Awaitable[str]]
    ) -> None:
        self._direct = direct
        self._on_end = on_end
        self._why_gone = why_gone
        self._transport: asyncio.WriteTransport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_open = True
        self._is_lost = False
        self._waiting = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._is_lost = True
        self._may_write.set()

    async def send(self, item: SessionMessage, /) -> None:
        """Returns when the message is on its way; whoever is cancelled before that has sent nothing."""
        message: Any = item.message
        is_request = isinstance(message, JSONRPCRequest)
        if is_request:
            self._direct.learn(message)
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8", "surrogatepass")
        try:
            await self.write(data + b"\n")
        except NotSent:
            if is_request:
                raise
            raise anyio.BrokenResourceError from None

    async def write(self, data: bytes) -> None:
        if not self._may_write.is_set():
            await self._wait()
        if not self._is_open or self._transport is None or self._transport.is_closing():
            reason = await self._why_gone()
            self._on_end(reason)
            raise NotSent(reason)
        self._transport.write(data)

    async def _wait(self) -> None:
        """Until the server reads what it was sent; one that only writes must not fill our memory with answers."""
        if self._waiting >= MAX_WAITING:
            self._on_end("it does not read what it is sent")
            raise NotSent("it does not read what it is sent")
        self._waiting += 1
        try:
            await self._may_write.wait()
        finally:
            self._waiting -= 1

    def abort(self) -> None:
        """Drop what is not written yet."""
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    async def aclose(self) -> None:
        self._is_open = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
