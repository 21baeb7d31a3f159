"""Keeps one server connected: one task opens and closes its connections, everybody else only uses them.

    starting → ready → (the connection ends) → waiting → starting → …

A call that finds the server down has it connected at once; all who wait, wait for the same attempt. After several
failures in a row of the connection itself (never of a tool) calls are answered at once, for a while, with the reason.
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

from toolcrib.core.attempt import attempt_async
from toolcrib.core.context import ToolContext
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.errors import ConnectionLost, NeedsLogin, NoLogin, NotSent, RequestFailed, ServerFailed
from toolcrib.mcp.client.servers import Server, ServerStatus, State

if TYPE_CHECKING:
    from toolcrib.mcp.client.connection import Connection
    from toolcrib.mcp.client.direct_calls import Tell
    from toolcrib.mcp.client.tool_list import Listing


logger = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 0.3
MAX_DEBOUNCE_SECONDS = 30.0
POLITE_SECONDS = 1.0
CLOSE_SECONDS = 12.0
LOOK_SECONDS = 5.0
"""How soon a login is noticed that somebody makes in another process."""


class Connect(Protocol):
    """Opens a connection; see `open_connection`."""

    def __call__(
        self, server: Server, owner: ServerOwner, is_legacy: bool
    ) -> AbstractAsyncContextManager[Connection]: ...


class Work(Protocol):
    """One request, or several, done with a connection in a time, such as `Connection.call` of one tool.

    Raises what that raises; it is told how far the server is, where somebody wants to know.
    """

    def __call__(self, connection: Connection, seconds: float, tell: Tell | None, /) -> Awaitable[str | JsonObject]: ...


class ServerOwner:
    """One server. Everything here happens on the loop of the hub, except `status`."""

    def __init__(
        self,
        server: Server,
        connect: Connect,
        on_listing: Callable[[ServerOwner, Listing, Connection], None],
        starts: StartSlots,
    ) -> None:
        self.server = server
        self.contexts: list[ToolContext] = []
        """Of the calls that the server is working on, the latest last."""
        self.connection: Connection | None = None
        self.listing: Listing | None = None
        self._connect = connect
        self._on_listing = on_listing
        self._starts = starts
        self._slots = asyncio.Semaphore(server.calls_at_once)
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._attempt: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self.settled = asyncio.Event()
        """The first attempt is over, whatever came of it."""
        self._has_changed = self._is_suspect = self._is_legacy = self._was_up = self._is_closing = False
        self._last_used, self._listing_seconds = time.monotonic(), 0.0
        self._patience = Patience()
        self._callers = 0
        """Who wait for the server to be connected."""
        self._blamed: Connection | None = None
        self._state: State = "disabled" if server.problem else "starting"
        self._since = time.time()
        self._last_error, self._logged = server.problem, ""
        self._next_retry: float | None = None
        self._task: asyncio.Task[None] | None = None
        if server.problem:
            self.settled.set()

    # For everybody

    def status(self) -> ServerStatus:
        connection, listing = self.connection, self.listing
        state: State = "degraded" if self._patience.is_over and self._state in ("ready", "waiting") else self._state
        return ServerStatus(
            name=self.server.name,
            state=state,
            last_error=self._last_error,
            since=self._since,
            next_retry=self._next_retry,
            tools=len(listing.tools) if listing is not None else 0,
            set_aside=tuple((one.tool, one.reason) for one in listing.set_aside) if listing is not None else (),
            protocol_version=connection.protocol_version if connection is not None else "",
            transport=self.server.transport,
            address=self.server.address,
            pid=connection.pid if connection is not None else None,
            instructions=(connection.client.instructions or "") if connection is not None else "",
        )

    def start(self) -> None:
        if not self.server.problem:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"mcp {self.server.name}")

    async def close(self) -> None:
        """End the connection, and the process behind it; bounded."""
        self._is_closing = True
        self._wake.set()
        self._hurry.set()
        if self._task is not None:
            if self.connection is not None:
                await asyncio.wait((self._task,), timeout=POLITE_SECONDS)
            # It may be waiting for an answer that never comes; ending a process is not stopped by this.
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        self._give_up(ServerFailed("it is being closed"))

    def reconnect(self) -> None:
        """Close the connection, if there is one, and open a new one now."""
        self._patience.renew()
        if self.connection is not None:
            self.connection.end("a new connection was asked for")
        self._hurry.set()

    async def call(self, work: Work, ctx: ToolContext, tell: Tell | None) -> str | JsonObject:
        """What `work` gives. Raises what `Connection.call` raises; NotSent only after a second try."""
        seconds = self.server.settings.timeout
        async with self._slots:
            self.contexts.append(ctx)
            try:
                return await self._call(work, seconds, tell)
            finally:
                self.contexts.remove(ctx)
                self._last_used = time.monotonic()

    async def ready(self) -> Connection:
        """The open connection; connects at once where there is none. Raises ServerFailed with the reason."""
        connection = self.connection
        if self._patience.is_over:
            times = self._patience.failures
            raise ServerFailed(f"it has failed {times} times in a row, last with: {self._last_error}")
        if connection is not None and not connection.ended:
            return connection
        if self._is_closing:
            raise ServerFailed("it is being closed")
        if self._state == "disabled" or (self._state == "needs_login" and not self._has_login):
            raise ServerFailed(self._last_error)
        self._hurry.set()
        self._callers += 1
        try:
            return await asyncio.shield(self._attempt)
        finally:
            self._callers -= 1

    async def _call(self, work: Work, seconds: float, tell: Tell | None) -> str | JsonObject:
        is_last = False
        while True:
            connection = await self.ready()
            try:
                result = await work(connection, seconds, tell)
            except NotSent as error:
                connection.end(str(error))
                if is_last:
                    self._blame(connection, str(error))
                    raise
                # Nobody has seen it, so that it may be sent once more.
                is_last = True
                continue
            except ConnectionLost as error:
                self._blame(connection, str(error))
                raise
            except RequestFailed:
                self._patience.answered()
                raise
            except (TimeoutError, NeedsLogin):
                self._is_suspect = True
                self._wake.set()
                raise
            self._patience.answered()
            return result

    def _blame(self, connection: Connection, reason: str) -> None:
        """Counts one failure of a connection, however many calls it cost."""
        self._last_error = reason
        if self._blamed is not connection:
            self._blamed = connection
            self._patience.failed()

    # What a connection tells

    def ended(self) -> None:
        """The connection cannot be used any more: who comes from now on waits for the next."""
        if self._attempt.done():
            self._attempt = asyncio.get_running_loop().create_future()
        self._wake.set()

    def changed(self) -> None:
        """What the server offers has changed."""
        self._has_changed = True
        self._wake.set()

    # The task

    async def _run(self) -> None:
        while not self._is_closing:
            self._enter("starting")
            self._was_up = False
            began = time.monotonic()
            is_old, error = await attempt_async(self._live())
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self.connection = None
            reason = _reason(error)
            if not self._was_up:
                if isinstance(error, NeedsLogin):
                    self._give_up(error)
                else:
                    if self._callers:
                        # Trying again while nobody needs the server costs nobody anything.
                        self._patience.failed(connecting=True)
                    self._give_up(ServerFailed(f"{self.server.name!r} cannot be reached: {reason}"))
                self._hurry.clear()  # Whoever was in a hurry has his answer.
            self._patience.lived(time.monotonic() - began if self._was_up else 0.0)
            self.settled.set()
            if reason:
                # The same again and again, as long as a server is down, would bury the rest of the log.
                level = logging.DEBUG if reason == self._logged else logging.WARNING
                logger.log(level, "MCP server %r: %s", self.server.name, reason)
                self._last_error = self._logged = reason
            if isinstance(error, NoLogin):
                await self._wait("needs_login", LOOK_SECONDS)
            elif isinstance(error, NeedsLogin):
                await self._wait("needs_login", self._patience.next_delay() if self._has_login else None)
            elif error is not None:
                await self._wait("waiting", self._patience.next_delay())
            elif not is_old:
                await self._wait("waiting", None)

    @property
    def _has_login(self) -> bool:
        """Whether somebody can log in without changing the settings."""
        return self.server.settings.auth == "oauth"

    async def _live(self) -> bool:
        """One connection, from its opening to its end.

        Raises what ended it; returns when it was closed on purpose, and whether a new one is wanted.
        """
        async with asyncio.timeout(None) as limit, AsyncExitStack() as opened:
            async with self._starts.one():
                limit.reschedule(asyncio.get_running_loop().time() + self.server.settings.connect_timeout)
                opening = self._connect(self.server, self, self._is_legacy)
                # Not remembered if this fails: another server may have taken the place of the old one.
                self._is_legacy = False
                connection = await opened.enter_async_context(opening)
            self._take(connection, await connection.list_tools())
            limit.reschedule(None)
            return await self._serve(connection)

    def _take(self, connection: Connection, listing: Listing) -> None:
        self.connection, self._is_legacy, self._was_up = connection, not connection.is_modern, True
        self._show(connection, listing)
        self._patience.connected()
        self._enter("ready")
        self._last_used = time.monotonic()
        if not self._attempt.done():
            self._attempt.set_result(connection)
        self.settled.set()

    async def _serve(self, connection: Connection) -> bool:
        """Looks after an open connection until it ends; see `_live`."""
        born = time.monotonic()
        checked = born
        while True:
            if self._is_closing:
                return False
            if connection.ended:
                raise ServerFailed(connection.ended)
            now = time.monotonic()
            times = due(self.server, born=born, last_used=self._last_used, checked=checked)
            if self._is_suspect or (times.keepalive is not None and times.keepalive <= now):
                self._is_suspect, checked = False, now
                if not await connection.is_alive():
                    raise ServerFailed("it does not answer any more")
                checked = time.monotonic()
            elif not self.contexts and times.renew is not None and times.renew <= now:
                return True
            elif not self.contexts and times.idle is not None and times.idle <= now:
                return False
            elif self._has_changed:
                await self._list_again(connection)
            else:
                await self._sleep(times.soonest)

    async def _list_again(self, connection: Connection) -> None:
        # Servers tell of one change several times in a row; one whose list takes long to read is read less often.
        await asyncio.sleep(min(max(DEBOUNCE_SECONDS, 5 * self._listing_seconds), MAX_DEBOUNCE_SECONDS))
        self._has_changed = False
        began = time.monotonic()
        reading = asyncio.ensure_future(_listed(connection))
        try:
            while not (reading.done() or connection.ended or self._is_closing or self._is_suspect):
                self._wake.clear()
                await first_of(reading, self._wake)
            if not reading.done():
                return  # There is something more urgent, and whoever does not answer has nothing new to offer.
        finally:
            reading.cancel()
        self._listing_seconds = time.monotonic() - began
        listing, error = reading.result()
        if listing is None:
            logger.warning("MCP server %r could not list its tools: %s", self.server.name, error)
        else:
            self._show(connection, listing)

    def _show(self, connection: Connection, listing: Listing) -> None:
        self.listing = listing
        self._on_listing(self, listing, connection)

    async def _sleep(self, until: float | None) -> None:
        self._wake.clear()
        if self._is_closing or (self.connection is not None and self.connection.ended):
            return
        seconds = None if until is None else max(0.01, until - time.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _wait(self, state: State, seconds: float | None) -> None:
        """Until the next attempt is due, or somebody needs it."""
        if self._is_closing:
            return
        self._enter(state)
        self._next_retry = None if seconds is None else time.time() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()
        self._next_retry = None

    def _enter(self, state: State) -> None:
        self._state, self._since = state, time.time()

    def _give_up(self, error: ServerFailed) -> None:
        """Tell all who wait for this attempt; who comes next waits for the next one."""
        if not self._attempt.done():
            self._attempt.set_exception(error)
            self._attempt.exception()  # Nobody may have waited.
        self._attempt = asyncio.get_running_loop().create_future()


async def first_of(work: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Returns when the work is done, or the event is set."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _listed(connection: Connection) -> tuple[Listing | None, BaseException | None]:
    """What the server lists, or why it does not; nothing is begun by a task that is cancelled before it runs."""
    return await attempt_async(connection.list_tools())


def _reason(error: BaseException | None) -> str:
    """What ended a connection, as a sentence; empty when it was closed on purpose."""
    if error is None:
        return ""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return str(error) or type(error).__name__


FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
STABLE_SECONDS = 60.0
"""A connection that lived this long was good, whatever ended it."""
FAILURES_UNTIL_OVER = 3
OVER_SECONDS = 60.0


class Patience:
    """With one server. Only failures of its connection count; what its tools do is an answer."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self._delay = FIRST_RETRY_SECONDS
        self._over_until = 0.0
        self._failed_to_connect = False

    @property
    def is_over(self) -> bool:
        """Calls are to be answered at once, without trying."""
        return time.monotonic() < self._over_until

    def failed(self, *, connecting: bool = False) -> None:
        self.failures += 1
        self._failed_to_connect = connecting
        if self.failures >= FAILURES_UNTIL_OVER:
            self._over_until = time.monotonic() + OVER_SECONDS

    def answered(self) -> None:
        """The server answered a call, in whatever way."""
        self.failures = 0

    def connected(self) -> None:
        """That is the end of the trouble, unless it came from calls on good connections."""
        if self._failed_to_connect:
            self.failures, self._over_until = 0, 0.0

    def lived(self, seconds: float) -> None:
        """A connection ended after so long."""
        if seconds > STABLE_SECONDS:
            self._delay = FIRST_RETRY_SECONDS

    def next_delay(self) -> float:
        """The seconds until the next attempt: longer each time, up to a limit, never two servers at once."""
        delay = self._delay * random.uniform(0.75, 1.25)
        self._delay = min(MAX_RETRY_SECONDS, self._delay * 2)
        return delay

    def renew(self) -> None:
        """Forget what was."""
        self.failures, self._over_until, self._delay = 0, 0.0, FIRST_RETRY_SECONDS


class Due(msgspec.Struct, frozen=True):
    """Times on the monotonic clock; None means never."""

    keepalive: float | None
    idle: float | None
    renew: float | None

    @property
    def soonest(self) -> float | None:
        return min((at for at in (self.keepalive, self.idle, self.renew) if at is not None), default=None)


def due(server: Server, *, born: float, last_used: float, checked: float) -> Due:
    """By the settings of the server, and by when its connection was made, used and last known to be good."""
    return Due(
        keepalive=None if server.transport == "stdio" else max(last_used, checked) + server.settings.keepalive_interval,
        idle=last_used + server.idle_seconds if server.idle_seconds else None,
        renew=born + server.lifetime_seconds if server.lifetime_seconds else None,
    )


AT_ONCE = 8
SECONDS = 1.5
"""A server that takes longer waits for something else than the machine, and does not hold up the next one."""


class StartSlots:
    """Shared by all servers; used on one event loop."""

    def __init__(self, at_once: int = AT_ONCE, seconds: float = SECONDS) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._seconds = seconds

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a slot; it is given back at the end of the block, or before that when the time is up."""
        await self._free.acquire()
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()
