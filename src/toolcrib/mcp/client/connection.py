"""One open connection to a server, over stdio, HTTP or SSE: the border to the MCP SDK."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import anyio
import httpx2
import msgspec
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import ClientRequestContext
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    URL_ELICITATION_REQUIRED,
    CallToolResult,
    ErrorData,
    Implementation,
    InputRequiredResult,
    JSONRPCRequest,
    JSONRPCResponse,
    ListToolsResult,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcrib.config.os_errors import explain_os_error
from toolcrib.core.attempt import attempt_async
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.callbacks import CallbackFactory, ClientCallbacks, Contexts
from toolcrib.mcp.client.direct_calls import DirectCalls, ProgressCallback
from toolcrib.mcp.client.elicitation import describe_required_pages
from toolcrib.mcp.client.errors import ConnectionLost, LoginRequired, RequestFailed, RequestNotSent, ServerFailed
from toolcrib.mcp.client.http_transport import (
    FAILURE_KEY,
    LOGIN,
    MAX_BODY_BYTES,
    NOT_SENT,
    GuardedTransport,
    http_client,
)
from toolcrib.mcp.client.rate_limiter import RateLimiter
from toolcrib.mcp.client.results import convert_result
from toolcrib.mcp.client.server_process import LaunchSpec
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.client.stdio_transport import stdio_transport
from toolcrib.mcp.client.tool_list import (
    MAX_LIST_CHARS,
    MAX_TOOLS,
    OutputSchemas,
    RejectedTool,
    ToolListing,
    repair_tool_page,
    select_tools,
)
from toolcrib.mcp.client.untrusted_text import one_line
from toolcrib.mcp.loop_detection import LOOP_DETECTED
from toolcrib.registry.results import tool_error
from toolcrib.version import __version__

UNREACHABLE_ERRORS = (TimeoutError, ToolcribError, anyio.ClosedResourceError, anyio.BrokenResourceError)
"""What a request raises if it or its response does not get through."""


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


T = TypeVar("T")

MAX_PAGES = 100
ALIVE_SECONDS = 10.0
LISTEN_AGAIN_SECONDS = 5.0
MESSAGE_CHARS = 1000
UNAUTHORIZED_STATUSES = (401, 403)


class ConnectionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection needs, and whom it notifies."""

    launch: LaunchSpec
    callbacks: ClientCallbacks
    contexts: Contexts
    on_end: Callable[[], None]
    """Called once, when the connection becomes unusable; `Connection.end_reason` says why."""
    on_change: Callable[[], None]
    """Called when the server announces that its tools, resources or prompts changed."""
    is_legacy: bool = False
    """The server is known to speak the older protocol, so negotiation is skipped."""

    @property
    def server(self) -> Server:
        return self.launch.server


class Connection:
    """An open connection, created by `open_connection`; any task of its loop may call it."""

    def __init__(self, setup: ConnectionSetup) -> None:
        self.server = setup.server
        self.pid: int | None = None
        self.end_reason = ""
        """Why the connection is unusable; empty while it works."""
        self.client: Client
        self.guard: GuardedTransport | None = None
        """Only for HTTP."""
        self.direct: DirectCalls | None = None
        """Only for stdio."""
        self._setup = setup
        self._timeouts = PausableTimeouts()
        self._version: str | None = None
        self._output_schemas = OutputSchemas()
        self._rejected: list[RejectedTool] = []
        self._listed_chars = 0

    @property
    def protocol_version(self) -> str:
        return self.client.protocol_version

    @property
    def is_modern(self) -> bool:
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    def end(self, reason: str) -> None:
        """Mark the connection as unusable; its supervisor closes it."""
        if not self.end_reason:
            self.end_reason = reason or "the connection ended"
            self._setup.on_end()

    async def call(
        self, tool: str, arguments: JsonObject, seconds: float, on_progress: ProgressCallback | None
    ) -> str | JsonObject:
        """The result of a tool, in the pipeline's format.

        Raises an error from `errors.py`, or TimeoutError. Cancelling it notifies the server.
        """
        send = self._call_directly if self.direct is not None else self._call_through_sdk
        result = await self.ask(lambda _: send(tool, arguments, on_progress), seconds)
        problem = self._output_schemas.problem(tool, result)
        return tool_error(f"the tool ran, but {problem}") if problem else convert_result(result)

    async def ask(self, request: Callable[[Client], Awaitable[T]], seconds: float) -> T:
        """Send a request to the server; raises as `call` does."""
        if self.end_reason:
            raise RequestNotSent(self.end_reason)
        async with self._timeouts.limit(seconds):
            # The SDK passes on whatever its tasks raise.
            result, error = await attempt_async(request(self.client))
        if error is None and result is not None:
            return result
        raise self._failure(error) from error

    async def _call_through_sdk(
        self, tool: str, arguments: JsonObject, on_progress: ProgressCallback | None
    ) -> CallToolResult:
        async def forward(progress: float, total: float | None, message: str | None) -> None:
            if on_progress is not None:
                on_progress(progress, total, message)

        return await self.client.call_tool(tool, arguments, None, None if on_progress is None else forward)

    async def _call_directly(
        self, tool: str, arguments: JsonObject, on_progress: ProgressCallback | None
    ) -> CallToolResult:
        assert self.direct is not None
        raw = await self.direct.call(tool, arguments, on_progress)
        if raw.get("resultType") == "input_required":
            return await self._answer_input_requests(
                tool, arguments, InputRequiredResult.model_validate(raw, by_name=False)
            )
        return CallToolResult.model_validate(raw, by_name=False)

    async def _answer_input_requests(
        self, tool: str, arguments: JsonObject, first: InputRequiredResult
    ) -> CallToolResult:
        """Answer the server's first round of questions; the SDK handles any further ones."""
        session = self.client.session
        responses: dict[str, Any] = {}
        for key, request in (first.input_requests or {}).items():
            ctx = ClientRequestContext(session=session, request_id=key)
            given = await session.dispatch_input_request(ctx, request)
            if isinstance(given, ErrorData):
                raise MCPError.from_error_data(given)
            responses[key] = given
        return await self.client.call_tool(
            tool, arguments, input_responses=responses, request_state=first.request_state
        )

    async def list_tools(self) -> ToolListing:
        """All tools that the server lists, page by page."""
        self._rejected, self._version, self._listed_chars = [], self.protocol_version, 0
        if self.client.server_capabilities.tools is None:
            return ToolListing()
        tools: list[Tool] = []
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            page = await self.ask(partial(_list_page, cursor), self.server.settings.connect_timeout)
            tools += page.tools
            cursor = page.next_cursor
            is_enough = len(tools) >= MAX_TOOLS or self._listed_chars >= MAX_LIST_CHARS
            if not cursor or cursor in seen or is_enough:
                break
            seen.add(cursor)
        return await select_tools(tools, self._rejected)

    async def is_alive(self) -> bool:
        """Whether the server still responds."""
        session = self.client.session
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                await (session.send_discover(self.protocol_version) if self.is_modern else session.send_ping())
        except MCPError as error:
            # An error response proves that the server is alive, too.
            return error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
        except (ValidationError, *UNREACHABLE_ERRORS):
            return False
        return True

    async def listen(self) -> None:
        """Subscribe to change notifications, if the protocol requires that; runs until cancelled."""
        if not self.is_modern or not any(self._subscriptions().values()):
            return
        while not self.end_reason:
            try:
                await self._listen_once()
            except SubscriptionLost:
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
            except (MCPError, ListenNotSupportedError, ValidationError, *UNREACHABLE_ERRORS):
                return  # The server does not support it, or is gone.
            else:
                return  # The server ended the subscription.
            self._setup.on_change()

    def _subscriptions(self) -> dict[str, Any]:
        """The kinds of changes that the server announces."""
        can = self.client.server_capabilities
        return {
            "tools_list_changed": can.tools is not None and bool(can.tools.list_changed),
            "resources_list_changed": can.resources is not None and bool(can.resources.list_changed),
            "prompts_list_changed": can.prompts is not None and bool(can.prompts.list_changed),
        }

    async def _listen_once(self) -> None:
        async with self.client.listen(**self._subscriptions()) as changes:
            async for _ in changes:
                self._setup.on_change()

    def _failure(self, error: BaseException | None) -> Exception:
        """Translate an exception from the SDK for the caller."""
        if isinstance(error, (ServerFailed, ConnectionLost, RequestFailed)):
            return error
        if isinstance(error, MCPError):
            return self._protocol_failure(error)
        if isinstance(error, ValidationError):
            return RequestFailed("the server sent a response that violates the protocol")
        if isinstance(error, (anyio.ClosedResourceError, anyio.BrokenResourceError)):
            return ConnectionLost(self.end_reason or "the connection was closed")
        return RequestFailed(one_line(f"{error}", MESSAGE_CHARS) or type(error).__name__)

    def _protocol_failure(self, error: MCPError) -> Exception:
        message = one_line(error.message, MESSAGE_CHARS)
        if error.code == CONNECTION_CLOSED:
            failed = error.data.get(FAILURE_KEY) if isinstance(error.data, dict) else None
            if failed in (NOT_SENT, LOGIN):
                return RequestNotSent(message) if failed == NOT_SENT else LoginRequired(message)
            return ConnectionLost(self.end_reason or message)
        if error.code == REQUEST_TIMEOUT:
            return TimeoutError(message)
        if self.guard is not None and error.code == INVALID_REQUEST and error.message == "Session terminated":
            # The server forgot the session, so it cannot have processed the request.
            return RequestNotSent("the server ended the session")
        if self.guard is not None and self.guard.last_status in UNAUTHORIZED_STATUSES:
            return self.login_required()
        if error.code == URL_ELICITATION_REQUIRED:
            return RequestFailed(f"{message}; {describe_required_pages(error.data)}")
        return RequestFailed(f"{message} (code {error.code})")

    def login_required(self) -> LoginRequired:
        status = self.guard.last_status if self.guard is not None else 401
        what = f"the server responded with HTTP {status}"
        if self.server.settings.auth == "oauth":
            return LoginRequired(f"{what}; log in with `toolcrib mcp login {self.server.name}`")
        return LoginRequired(f"{what}; set auth: oauth and log in, or fix mcp_servers.{self.server.name}.headers")

    def on_started(self, pid: int) -> None:
        """The server runs as this process."""
        self.pid = pid

    def on_response(self, result: dict[str, Any]) -> None:
        """Repair a response of the server before the SDK reads it."""
        if self._version in MODERN_PROTOCOL_VERSIONS:
            # The protocol makes this the default, but the SDK rejects responses without it.
            result.setdefault("resultType", "complete")
        if type(result.get("tools")) is list:
            self._output_schemas.extract(result["tools"], only_objects=self._version not in MODERN_PROTOCOL_VERSIONS)
            page = repair_tool_page(result, self._version, MAX_LIST_CHARS - self._listed_chars)
            self._rejected += page.rejected
            self._listed_chars += page.chars

    def make_client(self) -> Client:
        callbacks, server = self._setup.callbacks, self.server
        auth = self._create(callbacks.auth) if server.settings.auth == "oauth" else None
        return Client(
            open_streams(self._setup.launch, self, auth),
            mode="legacy" if self._setup.is_legacy else "auto",
            sampling_callback=self._timeouts.pausing(self._create(callbacks.sampling)),
            sampling_capabilities=self._create(callbacks.sampling_capabilities),
            elicitation_callback=self._timeouts.pausing(self._create(callbacks.elicitation)),
            list_roots_callback=self._create(callbacks.roots),
            message_handler=self._on_message,
            client_info=Implementation(name="toolcrib", version=__version__),
            cache=None,
        )

    def _create(self, make: CallbackFactory | None) -> Any:
        return make(self.server, self._setup.contexts) if make is not None else None

    async def _on_message(self, message: Any) -> None:
        changes = (ToolListChangedNotification, ResourceListChangedNotification, PromptListChangedNotification)
        if isinstance(message, changes):
            self._setup.on_change()


@asynccontextmanager
async def open_connection(setup: ConnectionSetup) -> AsyncIterator[Connection]:
    """An initialized connection; leaving the block closes it and ends its process.

    Must be entered and left by the same task. Raises ServerFailed if it cannot be opened.
    """
    connection = Connection(setup)
    connection.client = connection.make_client()
    async with AsyncExitStack() as opened:
        try:
            await opened.enter_async_context(connection.client)
        except Exception as error:  # The SDK raises groups of anything.
            raise opening_failure(connection, error) from error
        listening = asyncio.create_task(connection.listen())
        try:
            yield connection
        finally:
            connection.end("the connection was closed")
            listening.cancel()


def opening_failure(connection: Connection, error: BaseException) -> ServerFailed:
    """Why a connection could not be opened."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    guard = connection.guard
    if guard is not None and guard.login:
        return LoginRequired(guard.login)
    if guard is not None and guard.last_status in UNAUTHORIZED_STATUSES:
        return connection.login_required()
    if isinstance(error, ServerFailed):
        return error
    if guard is not None and guard.last_status == LOOP_DETECTED:
        return ServerFailed("it is this very process, and a process cannot be its own MCP server")
    if connection.end_reason and isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return ServerFailed(connection.end_reason)
    if guard is not None and (guard.last_failure or guard.last_status):
        return ServerFailed(guard.last_failure or f"the server responded with HTTP {guard.last_status}")
    if isinstance(error, ValidationError):
        return ServerFailed("the server's initialization response violates the protocol")
    if isinstance(error, OSError) and error.errno is not None:
        return ServerFailed(explain_os_error(error))
    return ServerFailed(one_line(f"{error}", MESSAGE_CHARS) or type(error).__name__)


async def _list_page(cursor: str | None, client: Client) -> ListToolsResult:
    return await client.list_tools(cursor=cursor, cache_mode="refresh")


Callback = Callable[..., Awaitable[Any]]


class PausableTimeouts:
    """The timeouts of the calls on one connection; they pause while the server waits for an answer from us.

    Used on one loop.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Timeout] = set()
        self._paused: dict[asyncio.Timeout, float] = {}
        self._open_requests = 0
        """Requests of the server that we are answering."""

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Raise TimeoutError if the block takes longer, not counting the time we spend answering the server."""
        async with asyncio.timeout(seconds) as timeout:
            self._running.add(timeout)
            if self._open_requests:
                self._pause_timeout(timeout)
            try:
                yield
            finally:
                self._running.discard(timeout)
                self._paused.pop(timeout, None)

    def pausing(self, callback: Callback | None) -> Any:
        """Wrap a callback for a request of the server so that all timeouts pause while it runs.

        A person may think for longer than a server may take. The protocol does not always say which call a request
        belongs to, so the timeouts of all calls pause.
        """
        if callback is None:
            return None

        async def paused(*arguments: Any) -> Any:
            with self._pause():
                return await callback(*arguments)

        return paused

    @contextmanager
    def _pause(self) -> Iterator[None]:
        self._open_requests += 1
        if self._open_requests == 1:
            for timeout in self._running:
                self._pause_timeout(timeout)
        try:
            yield
        finally:
            self._open_requests -= 1
            if not self._open_requests:
                self._resume()

    def _pause_timeout(self, timeout: asyncio.Timeout) -> None:
        ends = timeout.when()
        if ends is not None and not timeout.expired():
            self._paused[timeout] = ends - asyncio.get_running_loop().time()
            timeout.reschedule(None)

    def _resume(self) -> None:
        now = asyncio.get_running_loop().time()
        for timeout, left in self._paused.items():
            timeout.reschedule(now + left)
        self._paused.clear()
