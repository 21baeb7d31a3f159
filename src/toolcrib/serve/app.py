"""The server: one process in front of one host of agents, as an ASGI application."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from toolcrib.agent.host import AgentHost
from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.paths import Home
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.models import Provider
from toolcrib.http_server import LOOPBACK_NAMES, OwnAddresses, ServerOptions, error_response, serve_app
from toolcrib.registry.registry import ToolRegistry
from toolcrib.serve.guard import AccessMiddleware, BodyTooLarge, BodyTooSlow, ServeGuard
from toolcrib.serve.login import PageLogins
from toolcrib.serve.native_api import NativeApi, handled_errors
from toolcrib.serve.openai_api import OpenAIApi
from toolcrib.serve.page_routes import PageRoutes, is_page
from toolcrib.serve.questions import PLATFORM, PendingQuestions
from toolcrib.serve.responses_api import ResponsesApi
from toolcrib.serve.run_store import RunStore
from toolcrib.serve.runs import RunManager
from toolcrib.serve.tokens import ServerTokens, TokenScope
from toolcrib.sessions.store import SessionStore
from toolcrib.version import __version__

if sys.platform != "win32":
    import fcntl

MEGABYTE = 1024 * 1024


class UnsafeStart(UsageError):
    """The server would be open to others; it does not start."""

    exit_code = 2


class AgentServer:
    """Everything behind the routes. `start` opens it inside an event loop, `close` ends all work."""

    def __init__(
        self,
        settings: Settings,
        tokens: ServerTokens,
        *,
        model: Provider | None = None,
        registry: ToolRegistry | None = None,
    ) -> None:
        self.settings = settings
        self.tokens = tokens
        self.logins = PageLogins(settings.home, tokens)
        store = SessionStore(settings.home.sessions_file)
        log = ApprovalLog(settings.home.approvals_file)
        self.questions = PendingQuestions(log, settings.serve.approval_timeout, store)
        # What the model reads about a question that nobody answered names the server's limit.
        approvals = replace(settings.approvals, timeout=settings.serve.approval_timeout)
        self.host = AgentHost(
            settings=replace(settings, approvals=approvals),
            entry_point="gateway",
            approver=self.questions,
            asker=self.questions.asker(),
            platform=PLATFORM,
            store=store,
            registry=registry,
            model=model,
        )
        self.runs = RunManager(self.host, self.questions, RunStore(settings.home.serve_dir / "runs.db"))

    def app(self, host: str) -> ASGIApp:
        """The application, for requests to this address."""
        routes = [
            Route("/health", self._health, methods=["GET"]),
            *PageRoutes(self.logins, self.settings).routes(),
            *OpenAIApi(self.host, self.runs, self.questions).routes(),
            *ResponsesApi(self.host, self.runs, self.questions).routes(),
            *NativeApi(self.host, self.runs, self.questions).routes(),
        ]
        inner = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={
                **handled_errors(),
                HTTPException: _http_error,
                BodyTooLarge: lambda *_: error_response(413, "the request is too large"),
                BodyTooSlow: lambda *_: error_response(408, "the request took too long to arrive"),
            },
        )
        serve = self.settings.serve
        guard = ServeGuard(
            addresses=OwnAddresses(host=host, names=tuple(name.lower() for name in serve.proxy_names)),
            tokens=self.tokens,
            logins=self.logins,
            max_body_bytes=int(serve.limits.max_body_mb * MEGABYTE),
            requests_per_minute=serve.limits.requests_per_minute,
            scope_of=scope_of,
            is_open=is_open,
        )
        return AccessMiddleware(inner, guard)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.runs.open()
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Interrupt all runs and close the host."""
        await self.runs.close()
        await self.host.close()

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})


def is_open(path: str) -> bool:
    """Whether everybody may read a path: the health of the server, and the page, which holds nothing by itself."""
    return path == "/health" or is_page(path)


def scope_of(method: str, path: str) -> TokenScope:
    """The scope that a request needs."""
    if path.startswith("/api/approvals") and method != "GET":
        return "approve"
    return "metrics" if path == "/metrics" else "chat"


def require_safe_start(settings: ServeSettings, host: str) -> None:
    """Raises UnsafeStart for an address that others can reach without encryption."""
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise UnsafeStart("TLS needs both `serve.tls_certificate` and `serve.tls_key`; set the missing one")
    if _is_loopback(host) or settings.tls_certificate or settings.proxy_names:
        return
    raise UnsafeStart(
        f"{host!r} can be reached from other machines, and tokens would cross the network unencrypted; set "
        "`serve.tls_certificate` and `serve.tls_key`, or name the proxy that provides TLS in `serve.proxy_names`"
    )


def require_usable_tls(settings: ServeSettings) -> None:
    """Raises UsageError if the certificate or its key cannot be used."""
    if not settings.tls_certificate:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:
        raise UsageError(
            f"cannot use the certificate {settings.tls_certificate!r} with the key {settings.tls_key!r} "
            f"({error.strerror or error}); check `serve.tls_certificate` and `serve.tls_key`"
        ) from error


@contextmanager
def only_server(home: Home) -> Iterator[None]:
    """Holds the home's lock; raises UsageError if another server has it, whose runs we would take for left ones."""
    if sys.platform == "win32":
        yield
        return
    make_folder(home.serve_dir)
    lock = os.open(home.serve_dir / "lock", os.O_RDWR | os.O_CREAT, OWNER_FILE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UsageError("another server is using this home; stop it, or set TOOLCRIB_HOME to another folder") from None
    finally:
        os.close(lock)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK_NAMES


async def serve_agents(server: AgentServer, host: str, listening: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then runs are interrupted, and the host is closed."""
    serve = server.settings.serve
    options = ServerOptions(certificate=serve.tls_certificate, key=serve.tls_key)
    await serve_app(server.app(host), listening, stop, server.runs.stop, options)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, error.detail)
