"""Opens the read and write streams to a server over stdio, HTTP or SSE, and observes what comes in."""

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
from toolcrib.mcp.client.http_transport import MAX_BODY_BYTES, GuardedTransport, http_client
from toolcrib.mcp.client.rate_limiter import RateLimiter
from toolcrib.mcp.client.server_process import LaunchSpec


class StreamObserver(Protocol):
    """Receives events about the streams of a connection."""

    guard: GuardedTransport | None
    direct: DirectCalls | None

    def on_started(self, pid: int) -> None: ...

    def end(self, reason: str) -> None: ...

    def on_response(self, result: dict[str, Any]) -> None: ...


@asynccontextmanager
async def open_streams(
    launch: LaunchSpec, observer: StreamObserver, auth: httpx2.Auth | None
) -> AsyncIterator[tuple[Any, Any]]:
    """The streams that the SDK's Client reads from and writes to."""
    async with _streams(launch, observer, auth) as (reading, writing):
        # The stdio transport has a rate limiter of its own.
        limiter = None if launch.server.transport == "stdio" else RateLimiter()
        yield ObservedStream(reading, observer, limiter), writing


def _streams(
    launch: LaunchSpec, observer: StreamObserver, auth: httpx2.Auth | None
) -> AbstractAsyncContextManager[tuple[Any, Any]]:
    server = launch.server
    if server.transport == "sse":
        return _sse_streams(launch, observer, auth)
    if server.transport == "http":
        return _http_streams(launch, observer, auth)
    if sys.platform == "win32":
        return _windows_streams(launch)
    # It needs POSIX modules.
    from toolcrib.mcp.client.stdio_transport import stdio_transport  # noqa: PLC0415

    observer.direct = DirectCalls()
    return stdio_transport(launch, observer.direct, observer.on_started, observer.end)


@asynccontextmanager
async def _windows_streams(launch: LaunchSpec) -> AsyncIterator[tuple[Any, Any]]:
    """Through the SDK, which uses a job object to end process trees on Windows."""
    server, settings = launch.server, launch.server.settings
    parameters = StdioServerParameters(
        command=settings.command,
        args=settings.args,
        env=dict(server.environ),
        cwd=settings.cwd or launch.cwd or None,
    )
    launch.log.begin(server.address)
    with launch.log.path.open("a") as errors:
        async with stdio_client(parameters, errlog=errors) as streams:
            yield streams


@asynccontextmanager
async def _http_streams(
    launch: LaunchSpec, observer: StreamObserver, auth: httpx2.Auth | None
) -> AsyncIterator[tuple[Any, Any]]:
    client, observer.guard = http_client(launch.server, auth, _ignore_failure)
    url = launch.server.settings.url
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_BODY_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def _sse_streams(
    launch: LaunchSpec, observer: StreamObserver, auth: httpx2.Auth | None
) -> AsyncIterator[tuple[Any, Any]]:
    # SSE does not report a message that could not be sent to whoever waits for its response.
    client, observer.guard = http_client(launch.server, auth, observer.end)

    async with sse_client(launch.server.settings.url, httpx_client_factory=lambda *_, **__: client) as streams:
        yield streams


def _ignore_failure(reason: str) -> None:
    """The failed request already has its error response."""


class ObservedStream:
    """Passes messages to the SDK; reports the end of the stream and lets the observer repair responses."""

    def __init__(self, inner: Any, observer: StreamObserver, limiter: RateLimiter | None) -> None:
        self._inner = inner
        self._observer = observer
        self._limiter = limiter

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        await self._pause()
        return self._observe(await self._inner.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        await self._pause()
        try:
            item = await self._inner.__anext__()
        except StopAsyncIteration:
            self._observer.end("it closed the connection")
            raise
        return self._observe(item)

    async def _pause(self) -> None:
        if self._limiter is not None and self._limiter.should_pause:
            await self._limiter.pause()

    def _observe(self, item: Any) -> Any:
        message = getattr(item, "message", None)
        if self._limiter is not None:
            self._limiter.count()
            if type(message) is JSONRPCRequest:
                self._limiter.count_request()
        if type(message) is JSONRPCResponse:
            self._observer.on_response(message.result)
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
