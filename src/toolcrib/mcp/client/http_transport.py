"""The HTTP side of a connection, guarded: what fails, or answers without end, costs its own request alone.

The SDK lets a request that cannot be sent take its whole connection down. So a failure is answered here, in the
server's place, with an error that says whether the request went out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
from mcp_types import CONNECTION_CLOSED

from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.loop_detection import headers_for

MAX_BODY_BYTES = 16 * 1024 * 1024
FAILED = "toolcrib_failed"
"""The key in the data of an error that was made here; its value is one of the next three."""
NOT_SENT, UNKNOWN, LOGIN = "not sent", "unknown", "login"
SEND_SECONDS = 30.0
GOODBYE_SECONDS = 2.0
IDENTITY = "identity"


class Guard(httpx2.AsyncBaseTransport):
    """Carries requests; turns what goes wrong on the way into an answer."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, on_failure: Callable[[str], None], *, takes_events: bool = True
    ) -> None:
        """`takes_events` is for whoever reads a stream of events piece by piece: that may go on for ever."""
        self.last_status = 0
        """Of the last answer, if it was an HTTP error."""
        self.last_failure = ""
        self.login = ""
        """How to log in, when that is what was lacking."""
        self._inner = inner
        self._on_failure = on_failure
        self._takes_events = takes_events

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if FAILED in request.extensions:
            return self._answer_here(request)
        request.headers["accept-encoding"] = IDENTITY
        if request.method == "DELETE":
            # It says goodbye, which nobody may keep us waiting with.
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(GOODBYE_SECONDS).as_dict()}
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            self.last_failure = f"{_in_words(error)} ({request.url.host}:{request.url.port or ''})".replace(":)", ")")
            self.last_status = 0
            self._on_failure(self.last_failure)
            sent = not isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))
            return _answer(request, self.last_failure, UNKNOWN if sent else NOT_SENT)
        if response.headers.get("content-encoding", IDENTITY).strip().lower() != IDENTITY:
            # A megabyte of it may hold gigabytes, and nobody asked for it.
            await response.aclose()
            self.last_failure = "the server compressed its answer, which it was asked not to do"
            return _answer(request, self.last_failure, UNKNOWN)
        self.last_status = response.status_code if response.status_code >= 400 else 0
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        is_endless = is_stream and self._takes_events and response.is_success
        response.stream = _Bounded(response.stream, None if is_endless else MAX_BODY_BYTES)
        return response

    def _answer_here(self, request: httpx2.Request) -> httpx2.Response:
        failed, reason = request.extensions[FAILED]
        self.last_status = 0
        if failed == LOGIN:
            self.login = reason
        else:
            self.last_failure = reason
        self._on_failure(reason)
        return _answer(request, reason, failed)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body of limited length; a connection that breaks in the middle is an end of this body and of nothing else."""

    def __init__(self, inner: Any, limit: int | None) -> None:
        self._inner = inner
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        try:
            async for chunk in self._inner:
                read += len(chunk)
                if self._limit is not None and read > self._limit:
                    raise httpx2.StreamError(f"the answer is longer than {MAX_BODY_BYTES // (1024 * 1024)} MB")
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(_in_words(error)) from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def http_client(
    server: Server, auth: httpx2.Auth | None, on_failure: Callable[[str], None], *, takes_events: bool = True
) -> tuple[httpx2.AsyncClient, Guard]:
    """The client for a server, and the guard that all its requests pass."""
    settings = server.settings
    cert: Any = None
    if settings.client_cert:
        files = [str(Path(name).expanduser()) for name in (settings.client_cert, settings.client_key) if name]
        cert = files[0] if len(files) == 1 else tuple(files)
    try:
        inner = httpx2.AsyncHTTPTransport(cert=cert)
    except OSError as error:
        raise ServerFailed(f"its client certificate cannot be read: {error}; look at client_cert") from error
    # A call has its own limit; silence on a stream that waits for events is no failure.
    timeout = httpx2.Timeout(SEND_SECONDS, connect=min(SEND_SECONDS, settings.connect_timeout), read=None)
    guard = Guard(inner, on_failure, takes_events=takes_events)
    given = {key: value for key, value in settings.headers.items() if key.lower() != "accept-encoding"}
    headers = {**given, "accept-encoding": IDENTITY, **headers_for(settings.url)}
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, transport=guard), guard


def answered_here(request: httpx2.Request, failed: str, reason: str) -> httpx2.Request:
    """The request, marked so that a guard answers it instead of sending it; for an `httpx2.Auth`."""
    request.extensions = {**request.extensions, FAILED: (failed, reason)}
    return request


def _answer(request: httpx2.Request, message: str, failed: str) -> httpx2.Response:
    error = {"code": CONNECTION_CLOSED, "message": message, "data": {FAILED: failed}}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return httpx2.Response(503, headers={"content-type": "application/json"}, content=body, request=request)


def _in_words(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, httpx2.ConnectError):
        return f"no connection: {error or 'refused'}"
    return str(error) or type(error).__name__
