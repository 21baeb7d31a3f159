"""The two streams to a server, however it is reached, with an eye on what comes in."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self

import httpx2
from mcp import StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import JSONRPCRequest, JSONRPCResponse

from toolcrib.mcp.client.direct_calls import DirectCalls
from toolcrib.mcp.client.http_transport import MAX_BODY_BYTES, Guard, http_client
from toolcrib.mcp.client.rate_limiter import Pace
from toolcrib.mcp.client.server_process import Program


class Line(Protocol):
    """Who is told about the streams."""

    guard: Guard | None
    direct: DirectCalls | None

    def started(self, pid: int) -> None: ...

    def end(self, reason: str) -> None: ...

    def answered(self, result: dict[str, Any]) -> None: ...


@asynccontextmanager
async def open_streams(program: Program, line: Line, auth: httpx2.Auth | None) -> AsyncIterator[tuple[Any, Any]]:
    """The streams that the SDK's Client reads from and writes to."""
    async with _transport(program, line, auth) as (reading, writing):
        # What a program writes is taken at its pace before it comes here.
        yield Watched(reading, line, None if program.server.transport == "stdio" else Pace()), writing


def _transport(program: Program, line: Line, auth: httpx2.Auth | None) -> AbstractAsyncContextManager[tuple[Any, Any]]:
    server = program.server
    if server.transport == "sse":
        return _over_sse(program, line, auth)
    if server.transport == "http":
        return _over_http(program, line, auth)
    if sys.platform == "win32":
        return _on_windows(program)
    # It needs what only POSIX systems have.
    from toolcrib.mcp.client.stdio_transport import stdio_transport  # noqa: PLC0415

    line.direct = DirectCalls()
    return stdio_transport(program, line.direct, line.started, line.end)


@asynccontextmanager
async def _on_windows(program: Program) -> AsyncIterator[tuple[Any, Any]]:
    """By the SDK, which ends process trees there with a job object."""
    server, settings = program.server, program.server.settings
    parameters = StdioServerParameters(
        command=settings.command,
        args=settings.args,
        env=dict(server.environ),
        cwd=settings.cwd or program.cwd or None,
    )
    program.log.begin(server.address)
    with program.log.path.open("a") as errors:
        async with stdio_client(parameters, errlog=errors) as streams:
            yield streams


@asynccontextmanager
async def _over_http(program: Program, line: Line, auth: httpx2.Auth | None) -> AsyncIterator[tuple[Any, Any]]:
    client, line.guard = http_client(program.server, auth, _nobody_minds)
    url = program.server.settings.url
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_BODY_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def _over_sse(program: Program, line: Line, auth: httpx2.Auth | None) -> AsyncIterator[tuple[Any, Any]]:
    # There a message that cannot be sent is not reported to the one who waits for its answer.
    client, line.guard = http_client(program.server, auth, line.end)

    async with sse_client(program.server.settings.url, httpx_client_factory=lambda *_, **__: client) as streams:
        yield streams


def _nobody_minds(reason: str) -> None:
    """A request that failed has had its answer."""


class Watched:
    """Messages on their way to the SDK: their end is noticed, and what a server answers is mended."""

    def __init__(self, inner: Any, line: Line, pace: Pace | None) -> None:
        self._inner = inner
        self._line = line
        self._pace = pace

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        await self._rest()
        return self._looked_at(await self._inner.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        await self._rest()
        try:
            item = await self._inner.__anext__()
        except StopAsyncIteration:
            self._line.end("it closed the connection")
            raise
        return self._looked_at(item)

    async def _rest(self) -> None:
        if self._pace is not None and self._pace.is_due:
            await self._pace.breathe()

    def _looked_at(self, item: Any) -> Any:
        message = getattr(item, "message", None)
        if self._pace is not None:
            self._pace.count()
            if type(message) is JSONRPCRequest:
                self._pace.count_request()
        if type(message) is JSONRPCResponse:
            self._line.answered(message.result)
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, traceback)
