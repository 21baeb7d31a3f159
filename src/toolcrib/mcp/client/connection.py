"""One open connection to a server: the border to the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
import msgspec
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    URL_ELICITATION_REQUIRED,
    CallToolResult,
    ErrorData,
    Implementation,
    InputRequiredResult,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcrib.core.attempt import attempt_async
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.callbacks import Contexts, MakeCallback, Seams
from toolcrib.mcp.client.direct_calls import DirectCalls, Tell
from toolcrib.mcp.client.elicitation import pages_to_open
from toolcrib.mcp.client.errors import ConnectionLost, NeedsLogin, NotSent, RequestFailed, ServerFailed
from toolcrib.mcp.client.http_transport import FAILED, LOGIN, NOT_SENT, Guard
from toolcrib.mcp.client.results import converted
from toolcrib.mcp.client.server_process import Program
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.client.tool_list import MAX_LIST_CHARS, MAX_TOOLS, Listing, Promises, SetAside, mend, usable
from toolcrib.mcp.client.transports import open_streams
from toolcrib.mcp.client.untrusted_text import one_line
from toolcrib.mcp.loop_detection import LOOP_DETECTED
from toolcrib.registry.results import tool_error
from toolcrib.version import __version__

T = TypeVar("T")

MAX_PAGES = 100
ALIVE_SECONDS = 10.0
LISTEN_AGAIN_SECONDS = 5.0
MESSAGE_CHARS = 1000
NOT_ALLOWED = (401, 403)


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection is made from, and whom it tells."""

    program: Program
    seams: Seams
    contexts: Contexts
    on_end: Callable[[], None]
    """Called once, when the connection cannot be used any more; `Connection.ended` says why."""
    on_change: Callable[[], None]
    """Called when the server says that what it offers has changed."""
    is_legacy: bool = False
    """It is known to speak the older protocol, so that nothing has to be tried first."""

    @property
    def server(self) -> Server:
        return self.program.server


class Connection:
    """An open connection. Made by `open_connection`; calls come from any task of its loop."""

    def __init__(self, wiring: Wiring) -> None:
        self.server = wiring.server
        self.pid: int | None = None
        self.ended = ""
        """Why it cannot be used any more; empty while it can."""
        self.client: Client
        self.guard: Guard | None = None
        """Of a connection by HTTP."""
        self.direct: DirectCalls | None = None
        """Of a connection to a program."""
        self._wiring = wiring
        self._clocks = CallClocks()
        self._version: str | None = None
        self._promises = Promises()
        self._set_aside: list[SetAside] = []
        self._listed_chars = 0

    @property
    def protocol_version(self) -> str:
        return self.client.protocol_version

    @property
    def is_modern(self) -> bool:
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    def end(self, reason: str) -> None:
        """Give it up: whoever owns it closes it."""
        if not self.ended:
            self.ended = reason or "the connection ended"
            self._wiring.on_end()

    async def call(self, tool: str, arguments: JsonObject, seconds: float, tell: Tell | None) -> str | JsonObject:
        """What the tool answers, as the pipeline wants it.

        Raises one of the failures of `failures.py`, or TimeoutError. Whoever is cancelled tells the server.
        """
        calling = self._directly if self.direct is not None else self._by_the_sdk
        result = await self.ask(lambda _: calling(tool, arguments, tell), seconds)
        problem = self._promises.problem(tool, result)
        return tool_error(f"the tool ran, but {problem}") if problem else converted(result)

    async def ask(self, request: Callable[[Client], Awaitable[T]], seconds: float) -> T:
        """What a request to the server gives; raises as `call` does."""
        if self.ended:
            raise NotSent(self.ended)
        async with self._clocks.limit(seconds):
            result, error = await attempt_async(request(self.client))
        if error is None and result is not None:
            return result
        raise self._failure(error) from error

    async def _by_the_sdk(self, tool: str, arguments: JsonObject, tell: Tell | None) -> CallToolResult:
        async def progress(progress: float, total: float | None, message: str | None) -> None:
            if tell is not None:
                tell(progress, total, message)

        return await self.client.call_tool(tool, arguments, None, None if tell is None else progress)

    async def _directly(self, tool: str, arguments: JsonObject, tell: Tell | None) -> CallToolResult:
        assert self.direct is not None
        raw = await self.direct.call(tool, arguments, tell)
        if raw.get("resultType") == "input_required":
            return await self._with_input(tool, arguments, InputRequiredResult.model_validate(raw, by_name=False))
        return CallToolResult.model_validate(raw, by_name=False)

    async def _with_input(self, tool: str, arguments: JsonObject, first: InputRequiredResult) -> CallToolResult:
        """Gives the server what it asks for; what it asks for after that is the SDK's to answer."""
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

    async def list_tools(self) -> Listing:
        """Everything that the server lists, page by page."""
        self._set_aside, self._version, self._listed_chars = [], self.protocol_version, 0
        if self.client.server_capabilities.tools is None:
            return Listing()
        tools: list[Tool] = []
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            async with asyncio.timeout(self.server.settings.connect_timeout):
                page, error = await attempt_async(self.client.list_tools(cursor=cursor, cache_mode="refresh"))
            if page is None:
                raise self._failure(error) from error
            tools += page.tools
            cursor = page.next_cursor
            is_enough = len(tools) >= MAX_TOOLS or self._listed_chars >= MAX_LIST_CHARS
            if not cursor or cursor in seen or is_enough:
                break
            seen.add(cursor)
        return await usable(tools, self._set_aside)

    async def is_alive(self) -> bool:
        """Whether the server still answers anything."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                session = self.client.session
                asking = session.send_discover(self.protocol_version) if self.is_modern else session.send_ping()
                _, error = await attempt_async(asking)
        except TimeoutError:
            return False
        # An error that the server sent is an answer too.
        return error is None or (isinstance(error, MCPError) and error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT))

    async def listen(self) -> None:
        """Hear of changes, where the protocol wants that to be asked for; runs until it is cancelled."""
        if not self.is_modern or not any(self._changes().values()):
            return
        while not self.ended:
            _, error = await attempt_async(self._listen_once())
            if not isinstance(error, SubscriptionLost):
                return  # Ended by the server, or not possible there: what it lists is as it is.
            await asyncio.sleep(LISTEN_AGAIN_SECONDS)
            self._wiring.on_change()

    def _changes(self) -> dict[str, Any]:
        """Of which changes the server says that it tells."""
        can = self.client.server_capabilities
        return {
            "tools_list_changed": can.tools is not None and bool(can.tools.list_changed),
            "resources_list_changed": can.resources is not None and bool(can.resources.list_changed),
            "prompts_list_changed": can.prompts is not None and bool(can.prompts.list_changed),
        }

    async def _listen_once(self) -> None:
        async with self.client.listen(**self._changes()) as changes:
            async for _ in changes:
                self._wiring.on_change()

    def _failure(self, error: BaseException | None) -> Exception:
        """What an exception of the SDK means for the one who called."""
        if isinstance(error, (ServerFailed, ConnectionLost, RequestFailed)):
            return error
        if isinstance(error, MCPError):
            return self._protocol_failure(error)
        if isinstance(error, ValidationError):
            return RequestFailed("the server answered with something that the protocol does not allow")
        if isinstance(error, (anyio.ClosedResourceError, anyio.BrokenResourceError)):
            return ConnectionLost(self.ended or "the connection was closed")
        return RequestFailed(one_line(f"{error}", MESSAGE_CHARS) or type(error).__name__)

    def _protocol_failure(self, error: MCPError) -> Exception:
        message = one_line(error.message, MESSAGE_CHARS)
        if error.code == CONNECTION_CLOSED:
            failed = error.data.get(FAILED) if isinstance(error.data, dict) else None
            if failed in (NOT_SENT, LOGIN):
                return NotSent(message) if failed == NOT_SENT else NeedsLogin(message)
            return ConnectionLost(self.ended or message)
        if error.code == REQUEST_TIMEOUT:
            return TimeoutError(message)
        if self.guard is not None and error.code == INVALID_REQUEST and error.message == "Session terminated":
            # The server forgot the session, so it did nothing with the request either.
            return NotSent("the server has ended the session")
        if self.guard is not None and self.guard.last_status in NOT_ALLOWED:
            return self.login_needed()
        if error.code == URL_ELICITATION_REQUIRED:
            return RequestFailed(f"{message}; {pages_to_open(error.data)}")
        return RequestFailed(f"{message} (code {error.code})")

    def login_needed(self) -> NeedsLogin:
        status = self.guard.last_status if self.guard is not None else 401
        what = f"the server answered HTTP {status}"
        if self.server.settings.auth == "oauth":
            return NeedsLogin(f"{what}; log in with `toolcrib mcp login {self.server.name}`")
        return NeedsLogin(f"{what}; set auth: oauth and log in, or correct mcp_servers.{self.server.name}.headers")

    def started(self, pid: int) -> None:
        """The server runs as this process."""
        self.pid = pid

    def answered(self, result: dict[str, Any]) -> None:
        """Mends an answer of the server before the SDK reads it."""
        if self._version in MODERN_PROTOCOL_VERSIONS:
            # So the protocol says; the SDK takes an answer that leaves it out for a wrong one.
            result.setdefault("resultType", "complete")
        if type(result.get("tools")) is list:
            self._promises.take(result["tools"], only_objects=self._version not in MODERN_PROTOCOL_VERSIONS)
            mended = mend(result, self._version, MAX_LIST_CHARS - self._listed_chars)
            self._set_aside += mended.set_aside
            self._listed_chars += mended.chars

    def make_client(self) -> Client:
        seams, server = self._wiring.seams, self.server
        auth = self._made(seams.auth) if server.settings.auth == "oauth" else None
        return Client(
            open_streams(self._wiring.program, self, auth),
            mode="legacy" if self._wiring.is_legacy else "auto",
            sampling_callback=self._clocks.unhurried(self._made(seams.sampling)),
            sampling_capabilities=self._made(seams.sampling_capabilities),
            elicitation_callback=self._clocks.unhurried(self._made(seams.elicitation)),
            list_roots_callback=self._made(seams.roots),
            message_handler=self._heard,
            client_info=Implementation(name="toolcrib", version=__version__),
            cache=None,
        )

    def _made(self, make: MakeCallback | None) -> Any:
        return make(self.server, self._wiring.contexts) if make is not None else None

    async def _heard(self, message: Any) -> None:
        changes = (ToolListChangedNotification, ResourceListChangedNotification, PromptListChangedNotification)
        if isinstance(message, changes):
            self._wiring.on_change()


@asynccontextmanager
async def open_connection(wiring: Wiring) -> AsyncIterator[Connection]:
    """A connection that is open and greeted; closed on the way out, with the process behind it.

    Must be entered and left by the same task. What goes wrong while opening is raised as ServerFailed.
    """
    connection = Connection(wiring)
    connection.client = connection.make_client()
    async with AsyncExitStack() as opened:
        try:
            await opened.enter_async_context(connection.client)
        except Exception as error:
            raise opening_failure(connection, error) from error
        listening = asyncio.create_task(connection.listen())
        try:
            yield connection
        finally:
            connection.end("the connection was closed")
            listening.cancel()


def opening_failure(connection: Connection, error: BaseException) -> ServerFailed:
    """Why a connection could not be opened, as one sentence."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    guard = connection.guard
    if guard is not None and guard.login:
        return NeedsLogin(guard.login)
    if guard is not None and guard.last_status in NOT_ALLOWED:
        return connection.login_needed()
    if isinstance(error, ServerFailed):
        return error
    if guard is not None and guard.last_status == LOOP_DETECTED:
        return ServerFailed("it is this very process, which cannot be its own server")
    if connection.ended and isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return ServerFailed(connection.ended)
    if guard is not None and (guard.last_failure or guard.last_status):
        return ServerFailed(guard.last_failure or f"the server answered HTTP {guard.last_status}")
    if isinstance(error, ValidationError):
        return ServerFailed("the server greeted with something that the protocol does not allow")
    return ServerFailed(one_line(f"{error}", MESSAGE_CHARS) or type(error).__name__)


Callback = Callable[..., Awaitable[Any]]


class CallClocks:
    """Used on one loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Timeout] = set()
        self._resting: dict[asyncio.Timeout, float] = {}
        self._questions = 0
        """How many of the server are being answered."""

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError where the inside takes longer, the time of our own answers left out."""
        async with asyncio.timeout(seconds) as clock:
            self._running.add(clock)
            if self._questions:
                self._stop(clock)
            try:
                yield
            finally:
                self._running.discard(clock)
                self._resting.pop(clock, None)

    def unhurried(self, answer: Callback | None) -> Any:
        """The callback for a request of the server, during which no call of ours runs out of time.

        A person may think for longer than a server may take. Which call a question belongs to is not always said, so
        the clocks of all of them rest.
        """
        if answer is None:
            return None

        async def answered(*given: Any) -> Any:
            with self._rest():
                return await answer(*given)

        return answered

    @contextmanager
    def _rest(self) -> Iterator[None]:
        self._questions += 1
        if self._questions == 1:
            for clock in self._running:
                self._stop(clock)
        try:
            yield
        finally:
            self._questions -= 1
            if not self._questions:
                self._go_on()

    def _stop(self, clock: asyncio.Timeout) -> None:
        ends = clock.when()
        if ends is not None and not clock.expired():
            self._resting[clock] = ends - asyncio.get_running_loop().time()
            clock.reschedule(None)

    def _go_on(self) -> None:
        now = asyncio.get_running_loop().time()
        for clock, left in self._resting.items():
            clock.reschedule(now + left)
        self._resting.clear()
