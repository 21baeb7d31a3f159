"""MCP over streamable HTTP: every request needs the token, and each client has a session."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib import http_server
from toolcrib.http_server import (
    REQUEST_SECONDS,
    OwnAddresses,
    ServerOptions,
    base_url,
    bearer_token,
    error_response,
    is_equal_secret,
    serve_app,
    unauthorised,
)
from toolcrib.mcp.loop_detection import LOOP_DETECTED, PROCESS_HEADER, PROCESS_TOKEN
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.sessions import COOKIE_TO_SET, SESSION_COOKIE, cookie_in, new_cookie

PATH = "/mcp"
MAX_BODY_BYTES = 4 * 1024 * 1024


class RequestGuard(OwnAddresses, frozen=True, kw_only=True):
    """Decides which requests are let in."""

    token: str
    """Required in every request; empty lets everybody in, which is meant for tests on loopback only."""

    def refusal(self, headers: Headers) -> Response | None:
        """The response for a request that is not let in; None for one that is."""
        refused = super().refusal(headers)
        if refused is not None:
            return refused
        if not self.token or is_equal_secret(bearer_token(headers), self.token):
            return None
        return unauthorised(headers, "this server requires its token in the header `Authorization: Bearer TOKEN`")


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
        refusal = self._guard.refusal(headers) if scope["path"] == PATH else error_response(404, f"use the path {PATH}")
        if headers.get(PROCESS_HEADER) == PROCESS_TOKEN:
            refusal = error_response(LOOP_DETECTED, "this server is its own client")
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


def protocol_app(server: ToolServer) -> Starlette:
    """The protocol as an ASGI application, without a guard; its lifespan must run."""
    return server.protocol.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MAX_BODY_BYTES,
        # RequestGuard checks Host and Origin for every address that we may listen on.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )


def http_app(server: ToolServer, guard: RequestGuard) -> ASGIApp:
    """The whole server as an ASGI application."""
    return GuardMiddleware(protocol_app(server), guard)


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises UsageError with the reason if that fails."""
    return http_server.open_socket(host, port, "`--http 0`")


def address_of(listening: socket.socket) -> str:
    """The URL for clients."""
    return base_url(listening) + PATH


async def serve_http(
    server: ToolServer,
    guard: RequestGuard,
    listening: socket.socket,
    stop: asyncio.Event,
    request_seconds: float = REQUEST_SECONDS,
) -> None:
    """Serve clients on a socket until `stop` is set; then pending calls and their commands are ended."""

    async def end_streams() -> None:
        # Streams that stay open for ever would prevent a graceful shutdown.
        server.stop("the server was stopped")

    await serve_app(
        http_app(server, guard), listening, stop, end_streams, ServerOptions(request_seconds=request_seconds)
    )
