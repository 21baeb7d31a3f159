"""The server, as an ASGI application: one process in front of one agent host. `AgentServer.routes` lists all routes."""

from __future__ import annotations

import asyncio
import http
import ipaddress
import logging
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from toolcrib.agent.host import AgentHost
from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.paths import Home
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ConfigError, SessionError, ToolcribError, UnknownName, UnknownSession, UsageError
from toolcrib.core.models import Provider
from toolcrib.cron.jobs import JobError
from toolcrib.http_server import LOOPBACK_NAMES, OwnAddresses, ServerOptions, error_response, serve_app
from toolcrib.registry.registry import ToolRegistry
from toolcrib.serve.api_routes import ApiRoute, RouteScopes, openapi_route
from toolcrib.serve.background import ConfigWatcher, JobTicker
from toolcrib.serve.board_api import BoardApi
from toolcrib.serve.guard import REVOKED_SECONDS, AccessMiddleware, BodyTooLarge, BodyTooSlow, ServeGuard
from toolcrib.serve.host_api import HostApi
from toolcrib.serve.login import PageLogins
from toolcrib.serve.openai_api import OpenAIApi
from toolcrib.serve.openai_requests import refusal_for
from toolcrib.serve.page_routes import PageRoutes, is_page
from toolcrib.serve.questions import PLATFORM, PendingQuestions, UnknownQuestion
from toolcrib.serve.responses_api import ResponsesApi
from toolcrib.serve.run_store import RunStore, RunStoreError
from toolcrib.serve.runs import RunManager, RunRefused
from toolcrib.serve.runs_api import RunsApi
from toolcrib.serve.sessions_api import SessionsApi
from toolcrib.serve.tokens import ServerTokens, TokenError, UnsafeStart, why_owners_would_meet
from toolcrib.serve.webhooks import PREFIX, Webhooks, read_webhooks
from toolcrib.serve.work_api import WorkApi
from toolcrib.sessions.memory import MemoryRefused
from toolcrib.sessions.store import SessionStore
from toolcrib.version import __version__

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from toolcrib.serve.mcp_mount import McpMount


logger = logging.getLogger(__name__)

SPARE_THREADS = 32


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
        self._log = ApprovalLog(settings.home.approvals_file)
        self.questions = PendingQuestions(self._log, settings.serve.approval_timeout, store)
        self._mcp = _mcp_mount(self.questions) if settings.serve.mcp else None
        # What the model reads about a question that nobody answered names the server's limit.
        approvals = replace(settings.approvals, timeout=settings.serve.approval_timeout)
        self.host = AgentHost(
            settings=replace(settings, approvals=approvals),
            entry_point="gateway",
            approver=self.questions if self._mcp is None else self._mcp.approver,
            asker=self.questions.asker() if self._mcp is None else self._mcp,
            platform=PLATFORM,
            store=store,
            registry=registry,
            model=model,
        )
        self.runs = RunManager(self.host, self.questions, RunStore(settings.home.serve_dir / "runs.db"))
        self._webhooks = Webhooks(read_webhooks(settings.serve.webhooks, tokens), self.runs)
        self._ticker = JobTicker(settings)
        self._config = ConfigWatcher(self.host, self._take_up)
        self._access: AccessMiddleware | None = None

    def app(self, host: str) -> ASGIApp:
        """The application, for requests to this address."""
        native, serve = self.api_routes(), self.settings.serve
        addresses = OwnAddresses(host=host, names=tuple(name.lower() for name in serve.proxy_names))
        mounted = [] if self._mcp is None else [self._mcp.route(self.host, addresses)]
        editors = [_acp_route(self.host, self.runs, self.questions)] if serve.acp else []
        inner = Starlette(
            routes=[*self.routes(native), *mounted, *editors],
            lifespan=self._lifespan,
            exception_handlers={
                **handled_errors(),
                HTTPException: _http_error,
                BodyTooLarge: _refused_with(413, "the request is too large"),
                BodyTooSlow: _refused_with(408, "the request took too long to arrive"),
            },
        )
        guard = ServeGuard(
            addresses=addresses,
            tokens=self.tokens,
            logins=self.logins,
            is_open=is_open,
            limits=lambda: self.host.settings.serve.limits,
            signed_prefix=PREFIX if serve.webhooks else "",
            has_separate_owners=not why_owners_would_meet(self.settings),
            socket_paths=frozenset(one.path for one in editors),
            # A client of MCP may call every tool, as no owner in particular.
            scope_of=RouteScopes(native, {one.path: "admin" for one in mounted}),
        )
        self._access = AccessMiddleware(inner, guard, self.runs.metrics)
        return self._access

    def routes(self, native: Sequence[ApiRoute]) -> list[BaseRoute]:
        """All routes; `native` are those of our own API."""
        return [
            Route("/health", self._health, methods=["GET"]),
            *PageRoutes(self.logins, self.settings).routes(),
            *OpenAIApi(self.host, self.runs, self.questions).routes(),
            *ResponsesApi(self.host, self.runs, self.questions).routes(),
            *self._webhooks.routes(),
            *(one.route() for one in native),
        ]

    def api_routes(self) -> list[ApiRoute]:
        """The routes of our own API: everything under `/api`."""
        host, runs, questions = self.host, self.runs, self.questions
        routes = [
            *SessionsApi(host, runs).routes(),
            *RunsApi(host.store, runs, questions, self._log).routes(),
            *WorkApi(host, runs).routes(),
            *BoardApi(host).routes(),
            *HostApi(host, runs, questions, self.tokens).routes(),
        ]
        return [*routes, openapi_route(routes)]

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        # Every run may wait for a database or a lock at the same time, and others must not wait for that.
        threads = SPARE_THREADS + 2 * self.settings.serve.limits.max_runs
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads, "toolcrib-serve"))
        await self.runs.open()
        if self.settings.serve.jobs:
            self._ticker.start()
        watching = [asyncio.ensure_future(self._config.watch()), asyncio.ensure_future(self._stop_revoked())]
        if self._access is not None:
            watching.append(asyncio.ensure_future(self._access.watch_tokens()))
        try:
            async with self._mcp.lifespan() if self._mcp is not None else nullcontext():
                yield
        finally:
            for one in watching:
                one.cancel()
            await self.close()

    async def _stop_revoked(self) -> None:
        """Stop what revoked tokens started: another program may revoke one at any time."""
        while True:
            await asyncio.sleep(REVOKED_SECONDS)
            try:
                await self.runs.stop_revoked(self.tokens)
            except (TokenError, OSError):
                logger.exception("cannot read the tokens")

    def _take_up(self, settings: Settings) -> None:
        self.questions.set_timeout(settings.serve.approval_timeout)

    async def stop(self) -> None:
        """Interrupt all runs and jobs; their streams end."""
        if self._mcp is not None:
            self._mcp.stop()
        await asyncio.gather(self.runs.stop(), self._ticker.stop())

    async def close(self) -> None:
        """Interrupt all runs and close the host."""
        await self._ticker.stop()
        await self.runs.close()
        await self.host.close()

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})


def is_open(path: str) -> bool:
    """Whether everybody may read a path: the health of the server, and the page, which holds nothing by itself."""
    return path == "/health" or is_page(path)


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


def _mcp_mount(questions: PendingQuestions) -> McpMount:
    try:
        from toolcrib.serve.mcp_mount import McpMount  # noqa: PLC0415 - the SDK takes a second to load
    except ModuleNotFoundError as error:
        raise UsageError(f"`serve.mcp` needs more packages ({error}); run `pip install 'toolcrib[mcp]'`") from error
    return McpMount(questions)


def _acp_route(host: AgentHost, runs: RunManager, questions: PendingQuestions) -> WebSocketRoute:
    try:
        from toolcrib.serve.acp_mount import AcpMount  # noqa: PLC0415 - the SDK takes half a second to load
    except ModuleNotFoundError as error:
        raise UsageError(f"`serve.acp` needs more packages ({error}); run `pip install 'toolcrib[acp]'`") from error
    return AcpMount(host, runs, questions).route()


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
    options = ServerOptions(
        certificate=serve.tls_certificate, key=serve.tls_key, websockets="websockets-sansio" if serve.acp else "none"
    )
    await serve_app(server.app(host), listening, stop, server.stop, options)


STATUSES: dict[type[Exception], int] = {
    msgspec.MsgspecError: 422,
    ConfigError: 422,
    UsageError: 422,
    UnknownName: 422,
    MemoryRefused: 422,
    JobError: 409,
    UnknownQuestion: 404,
    UnknownSession: 404,
    SessionError: 503,
    RunStoreError: 503,
    ToolcribError: 400,
}


def handled_errors() -> dict[Any, Any]:
    """The responses for what routes raise, for Starlette, which takes the nearest class."""

    def response_of(status: int) -> Any:
        return lambda _, error: error_response(status, str(error))

    return {
        **{kind: response_of(status) for kind, status in STATUSES.items()},
        RunRefused: lambda _, error: error_response(error.status, str(error)),
        UnicodeDecodeError: lambda *_: error_response(422, "the JSON is not in UTF-8"),
        RecursionError: lambda *_: error_response(422, "the JSON is nested too deeply"),
    }


def _refused_with(status: int, message: str) -> Any:
    return lambda request, _: refusal_for(request.url.path, error_response(status, message))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = f"there is nothing at {path}" if error.status_code == http.HTTPStatus.NOT_FOUND else error.detail
    return refusal_for(path, error_response(error.status_code, message, dict(error.headers or {})))
