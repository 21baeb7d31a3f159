"""What every HTTP server of ours shares: the listening socket, who is let in by address and token, and limits on
connections.

A request must name one of our own addresses in `Host` and, from a browser, in `Origin`: a web page that points its own
host name at this machine (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal
from urllib.parse import urlsplit

import anyio
import msgspec
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from toolcrib.core.errors import UsageError

if sys.platform != "win32":
    import resource

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_CONNECTIONS = 1024
"""Beyond this a request gets a 503; beyond a quarter more, new connections are closed at once."""
REQUEST_SECONDS = 10.0
"""How long a connection may take to send a request; until then it is not authenticated."""
STALL_SECONDS = 60.0
"""How long a client may read nothing of what waits for it; then its connection is closed, for others to have."""
GRACEFUL_SECONDS = 2
BACKLOG = 128


class OwnAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """The names under which this server may be reached."""

    host: str = "127.0.0.1"
    """The address that we listen on."""
    names: tuple[str, ...] = ()
    """Further host names, such as that of a proxy in front of us."""

    @property
    def is_on_loopback(self) -> bool:
        return self.host in LOOPBACK_NAMES

    def refusal(self, headers: Headers) -> Response | None:
        """The response for a request to another name or from another site's page; None if there is no objection."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.is_ours(host):
            return error_response(421, f"the Host header names {host!r}, which is not an address of this server")
        if origin is not None and not self.is_our_origin(origin):
            return error_response(403, f"pages from {origin!r} may not use this server")
        return None

    def is_our_origin(self, origin: str) -> bool:
        scheme, separator, location = origin.partition("://")
        return bool(separator) and scheme in ("http", "https") and self.is_ours(location)

    def is_ours(self, location: str) -> bool:
        name = host_name(location)
        if name in LOOPBACK_NAMES or name in self.names:
            return True
        if self.is_on_loopback or not name:
            return False
        # The owner of a host name can point it here; an IP address cannot be redirected.
        return name in (self.host.lower(), socket.gethostname().lower()) or _is_ip_address(name)


def bearer_token(headers: Headers) -> str:
    """The token that a request sends; empty if it sends none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def unauthorised(headers: Headers, message: str) -> Response:
    """The response for a request without a valid token."""
    said = 'Bearer realm="toolcrib"' + (', error="invalid_token"' if headers.get("authorization") else "")
    return error_response(401, message, {"WWW-Authenticate": said})


def is_equal_secret(given: str, expected: str) -> bool:
    """Compare in constant time."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (given, expected)]
    return hmac.compare_digest(*digests)


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status_code=status, headers=headers)


def open_socket(host: str, port: int, advice: str) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises UsageError with the reason and the advice if that fails."""
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
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}; try {advice}") from error
    listening.setblocking(False)
    return listening


def base_url(listening: socket.socket, scheme: str = "http") -> str:
    """The URL of the server, without a path."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an application is served."""

    request_seconds: float = REQUEST_SECONDS
    stall_seconds: float = STALL_SECONDS
    max_connections: int = MAX_CONNECTIONS
    websockets: Literal["none", "websockets-sansio"] = "none"
    certificate: str = ""
    """A file with the TLS certificate; empty serves plain HTTP."""
    key: str = ""


async def serve_app(
    app: ASGIApp,
    listening: socket.socket,
    stop: asyncio.Event,
    before_exit: Callable[[], Awaitable[None]],
    options: ServerOptions = ServerOptions(),  # noqa: B008 - frozen
) -> None:
    """Serve an application on a socket until `stop` is set; `before_exit` ends streams that would stay open."""
    config = uvicorn.Config(
        app,
        http=_timeout_protocol(options.request_seconds, options.stall_seconds),
        log_config=None,
        access_log=False,
        server_header=False,
        ws=options.websockets,
        lifespan="on",
        backlog=BACKLOG,
        limit_concurrency=_connection_limit(options.max_connections),
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
        ssl_certfile=options.certificate or None,
        ssl_keyfile=options.key or None,
        proxy_headers=False,
    )
    web = _WithoutSignals(config)
    # Also closes it if we are cancelled, when the web server has no time to do it.
    with listening:
        async with _stopping_on(stop, web, before_exit):
            await web.serve(sockets=[listening])


@asynccontextmanager
async def _stopping_on(
    stop: asyncio.Event, web: uvicorn.Server, before_exit: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    async def end() -> None:
        await stop.wait()
        await before_exit()
        web.should_exit = True

    async with anyio.create_task_group() as group:
        group.start_soon(end)
        yield
        group.cancel_scope.cancel()


def _connection_limit(wanted: int) -> int:
    """How many connections we can serve: each needs a file descriptor, and so do the commands of calls."""
    if sys.platform == "win32":
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, files // 2)


def _timeout_protocol(request_seconds: float, stall_seconds: float) -> type[H11Protocol]:
    """A protocol that closes connections which complete no request for that long, even if they keep sending; and those
    which read nothing for that long."""

    class TimeoutProtocol(H11Protocol):
        reading: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > (self.limit_concurrency or MAX_CONNECTIONS) * 5 // 4:
                transport.abort()
            self._schedule_check()

        def _schedule_check(self) -> None:
            self.loop.call_later(request_seconds, self._check, self.cycle)

        def _check(self, before: object) -> None:
            if self.transport.get_protocol() is not self:
                return  # A WebSocket, whose own protocol sends pings.
            is_busy = self.cycle is not None and not self.cycle.response_complete
            if not self.transport.is_closing() and (is_busy or self.cycle is not before):
                self._schedule_check()
                return
            # It stays open for what is not read yet.
            self.transport.close()
            self._watch_reading()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_reading()

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.transport.is_closing():
                self._stop_watching()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_watching()
            super().connection_lost(exc)

        def _watch_reading(self) -> None:
            """While nothing is added to what the client has to read, it must get less."""
            self._stop_watching()
            if left := self.transport.get_write_buffer_size():
                self.reading = self.loop.call_later(stall_seconds, self._check_reading, left)

        def _check_reading(self, before: int) -> None:
            if self.transport.get_write_buffer_size() >= before:
                self.transport.abort()
            else:
                self._watch_reading()

        def _stop_watching(self) -> None:
            if self.reading is not None:
                self.reading.cancel()

    return TimeoutProtocol


class _WithoutSignals(uvicorn.Server):
    """Leaves signals to whoever starts the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def host_name(location: str) -> str:
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
