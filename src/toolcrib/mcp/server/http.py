"""MCP over streamable HTTP: who may come in, and how long the door is open.

Every request needs the token, and has to name one of our own addresses in `Host` and, from a browser, in `Origin`: a
page on the web that makes its name point to this machine gets nothing.
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
from toolcrib.mcp.loop_detection import HEADER, LOOP_DETECTED, PROCESS
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.sessions import COOKIE_TO_SET, SESSION_COOKIE, cookie_in, new_cookie

if sys.platform != "win32":
    import resource

logger = logging.getLogger(__name__)

PATH = "/mcp"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_CONNECTIONS = 1024
"""Beyond these a request is answered with 503; beyond a quarter more, connections are closed as they come."""
REQUEST_SECONDS = 10.0
"""How long a connection may take to bring a request; nobody has shown a token until then."""
GRACEFUL_SECONDS = 2
BACKLOG = 128


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """Who may come in."""

    token: str
    """What every request has to bring along; empty lets everybody in, which only tests on loopback may want."""
    host: str = "127.0.0.1"
    """The address that is listened on."""

    @property
    def is_on_loopback(self) -> bool:
        return self.host in LOOPBACK_NAMES

    def refusal(self, headers: Headers) -> Response | None:
        """The answer for a request that may not come in; None for one that may."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(host):
            return _refused(421, f"the Host header names {host!r}, which is not an address of this server")
        if origin is not None and not self._is_our_origin(origin):
            return _refused(403, f"pages of {origin!r} may not use this server")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if not self.token or (scheme.lower() == "bearer" and _is_same(given.strip(), self.token)):
            return None
        said = 'Bearer realm="toolcrib"' + (', error="invalid_token"' if scheme else "")
        message = "this server needs its token in the header `Authorization: Bearer TOKEN`"
        return _refused(401, message, {"WWW-Authenticate": said})

    def _is_our_origin(self, origin: str) -> bool:
        scheme, separator, place = origin.partition("://")
        return bool(separator) and scheme in ("http", "https") and self._is_ours(place)

    def _is_ours(self, place: str) -> bool:
        name = _name_in(place)
        if name in LOOPBACK_NAMES:
            return True
        if self.is_on_loopback or not name:
            return False
        # A name can be made to point here by whoever owns it; an address cannot.
        return name in (self.host.lower(), socket.gethostname().lower()) or _is_address(name)


class Guard:
    """Lets in who may come in, and gives cookies to clients that have none."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._door.refusal(headers) if scope["path"] == PATH else _refused(404, f"use the path {PATH}")
        if headers.get(HEADER) == PROCESS:
            refusal = _refused(LOOP_DETECTED, "this server is the client itself")
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


def http_app(server: ToolServer, door: Door) -> ASGIApp:
    """The whole server as one ASGI application."""
    app = server.protocol.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MAX_BODY_BYTES,
        # The door looks at Host and Origin for every address that we may listen on.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return Guard(app, door)


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises UsageError saying why it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"there is no address {host!r} here: {error.strerror}; try `--host 127.0.0.1`") from error
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
    """Where clients find the server."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


async def serve_http(
    server: ToolServer,
    door: Door,
    listening: socket.socket,
    stop: asyncio.Event,
    request_seconds: float = REQUEST_SECONDS,
) -> None:
    """Serve clients on a socket until `stop` is set; calls at work are ended with their commands."""
    config = uvicorn.Config(
        http_app(server, door),
        http=_impatient(request_seconds),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        limit_concurrency=_room(),
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
    web = _WithoutSignals(config)
    # Closed also when we are cancelled: then the web server has no time to do it.
    with listening:
        async with _ended_by(stop, web, server):
            await web.serve(sockets=[listening])


@asynccontextmanager
async def _ended_by(stop: asyncio.Event, web: uvicorn.Server, server: ToolServer) -> AsyncIterator[None]:
    async def end() -> None:
        await stop.wait()
        # Streams that stay open for ever would keep the server from closing them in good order.
        server.stop("the server was stopped")
        web.should_exit = True

    async with anyio.create_task_group() as group:
        group.start_soon(end)
        yield
        group.cancel_scope.cancel()


def _room() -> int:
    """How many connections can be served: each takes a file, and so do the commands of calls."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)


def _impatient(seconds: float) -> type[H11Protocol]:
    """Connections that are closed when they bring no request for that long, even if they go on sending."""

    class Impatient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > (self.limit_concurrency or MAX_CONNECTIONS) * 5 // 4:
                transport.abort()
            self._look_again()

        def _look_again(self) -> None:
            self.loop.call_later(seconds, self._look, self.cycle)

        def _look(self, before: object) -> None:
            is_at_work = self.cycle is not None and not self.cycle.response_complete
            if self.transport.is_closing():
                return
            if is_at_work or self.cycle is not before:
                self._look_again()
            else:
                self.transport.close()

    return Impatient


class _WithoutSignals(uvicorn.Server):
    """Whoever starts the server decides what signals mean."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status_code=status, headers=headers)


def _is_same(given: str, expected: str) -> bool:
    """Compared in a time that tells nothing about the expected one."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (given, expected)]
    return hmac.compare_digest(*digests)


def _name_in(place: str) -> str:
    """The host of `host:port`, in small letters and without brackets; empty for what is neither."""
    try:
        split = urlsplit(f"//{place}")
        _ = split.port
    except ValueError:
        return ""
    if split.path or split.query or split.fragment or "@" in place:
        return ""
    return (split.hostname or "").rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
