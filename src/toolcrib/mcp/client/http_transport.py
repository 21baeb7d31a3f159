"""HTTP for MCP connections, guarded so that a failed request or endless response breaks only its own request.

In the SDK, a request that cannot be sent takes down the whole connection. So the transport here turns a failure into an
error response that says whether the request was sent.
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
from toolcrib.mcp.loop_detection import process_headers

MAX_BODY_BYTES = 16 * 1024 * 1024
FAILURE_KEY = "toolcrib_failed"
"""The key in the data of an error response created here; its value is one of the next three."""
NOT_SENT, UNKNOWN, LOGIN = "not sent", "unknown", "login"
SEND_SECONDS = 30.0
END_SESSION_SECONDS = 2.0
IDENTITY = "identity"


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests and turns transport failures into error responses."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, on_failure: Callable[[str], None], *, takes_events: bool = True
    ) -> None:
        """`takes_events`: the caller reads event streams piece by piece, so those may go on for ever."""
        self.last_status = 0
        """Of the last response, if it was an HTTP error."""
        self.last_failure = ""
        self.login = ""
        """How to log in, if that is what the last request needed."""
        self._inner = inner
        self._on_failure = on_failure
        self._takes_events = takes_events

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if FAILURE_KEY in request.extensions:
            return self._answer_locally(request)
        request.headers["accept-encoding"] = IDENTITY
        if request.method == "DELETE":
            # It only ends the session, so it must not delay closing.
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(END_SESSION_SECONDS).as_dict()}
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            self.last_failure = f"{_describe_failure(error)} ({request.url.host}:{request.url.port or ''})".replace(
                ":)", ")"
            )
            self.last_status = 0
            self._on_failure(self.last_failure)
            sent = not isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))
            return _error_response(request, self.last_failure, UNKNOWN if sent else NOT_SENT)
        if response.headers.get("content-encoding", IDENTITY).strip().lower() != IDENTITY:
            # A megabyte may decompress to gigabytes, and we asked for none of it.
            await response.aclose()
            self.last_failure = "the server sent a compressed response despite being asked not to"
            return _error_response(request, self.last_failure, UNKNOWN)
        self.last_status = response.status_code if response.status_code >= 400 else 0
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        is_unbounded = is_stream and self._takes_events and response.is_success
        response.stream = _BoundedBody(response.stream, None if is_unbounded else MAX_BODY_BYTES)
        return response

    def _answer_locally(self, request: httpx2.Request) -> httpx2.Response:
        failed, reason = request.extensions[FAILURE_KEY]
        self.last_status = 0
        if failed == LOGIN:
            self.login = reason
        else:
            self.last_failure = reason
        self._on_failure(reason)
        return _error_response(request, reason, failed)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """A response body of limited length; a connection that breaks in the middle fails only this body."""

    def __init__(self, inner: Any, limit: int | None) -> None:
        self._inner = inner
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        try:
            async for chunk in self._inner:
                read += len(chunk)
                if self._limit is not None and read > self._limit:
                    raise httpx2.StreamError(f"the response is longer than {MAX_BODY_BYTES // (1024 * 1024)} MB")
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(_describe_failure(error)) from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def http_client(
    server: Server, auth: httpx2.Auth | None, on_failure: Callable[[str], None], *, takes_events: bool = True
) -> tuple[httpx2.AsyncClient, GuardedTransport]:
    """The client for a server, and the guarded transport that all its requests go through."""
    settings = server.settings
    cert: Any = None
    if settings.client_cert:
        files = [str(Path(name).expanduser()) for name in (settings.client_cert, settings.client_key) if name]
        cert = files[0] if len(files) == 1 else tuple(files)
    try:
        inner = httpx2.AsyncHTTPTransport(cert=cert)
    except OSError as error:
        raise ServerFailed(f"its client certificate cannot be read: {error}; check client_cert") from error
    # Calls have their own timeout, and silence on an event stream is not a failure.
    timeout = httpx2.Timeout(SEND_SECONDS, connect=min(SEND_SECONDS, settings.connect_timeout), read=None)
    guard = GuardedTransport(inner, on_failure, takes_events=takes_events)
    given = {key: value for key, value in settings.headers.items() if key.lower() != "accept-encoding"}
    headers = {**given, "accept-encoding": IDENTITY, **process_headers(settings.url)}
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, transport=guard), guard


def answer_locally(request: httpx2.Request, failed: str, reason: str) -> httpx2.Request:
    """Mark a request so that GuardedTransport answers it instead of sending it; for an `httpx2.Auth`."""
    request.extensions = {**request.extensions, FAILURE_KEY: (failed, reason)}
    return request


def _error_response(request: httpx2.Request, message: str, failed: str) -> httpx2.Response:
    error = {"code": CONNECTION_CLOSED, "message": message, "data": {FAILURE_KEY: failed}}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return httpx2.Response(503, headers={"content-type": "application/json"}, content=body, request=request)


def _describe_failure(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, httpx2.ConnectError):
        return f"no connection: {error or 'refused'}"
    return str(error) or type(error).__name__
