"""MCP over streamable HTTP: which requests are let in, and the limits on connections.

Every request needs the token and must name one of our own addresses in `Host` and, from a browser, in `Origin`: a web
page that points its own host name at this machine (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import anyio
import msgspec
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from toolcrib.core.errors import UsageError
from toolcrib.mcp.loop_detection import LOOP_DETECTED, PROCESS_HEADER, PROCESS_TOKEN
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.sessions import COOKIE_TO_SET, SESSION_COOKIE, cookie_in, new_cookie

if sys.platform != "win32":
    import resource

logger = logging.getLogger(__name__)

PATH = "/mcp"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_CONNECTIONS = 1024
"""Beyond this a request gets a 503; beyond a quarter more, new connections are closed at once."""
REQUEST_SECONDS = 10.0
"""How long a connection may take to send a request; until then it is not authenticated."""
GRACEFUL_SECONDS = 2
BACKLOG = 128


class RequestGuard(msgspec.Struct, frozen=True, kw_only=True):
    """Decides which requests are let in."""

    token: str
    """Required in every request; empty lets everybody in, which is meant for tests on loopback only."""
    host: str = "127.0.0.1"
    """The address that we listen on."""

    @property
    def is_on_loopback(self) -> bool:
        return self.host in LOOPBACK_NAMES

    def refusal(self, headers: Headers) -> Response | None:
        """The response for a request that is not let in; None for one that is."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(host):
            return _error_response(421, f"the Host header names {host!r}, which is not an address of this server")
        if origin is not None and not self._is_our_origin(origin):
            return _error_response(403, f"pages from {origin!r} may not use this server")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if not self.token or (scheme.lower() == "bearer" and _is_equal_secret(given.strip(), self.token)):
            return None
        said = 'Bearer realm="toolcrib"' + (', error="invalid_token"' if scheme else "")
        message = "this server requires its token in the header `Authorization: Bearer TOKEN`"
        return _error_response(401, message, {"WWW-Authenticate": said})

    def _is_our_origin(self, origin: str) -> bool:
        scheme, separator, location = origin.partition("://")
        return bool(separator) and scheme in ("http", "https") and self._is_ours(location)

    def _is_ours(self, location: str) -> bool:
        name = _host_name(location)
        if name in LOOPBACK_NAMES:
            return True
        if self.is_on_loopback or not name:
            return False
        # The owner of a host name can point it here; an IP address cannot be redirected.
        return name in (self.host.lower(), socket.gethostname().lower()) or _is_ip_address(name)


class GuardMiddleware:
    """ASGI middleware: applies the guard, and sets the session cookie for clients without one."""

    def __init__(self, app: ASGIApp, guard: RequestGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = (
            self._guard.refusal(headers) if scope["path"] == PATH else _error_response(404, f"use the path {PATH}")
        )
        if headers.get(PROCESS_HEADER) == PROCESS_TOKEN:
            refusal = _error_response(LOOP_DETECTED, "this server is its own client")
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        version = headers.get("mcp-protocol-version")
        if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS or cookie_in(headers.get("cookie", "")):
            await self._app(scope, receive, send)
            return
        cookies: list[str] = []
        await self._app({**scope, COOKIE_TO_SET: cookies}, receive, _with_cookie(send, cookies))


def _with_cookie(send: Send, cookies: Sequence[str]) -> Send:
    async def send_with_cookie(message: Message) -> None:
        if message["type"] == "http.response.start":
            cookie = cookies[0] if cookies else new_cookie()
            line = f"{SESSION_COOKIE}={cookie}; Path={PATH}; HttpOnly; SameSite=Strict"
            message = {**message, "headers": [*message.get("headers", []), (b"set-cookie", line.encode())]}
        await send(message)

    return send_with_cookie


def http_app(server: ToolServer, guard: RequestGuard) -> ASGIApp:
    """The whole server as an ASGI application."""
    app = server.protocol.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MAX_BODY_BYTES,
        # RequestGuard checks Host and Origin for every address that we may listen on.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return GuardMiddleware(app, guard)


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises UsageError with the reason if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"cannot resolve the address {host!r}: {error.strerror}; try `--host 127.0.0.1`") from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}; try `--http 0`") from error
    listening.setblocking(False)
    return listening


def address_of(listening: socket.socket) -> str:
    """The URL for clients."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


async def serve_http(
    server: ToolServer,
    guard: RequestGuard,
    listening: socket.socket,
    stop: asyncio.Event,
    request_seconds: float = REQUEST_SECONDS,
) -> None:
    """Serve clients on a socket until `stop` is set; then pending calls and their commands are ended."""
    config = uvicorn.Config(
        http_app(server, guard),
        http=_request_timeout_protocol(request_seconds),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        limit_concurrency=_connection_limit(),
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
    web = _WithoutSignals(config)
    # Also closes it if we are cancelled, when the web server has no time to do it.
    with listening:
        async with _stopping_on(stop, web, server):
            await web.serve(sockets=[listening])


@asynccontextmanager
async def _stopping_on(stop: asyncio.Event, web: uvicorn.Server, server: ToolServer) -> AsyncIterator[None]:
    async def end() -> None:
        await stop.wait()
        # Streams that stay open for ever would prevent a graceful shutdown.
        server.stop("the server was stopped")
        web.should_exit = True

    async with anyio.create_task_group() as group:
        group.start_soon(end)
        yield
        group.cancel_scope.cancel()


def _connection_limit() -> int:
    """How many connections we can serve: each needs a file descriptor, and so do the commands of calls."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)


def _request_timeout_protocol(seconds: float) -> type[H11Protocol]:
    """A protocol that closes connections which complete no request for that long, even if they keep sending."""

    class RequestTimeoutProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > (self.limit_concurrency or MAX_CONNECTIONS) * 5 // 4:
                transport.abort()
            self._schedule_check()

        def _schedule_check(self) -> None:
            self.loop.call_later(seconds, self._check, self.cycle)

        def _check(self, before: object) -> None:
            is_busy = self.cycle is not None and not self.cycle.response_complete
            if self.transport.is_closing():
                return
            if is_busy or self.cycle is not before:
                self._schedule_check()
            else:
                self.transport.close()

    return RequestTimeoutProtocol


class _WithoutSignals(uvicorn.Server):
    """Leaves signals to whoever starts the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status_code=status, headers=headers)


def _is_equal_secret(given: str, expected: str) -> bool:
    """Compare in constant time."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (given, expected)]
    return hmac.compare_digest(*digests)


def _host_name(location: str) -> str:
    """The host of `host:port`, lower-case and without brackets; empty if it is not valid."""
    try:
        split = urlsplit(f"//{location}")
        _ = split.port
    except ValueError:
        return ""
    if split.path or split.query or split.fragment or "@" in location:
        return ""
    return (split.hostname or "").rstrip(".")


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
