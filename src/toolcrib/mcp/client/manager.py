"""All MCP servers of one runtime: connected in the background, callable from any thread or loop.

The SDK takes a second to import, so it is loaded when the first server connects. Connecting starts a moment after
`start`, or as soon as somebody needs a server, so that a program that is about to prompt for input comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.ports import Gate
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.callbacks import ClientCallbacks
from toolcrib.mcp.client.errors import ConnectionLost, RequestFailed, ServerFailed
from toolcrib.mcp.client.server_process import LaunchSpec, ProcessLedger, ServerLog
from toolcrib.mcp.client.servers import Server, ServerStatus, read_server
from toolcrib.mcp.client.supervisor import ConnectionSupervisor, ServerRequest, StartLimiter
from toolcrib.mcp.client.tool_registrar import ToolRegistrar, is_alias_free, to_mcp_tool
from toolcrib.mcp.client.trust import TrustStore
from toolcrib.mcp.client.untrusted_text import one_line
from toolcrib.mcp.names import ToolOrigin, toolset_name
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import safe_error_text, tool_error
from toolcrib.service_loop import ServiceLoop

if TYPE_CHECKING:
    from toolcrib.mcp.client.connection import Connection
    from toolcrib.mcp.client.tool_list import ToolListing

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_DELAY_SECONDS = 0.5
CLOSE_SECONDS = 15.0
PROGRESS_CHARS = 300


class McpClientManager:
    """The MCP servers of one runtime."""

    def __init__(
        self,
        settings: Settings,
        registry: ToolRegistry,
        *,
        workspace: str = "",
        forget_grants: Callable[[str], None] | None = None,
        gate: Gate | None = None,
        services: Callable[[], Services | None] = lambda: None,
        callbacks: ClientCallbacks | None = None,
    ) -> None:
        self.services = services
        """Gives the services of the runtime; a function, so that the manager does not keep its runtime alive."""
        self.gate = gate
        """Decides about what servers ask of us; None means that nobody can be asked."""
        self.callbacks = callbacks
        """None becomes the default callbacks when the first server connects."""
        self.settings = settings
        self.workspace = workspace
        home = settings.home
        self._log_folder = home.log_file.parent / "mcp"
        self._ledger = ProcessLedger(home.processes_dir / "mcp")
        self.trust = TrustStore(home.root / "mcp_trust.json")
        self.registrar = ToolRegistrar(registry, self.trust, forget_grants)
        self._loop = ServiceLoop("toolcrib-mcp")
        self._supervisors: dict[str, ConnectionSupervisor] = {}
        self._start_now, self._has_started = asyncio.Event(), asyncio.Event()
        self._start_slots = StartLimiter()
        self._servers: dict[str, McpServerSettings] = {}
        self._is_open = False

    # Starting and closing

    def start(self, servers: Mapping[str, McpServerSettings] | None = None) -> None:
        """Connect these servers (None: those in the settings) in the background; returns at once."""
        self._servers = dict(self.settings.mcp_servers if servers is None else servers)
        if not self._servers or self._is_open:
            return
        self._is_open = True
        self._loop.submit(self._start_servers())

    def close(self) -> None:
        """Close all connections and end the processes behind them, within a time limit."""
        if not self._is_open:
            return
        self._is_open = False
        for name in list(self._servers):
            self.registrar.remove_tools(name)
        if self._loop.is_started and not self._loop.is_current:
            with contextlib.suppress(TimeoutError):
                self._loop.run_sync(self._close_all(), CLOSE_SECONDS)
            self._loop.close()

    def reload(self, servers: Mapping[str, McpServerSettings]) -> None:
        """Start new servers, close removed ones and restart those whose settings changed."""
        if not self._is_open:
            self.start(servers)
            return
        self._loop.run_sync(self._reload(dict(servers)), CLOSE_SECONDS)

    def reconnect(self, name: str) -> None:
        """Reconnect a server now; raises ServerFailed for an unknown name."""
        if name not in self._servers:
            raise _unknown_server(name)
        self._loop.run_sync(self._reconnect(name), CLOSE_SECONDS)

    # Status

    @property
    def discovery_seconds(self) -> float:
        """How long the first model request should wait for servers that are still starting."""
        hermes_seconds = self.settings.mcp_discovery_timeout
        return self.settings.mcp.discovery_timeout if hermes_seconds is None else hermes_seconds

    def servers(self) -> list[ServerStatus]:
        """The status of each server, sorted by name."""
        if not self._supervisors:
            return [_starting_status(name) for name in sorted(self._servers)]
        return [self._supervisors[name].status() for name in sorted(self._supervisors)]

    def tool_names(self, server: str) -> dict[str, str]:
        """Maps a server's own tool names to the registered ones."""
        return self.registrar.names_of(server)

    def origin(self, name: str) -> ToolOrigin | None:
        """The server and tool behind a registered name."""
        return self.registrar.origin(name)

    async def wait_ready(self, timeout_seconds: float) -> bool:
        """Wait until every server has been tried once; False if the time ran out first."""
        if not self._is_open:
            return True
        settled = self._loop.start(self._wait_settled())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(settled), timeout_seconds)
        return settled.done()

    def wait_ready_sync(self, timeout_seconds: float) -> bool:
        """`wait_ready` for callers outside an event loop."""
        if not self._is_open:
            return True
        try:
            self._loop.run_sync(self._wait_settled(), timeout_seconds)
        except TimeoutError:
            return False
        return True

    # Calling

    async def call(self, server: str, tool: str, arguments: JsonObject, ctx: ToolContext) -> str | JsonObject:
        """The result of a tool, or an error as JSON; cancelling the caller cancels the call at the server."""
        return await self.run(
            server, lambda connection, seconds, progress: connection.call(tool, arguments, seconds, progress), ctx
        )

    async def run(self, server: str, request: ServerRequest, ctx: ToolContext) -> str | JsonObject:
        """Run a request like a tool call: queued, within the call timeout, reconnecting if necessary.

        Every failure becomes an error result.
        """
        supervisor = self._supervisors.get(server)
        if supervisor is None:
            await self.wait_ready(self.discovery_seconds)
            supervisor = self._supervisors.get(server)
            if supervisor is None:
                return tool_error(str(_unknown_server(server)))
        call = ClientCall(supervisor, request, ctx)
        result = self._loop.start(run_call(call))
        try:
            return await result
        except asyncio.CancelledError:
            call.cancel_from(self._loop.loop)
            raise

    async def use(self, server: str, work: Callable[[Connection], Awaitable[T]], timeout_seconds: float) -> T:
        """Run `work` with the connection of a server on the manager's loop; reconnects if necessary.

        For everything that is not a tool call. Raises ServerFailed or TimeoutError, and what `work` raises.
        """
        supervisor = self._supervisors.get(server)
        if supervisor is None:
            raise _unknown_server(server)
        return await self._loop.run(_run_on_connection(supervisor, work, timeout_seconds))

    # On the loop

    async def _start_servers(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._start_now.wait(), START_DELAY_SECONDS)
        ended = await self._ledger.end_orphans()
        if ended:
            logger.warning("ended MCP servers left running by a crash: %s", ", ".join(ended))
        for name, settings in self._servers.items():
            self._add(name, settings)
        self._has_started.set()

    def _add(self, name: str, settings: McpServerSettings) -> None:
        supervisor = ConnectionSupervisor(
            self._read(name, settings), self._connect, self._on_listing, self._start_slots
        )
        if supervisor.server.problem and settings.enabled:
            logger.warning("MCP server %r is not used: %s", name, supervisor.server.problem)
        if not is_alias_free(name):
            logger.warning(
                "MCP server %r has the name of a built-in toolset; its toolset is %r", name, toolset_name(name)
            )
        if settings.skip_preflight:
            logger.info("MCP server %r: skip_preflight has no effect", name)
        self._supervisors[name] = supervisor
        supervisor.start()

    def _read(self, name: str, settings: McpServerSettings) -> Server:
        variables = dict(environment())
        load_env_file(self.settings.home, variables)
        return read_server(name, settings, variables)

    def _connect(
        self, server: Server, supervisor: ConnectionSupervisor, is_legacy: bool
    ) -> AbstractAsyncContextManager[Connection]:
        try:
            # They import the SDK, which takes a second.
            from toolcrib.mcp.client import connection, default_callbacks  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ServerFailed(f"{error.name!r} is not installed; run `pip install 'toolcrib[mcp]'`") from error
        if self.callbacks is None:
            self.callbacks = default_callbacks.default_callbacks(
                self.settings, workspace=self.workspace, gate=self.gate, services=self.services, run=self.run
            )
        log = ServerLog(self._log_folder, server.name)
        return connection.open_connection(
            connection.ConnectionSetup(
                launch=LaunchSpec(server=server, cwd=self.workspace, log=log, ledger=self._ledger),
                callbacks=self.callbacks,
                contexts=lambda: list(supervisor.contexts),
                on_end=supervisor.on_connection_end,
                on_change=supervisor.on_tools_change,
                is_legacy=is_legacy,
            )
        )

    def _on_listing(self, supervisor: ConnectionSupervisor, listing: ToolListing, connection: Connection) -> None:
        server, callbacks = supervisor.server, self.callbacks
        tools: list[tuple[Any, Any]] = []
        for listed in listing.tools:
            tool = to_mcp_tool(listed, server)
            tools.append((tool, McpToolHandler(self, tool.origin)))
        if callbacks is not None and callbacks.extra_tools is not None:
            tools += callbacks.extra_tools(server, connection)
        self.registrar.set_tools(server, tools)

    async def _wait_settled(self) -> None:
        await self._wait_started()
        for supervisor in list(self._supervisors.values()):
            await supervisor.settled.wait()

    async def _reload(self, servers: dict[str, McpServerSettings]) -> None:
        await self._wait_started()
        self._servers = servers
        # Compared with all variables filled in, because a variable may be what changed.
        wanted = {name: self._read(name, settings) for name, settings in servers.items()}
        outdated = [one for name, one in self._supervisors.items() if one.server != wanted.get(name)]
        for supervisor in outdated:
            name = supervisor.server.name
            del self._supervisors[name]
            if name not in wanted or wanted[name].problem:
                self.registrar.remove_tools(name)
        await asyncio.gather(*(supervisor.close() for supervisor in outdated))
        for name, settings in servers.items():
            if name not in self._supervisors:
                self._add(name, settings)

    async def _reconnect(self, name: str) -> None:
        await self._wait_started()
        self._supervisors[name].reconnect()

    async def _wait_started(self) -> None:
        self._start_now.set()
        await self._has_started.wait()

    async def _close_all(self) -> None:
        supervisors, self._supervisors = list(self._supervisors.values()), {}
        await asyncio.gather(*(supervisor.close() for supervisor in supervisors))
        if self.callbacks is not None and self.callbacks.close is not None:
            await self.callbacks.close()


class McpToolHandler(msgspec.Struct, frozen=True):
    """Calls one tool of a server. Equal handlers call the same tool of the same manager."""

    manager: McpClientManager
    origin: ToolOrigin

    async def __call__(self, arguments: JsonObject, ctx: ToolContext) -> str | JsonObject:
        return await self.manager.call(self.origin.server, self.origin.tool, arguments, ctx)


class ClientCall:
    """One call to a server: created on the caller's loop, run and cancelled on the manager's loop."""

    __slots__ = ("_caller_context", "_caller_loop", "ctx", "is_cancelled", "request", "supervisor", "task")

    def __init__(self, supervisor: ConnectionSupervisor, request: ServerRequest, ctx: ToolContext) -> None:
        self.supervisor = supervisor
        self.request = request
        self.ctx = ctx
        self.task: asyncio.Task[Any] | None = None
        self.is_cancelled = False
        self._caller_loop = asyncio.get_running_loop()
        # Callers that watch several calls at once tell them apart by the current context.
        self._caller_context = copy_context()

    def cancel_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the call on the manager's loop, which also notifies the server."""
        with contextlib.suppress(RuntimeError):  # A closed manager has already ended the call.
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self.is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report the server's progress to the caller, on the caller's loop."""
        share = f"{_number(progress)} of {_number(total)}" if total else _number(progress)
        text = f"{one_line(message, PROGRESS_CHARS)} ({share})" if message else share
        with contextlib.suppress(RuntimeError):  # The caller's loop may be closed by now.
            self._caller_loop.call_soon_threadsafe(self.ctx.progress, text, context=self._caller_context)


async def run_call(call: ClientCall) -> str | JsonObject:
    """Run a call on the manager's loop; every failure becomes an error result."""
    if call.is_cancelled:
        raise asyncio.CancelledError
    call.task = asyncio.current_task()
    server, settings = call.supervisor.server.name, call.supervisor.server.settings
    on_progress = call.report_progress if call.ctx.on_progress is not None else None
    try:
        return await call.supervisor.call(call.request, call.ctx, on_progress)
    except TimeoutError:
        return _error(
            f"the MCP server {server!r} did not answer within {settings.timeout:g} seconds; the call was cancelled"
        )
    except ConnectionLost as error:
        return _error(
            f"the connection to the MCP server {server!r} was lost during the call ({error}); the call may or may not "
            "have been carried out, so check before you repeat it"
        )
    except ServerFailed as error:
        return _error(f"the MCP server {server!r} is unavailable, and nothing was sent to it: {error}")
    except RequestFailed as error:
        return _error(f"the MCP server {server!r} did not carry out the call: {error}")


async def _run_on_connection(
    supervisor: ConnectionSupervisor, work: Callable[[Connection], Awaitable[T]], timeout_seconds: float
) -> T:
    async with asyncio.timeout(timeout_seconds):
        return await work(await supervisor.ready())


def _starting_status(name: str) -> ServerStatus:
    return ServerStatus(name=name, state="starting", since=time.time())


def _unknown_server(name: str) -> ServerFailed:
    return ServerFailed(f"there is no MCP server {name!r}; see `toolcrib mcp list`")


def _number(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:
        return "a huge number"  # An integer may have thousands of digits.


def _error(message: str) -> str:
    return tool_error(safe_error_text(message))
