"""Keeps one MCP server connected and reconnects it when the connection ends.

    starting → ready → (the connection ends) → waiting → starting → …

One task opens and closes the connections of a server; everybody else only uses them. A call that finds the server down
triggers a reconnect at once, and all callers wait for the same attempt. After several connection failures in a row
(failures of a tool do not count) the circuit breaker opens: calls fail immediately, with the reason, for a while.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolcrib.config.os_errors import explain_os_error
from toolcrib.core.attempt import attempt_async
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.errors import (
    ConnectionLost,
    LoginRequired,
    NotLoggedIn,
    RequestFailed,
    RequestNotSent,
    ServerFailed,
)
from toolcrib.mcp.client.servers import Server, ServerState, ServerStatus

if TYPE_CHECKING:
    from toolcrib.mcp.client.connection import Connection
    from toolcrib.mcp.client.direct_calls import ProgressCallback
    from toolcrib.mcp.client.tool_list import ToolListing

logger = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 0.3
MAX_DEBOUNCE_SECONDS = 30.0
GRACEFUL_CLOSE_SECONDS = 1.0
CLOSE_SECONDS = 12.0
LOGIN_POLL_SECONDS = 5.0
"""How soon we notice a login made in another process."""

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
STABLE_SECONDS = 60.0
"""A connection that lived this long was good, whatever ended it."""
FAILURE_THRESHOLD = 3
OPEN_SECONDS = 60.0

MAX_CONCURRENT_STARTS = 8
SLOT_SECONDS = 1.5
"""A server that takes longer is waiting for something other than this machine, so it gives up its slot."""


class OpenConnection(Protocol):
    """Opens a connection; see `open_connection`."""

    def __call__(
        self, server: Server, supervisor: ConnectionSupervisor, is_legacy: bool
    ) -> AbstractAsyncContextManager[Connection]: ...


class ServerRequest(Protocol):
    """One or more requests made on a connection within a time limit, such as `Connection.call` for one tool.

    Raises what those requests raise. `on_progress` is None when nobody wants progress reports.
    """

    def __call__(
        self, connection: Connection, seconds: float, on_progress: ProgressCallback | None, /
    ) -> Awaitable[str | JsonObject]: ...


class ConnectionSupervisor:
    """Supervises one server. Everything except `status` runs on the manager's loop."""

    def __init__(
        self,
        server: Server,
        connect: OpenConnection,
        on_listing: Callable[[ConnectionSupervisor, ToolListing, Connection], None],
        start_slots: StartLimiter,
    ) -> None:
        self.server = server
        self.contexts: list[ToolContext] = []
        """The contexts of the calls in flight, the latest last."""
        self.connection: Connection | None = None
        self.listing: ToolListing | None = None
        self._connect = connect
        self._on_listing = on_listing
        self._start_slots = start_slots
        self._call_slots = asyncio.Semaphore(server.calls_at_once)
        self._wake = asyncio.Event()
        self._retry_now = asyncio.Event()
        self._attempt: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self.settled = asyncio.Event()
        """Set after the first attempt, whether it succeeded or not."""
        self._tools_changed = self._needs_health_check = self._is_legacy = False
        self._was_connected = self._is_closing = False
        self._last_used, self._listing_seconds = time.monotonic(), 0.0
        self._breaker = CircuitBreaker()
        self._waiters = 0
        """How many callers wait for the server to be connected."""
        self._failed_connection: Connection | None = None
        self._state: ServerState = "disabled" if server.problem else "starting"
        self._since = time.time()
        self._last_error, self._last_logged = server.problem, ""
        self._next_retry: float | None = None
        self._task: asyncio.Task[None] | None = None
        if server.problem:
            self.settled.set()

    def status(self) -> ServerStatus:
        """A snapshot of the server's state; safe from any thread."""
        connection, listing = self.connection, self.listing
        is_degraded = self._breaker.is_open and self._state in ("ready", "waiting")
        return ServerStatus(
            name=self.server.name,
            state="degraded" if is_degraded else self._state,
            last_error=self._last_error,
            since=self._since,
            next_retry=self._next_retry,
            tools=len(listing.tools) if listing is not None else 0,
            rejected=tuple((one.tool, one.reason) for one in listing.rejected) if listing is not None else (),
            protocol_version=connection.protocol_version if connection is not None else "",
            transport=self.server.transport,
            address=self.server.address,
            pid=connection.pid if connection is not None else None,
            instructions=(connection.client.instructions or "") if connection is not None else "",
        )

    def start(self) -> None:
        """Start the task that keeps the server connected."""
        if not self.server.problem:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"mcp {self.server.name}")

    async def close(self) -> None:
        """Close the connection and end its process, within a time limit."""
        self._is_closing = True
        self._wake.set()
        self._retry_now.set()
        if self._task is not None:
            if self.connection is not None:
                await asyncio.wait((self._task,), timeout=GRACEFUL_CLOSE_SECONDS)
            # It may be waiting for an answer that never comes; cancelling does not interrupt the end of a process.
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        self._fail_waiters(ServerFailed("it is shutting down"))

    def reconnect(self) -> None:
        """Close the connection, if there is one, and open a new one now."""
        self._breaker.reset()
        if self.connection is not None:
            self.connection.end("a reconnect was requested")
        self._retry_now.set()

    async def call(
        self, request: ServerRequest, ctx: ToolContext, on_progress: ProgressCallback | None
    ) -> str | JsonObject:
        """Run a request. Raises what `Connection.call` raises; RequestNotSent only after a second try."""
        seconds = self.server.settings.timeout
        async with self._call_slots:
            self.contexts.append(ctx)
            try:
                return await self._call(request, seconds, on_progress)
            finally:
                self.contexts.remove(ctx)
                self._last_used = time.monotonic()

    async def ready(self) -> Connection:
        """The open connection, reconnecting first if there is none. Raises ServerFailed with the reason."""
        connection = self.connection
        if self._breaker.is_open:
            times = self._breaker.failures
            raise ServerFailed(f"it failed {times} times in a row; the last error was: {self._last_error}")
        if connection is not None and not connection.end_reason:
            return connection
        if self._is_closing:
            raise ServerFailed("it is shutting down")
        if self._state == "disabled" or (self._state == "needs_login" and not self._uses_oauth):
            raise ServerFailed(self._last_error)
        self._retry_now.set()
        self._waiters += 1
        try:
            return await asyncio.shield(self._attempt)
        finally:
            self._waiters -= 1

    async def _call(
        self, request: ServerRequest, seconds: float, on_progress: ProgressCallback | None
    ) -> str | JsonObject:
        is_last = False
        while True:
            connection = await self.ready()
            try:
                result = await request(connection, seconds, on_progress)
            except RequestNotSent as error:
                connection.end(str(error))
                if is_last:
                    self._record_failure(connection, str(error))
                    raise
                # The server never saw it, so it is safe to send once more.
                is_last = True
                continue
            except ConnectionLost as error:
                self._record_failure(connection, str(error))
                raise
            except RequestFailed:
                self._breaker.record_success()
                raise
            except (TimeoutError, LoginRequired):
                self._needs_health_check = True
                self._wake.set()
                raise
            self._breaker.record_success()
            return result

    def _record_failure(self, connection: Connection, reason: str) -> None:
        """Count one failure per connection, however many calls it broke."""
        self._last_error = reason
        if self._failed_connection is not connection:
            self._failed_connection = connection
            self._breaker.record_failure()

    # Called by the connection

    def on_connection_end(self) -> None:
        """The connection is dead: callers from now on wait for the next one."""
        if self._attempt.done():
            self._attempt = asyncio.get_running_loop().create_future()
        self._wake.set()

    def on_tools_change(self) -> None:
        """The server announced that its tools, resources or prompts changed."""
        self._tools_changed = True
        self._wake.set()

    # The task

    async def _run(self) -> None:
        """Connect, supervise and reconnect until the supervisor is closed."""
        while not self._is_closing:
            self._set_state("starting")
            self._was_connected = False
            began = time.monotonic()
            # The SDK and the server behind it can raise anything.
            wants_reconnect, error = await attempt_async(self._run_connection())
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self.connection = None
            if not self._was_connected:
                self._on_failed_attempt(error)
            self._breaker.record_lifetime(time.monotonic() - began if self._was_connected else 0.0)
            self.settled.set()
            self._log_end(_reason(error))
            if isinstance(error, NotLoggedIn):
                await self._wait_for_retry("needs_login", LOGIN_POLL_SECONDS)
            elif isinstance(error, LoginRequired):
                delay = self._breaker.next_retry_delay() if self._uses_oauth else None
                await self._wait_for_retry("needs_login", delay)
            elif error is not None:
                await self._wait_for_retry("waiting", self._breaker.next_retry_delay())
            elif not wants_reconnect:
                await self._wait_for_retry("waiting", None)

    def _on_failed_attempt(self, error: BaseException | None) -> None:
        if isinstance(error, LoginRequired):
            self._fail_waiters(error)
        else:
            if self._waiters:
                # Retries that no caller waits for cost nobody anything, so they do not count.
                self._breaker.record_failure(connecting=True)
            self._fail_waiters(ServerFailed(f"{self.server.name!r} cannot be reached: {_reason(error)}"))
        self._retry_now.clear()  # Whoever asked for it has an answer.

    def _log_end(self, reason: str) -> None:
        if not reason:
            return
        # Repeating the same line for as long as a server is down would bury the rest of the log.
        level = logging.DEBUG if reason == self._last_logged else logging.WARNING
        logger.log(level, "MCP server %r: %s", self.server.name, reason)
        self._last_error = self._last_logged = reason

    @property
    def _uses_oauth(self) -> bool:
        """Whether somebody can log in without changing the settings."""
        return self.server.settings.auth == "oauth"

    async def _run_connection(self) -> bool:
        """One connection, from opening to closing.

        Raises what ended it. Returns if it was closed on purpose: True to reconnect, False to stay disconnected.
        """
        async with asyncio.timeout(None) as limit, AsyncExitStack() as opened:
            async with self._start_slots.acquire():
                limit.reschedule(asyncio.get_running_loop().time() + self.server.settings.connect_timeout)
                opening = self._connect(self.server, self, self._is_legacy)
                # Forgotten if this fails: a different server may have replaced the old one.
                self._is_legacy = False
                connection = await opened.enter_async_context(opening)
            self._on_connected(connection, await connection.list_tools())
            limit.reschedule(None)
            return await self._supervise(connection)

    def _on_connected(self, connection: Connection, listing: ToolListing) -> None:
        self.connection, self._is_legacy, self._was_connected = connection, not connection.is_modern, True
        self._publish_tools(connection, listing)
        self._breaker.record_connected()
        self._set_state("ready")
        self._last_used = time.monotonic()
        if not self._attempt.done():
            self._attempt.set_result(connection)
        self.settled.set()

    async def _supervise(self, connection: Connection) -> bool:
        """Watch an open connection until it ends; see `_run_connection`."""
        opened_at = time.monotonic()
        checked_at = opened_at
        while True:
            if self._is_closing:
                return False
            if connection.end_reason:
                raise ServerFailed(connection.end_reason)
            now = time.monotonic()
            deadlines = connection_deadlines(
                self.server, opened_at=opened_at, last_used=self._last_used, checked_at=checked_at
            )
            if self._needs_health_check or (deadlines.keepalive is not None and deadlines.keepalive <= now):
                self._needs_health_check, checked_at = False, now
                if not await connection.is_alive():
                    raise ServerFailed("it stopped responding")
                checked_at = time.monotonic()
            elif not self.contexts and deadlines.renewal is not None and deadlines.renewal <= now:
                return True
            elif not self.contexts and deadlines.idle is not None and deadlines.idle <= now:
                return False
            elif self._tools_changed:
                await self._refresh_tools(connection)
            else:
                await self._sleep(deadlines.soonest)

    async def _refresh_tools(self, connection: Connection) -> None:
        # Servers announce one change several times in a row. A list that takes long to read is read less often.
        await asyncio.sleep(min(max(DEBOUNCE_SECONDS, 5 * self._listing_seconds), MAX_DEBOUNCE_SECONDS))
        self._tools_changed = False
        began = time.monotonic()
        listing = asyncio.ensure_future(_try_list_tools(connection))
        try:
            while not (listing.done() or connection.end_reason or self._is_closing or self._needs_health_check):
                self._wake.clear()
                await wait_for_first(listing, self._wake)
            if not listing.done():
                return  # Something is more urgent, and a server that does not answer has nothing new to offer.
        finally:
            listing.cancel()
        self._listing_seconds = time.monotonic() - began
        found, error = listing.result()
        if found is None:
            logger.warning("MCP server %r could not list its tools: %s", self.server.name, error)
        else:
            self._publish_tools(connection, found)

    def _publish_tools(self, connection: Connection, listing: ToolListing) -> None:
        self.listing = listing
        self._on_listing(self, listing, connection)

    async def _sleep(self, until: float | None) -> None:
        self._wake.clear()
        if self._is_closing or (self.connection is not None and self.connection.end_reason):
            return
        seconds = None if until is None else max(0.01, until - time.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _wait_for_retry(self, state: ServerState, seconds: float | None) -> None:
        """Wait until the next attempt is due or a caller needs it."""
        if self._is_closing:
            return
        self._set_state(state)
        self._next_retry = None if seconds is None else time.time() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._retry_now.wait()
        except TimeoutError:
            pass
        self._retry_now.clear()
        self._next_retry = None

    def _set_state(self, state: ServerState) -> None:
        self._state, self._since = state, time.time()

    def _fail_waiters(self, error: ServerFailed) -> None:
        """Fail everybody who waits for this attempt; later callers wait for the next one."""
        if not self._attempt.done():
            self._attempt.set_exception(error)
            self._attempt.exception()  # Marks it as retrieved: there may be no waiter.
        self._attempt = asyncio.get_running_loop().create_future()


class CircuitBreaker:
    """Decides when to retry one server, and when calls should stop waiting for it.

    Only failures of the connection count: an error from a tool is an answer.
    """

    def __init__(self) -> None:
        self.failures = 0
        """Consecutive failures."""
        self._delay = FIRST_RETRY_SECONDS
        self._open_until = 0.0
        self._failed_to_connect = False

    @property
    def is_open(self) -> bool:
        """Whether calls should fail at once, without trying."""
        return time.monotonic() < self._open_until

    def record_failure(self, *, connecting: bool = False) -> None:
        self.failures += 1
        self._failed_to_connect = connecting
        if self.failures >= FAILURE_THRESHOLD:
            self._open_until = time.monotonic() + OPEN_SECONDS

    def record_success(self) -> None:
        """The server answered a call, with a result or an error."""
        self.failures = 0

    def record_connected(self) -> None:
        """Close the breaker, unless the failures came from calls on connections that opened fine."""
        if self._failed_to_connect:
            self.failures, self._open_until = 0, 0.0

    def record_lifetime(self, seconds: float) -> None:
        """A connection ended after this long; a long-lived one resets the back-off."""
        if seconds > STABLE_SECONDS:
            self._delay = FIRST_RETRY_SECONDS

    def next_retry_delay(self) -> float:
        """Seconds until the next attempt: exponential back-off with jitter, so servers do not retry in step."""
        delay = self._delay * random.uniform(0.75, 1.25)
        self._delay = min(MAX_RETRY_SECONDS, self._delay * 2)
        return delay

    def reset(self) -> None:
        """Forget all failures."""
        self.failures, self._open_until, self._delay = 0, 0.0, FIRST_RETRY_SECONDS


class ConnectionDeadlines(msgspec.Struct, frozen=True):
    """When an open connection needs attention, on the monotonic clock; None means never."""

    keepalive: float | None
    idle: float | None
    renewal: float | None

    @property
    def soonest(self) -> float | None:
        return min((at for at in (self.keepalive, self.idle, self.renewal) if at is not None), default=None)


def connection_deadlines(
    server: Server, *, opened_at: float, last_used: float, checked_at: float
) -> ConnectionDeadlines:
    """The deadlines of a connection, from the server's settings and when it was opened, used and last checked."""
    is_stdio = server.transport == "stdio"
    return ConnectionDeadlines(
        keepalive=None if is_stdio else max(last_used, checked_at) + server.settings.keepalive_interval,
        idle=last_used + server.idle_seconds if server.idle_seconds else None,
        renewal=opened_at + server.lifetime_seconds if server.lifetime_seconds else None,
    )


class StartLimiter:
    """Limits how many servers start at once, so that fifty of them do not take the whole machine.

    Shared by all servers; used on one event loop.
    """

    def __init__(self, at_once: int = MAX_CONCURRENT_STARTS, seconds: float = SLOT_SECONDS) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._seconds = seconds

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Wait for a slot and release it at the end of the block, or earlier when its time is up."""
        await self._free.acquire()
        is_held = True

        def release() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, release)
        try:
            yield
        finally:
            timer.cancel()
            release()


async def wait_for_first(work: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Return when the work is done or the event is set."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _try_list_tools(connection: Connection) -> tuple[ToolListing | None, Exception | None]:
    # Called inside the task, so that a task cancelled before it runs starts no request.
    try:
        return await connection.list_tools(), None
    except (ToolcribError, TimeoutError) as error:
        return None, error


def _reason(error: BaseException | None) -> str:
    """What ended a connection; empty if it was closed on purpose."""
    if error is None:
        return ""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.errno is not None:
        return explain_os_error(error)
    return str(error) or type(error).__name__
