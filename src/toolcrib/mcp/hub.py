"""All MCP servers of one runtime: connected in the background, called from anywhere.

Nothing of the SDK is loaded before the first server is connected, and connecting begins a moment after the start or
with the first need: a program that is about to ask for input has the machine for itself until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.ports import Gate
from toolcrib.core.types import JsonObject
from toolcrib.mcp.calls import Call, answered
from toolcrib.mcp.failures import ServerFailed
from toolcrib.mcp.names import Original, toolset_name
from toolcrib.mcp.owner import ServerOwner, Work
from toolcrib.mcp.process_ledger import ProcessLedger
from toolcrib.mcp.seams import Seams
from toolcrib.mcp.server_log import ServerLog
from toolcrib.mcp.server_process import Program
from toolcrib.mcp.servers import Server, read_server
from toolcrib.mcp.start_slots import StartSlots
from toolcrib.mcp.status import ServerStatus
from toolcrib.mcp.tools import Shelf, alias_is_free, offered
from toolcrib.mcp.trust import TrustStore
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import tool_error
from toolcrib.service_loop import ServiceLoop

if TYPE_CHECKING:
    from toolcrib.core.services import Services
    from toolcrib.mcp.connection import Connection
    from toolcrib.mcp.listing import Listing

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_DELAY_SECONDS = 0.5
CLOSE_SECONDS = 15.0


class McpHub:
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
        seams: Seams | None = None,
    ) -> None:
        self.services = services
        self.gate = gate
        self.seams = seams
        """Ours where there are none when the first server is connected."""
        self.settings = settings
        self.workspace = workspace
        home = settings.home
        self._log_folder = home.log_file.parent / "mcp"
        self._ledger = ProcessLedger(home.processes_dir / "mcp")
        self.trust = TrustStore(home.root / "mcp_trust.json")
        self.shelf = Shelf(registry, self.trust, forget_grants)
        self._loop = ServiceLoop("toolcrib-mcp")
        self._owners: dict[str, ServerOwner] = {}
        self._begin_now, self._has_begun = asyncio.Event(), asyncio.Event()
        self._starts = StartSlots()
        self._servers: dict[str, McpServerSettings] = {}
        self._is_open = False

    # Starting and ending

    def start(self, servers: Mapping[str, McpServerSettings] | None = None) -> None:
        """Have these servers (None: those of the settings) connected in the background; returns at once."""
        self._servers = dict(self.settings.mcp_servers if servers is None else servers)
        if not self._servers or self._is_open:
            return
        self._is_open = True
        self._loop.submit(self._begin())

    def close(self) -> None:
        """End all connections and the processes behind them; bounded."""
        if not self._is_open:
            return
        self._is_open = False
        for name in list(self._servers):
            self.shelf.remove(name)
        if self._loop.is_started and not self._loop.is_current:
            with contextlib.suppress(TimeoutError):
                self._loop.run_sync(self._end(), CLOSE_SECONDS)
            self._loop.close()

    def reload(self, servers: Mapping[str, McpServerSettings]) -> None:
        """Start what is new, end what is gone, restart what is set in another way."""
        if not self._is_open:
            self.start(servers)
            return
        self._loop.run_sync(self._reload(dict(servers)), CLOSE_SECONDS)

    def reconnect(self, name: str) -> None:
        """Connect a server again, now; raises ServerFailed for a name that there is not."""
        self._require(name)
        self._loop.run_sync(self._reconnect(name), CLOSE_SECONDS)

    # Looking

    @property
    def discovery_seconds(self) -> float:
        """How long the first request to a model should wait for servers that are still starting."""
        of_hermes = self.settings.mcp_discovery_timeout
        return self.settings.mcp.discovery_timeout if of_hermes is None else of_hermes

    def servers(self) -> list[ServerStatus]:
        """How each server is, by name."""
        if not self._owners:
            return [_not_yet(name) for name in sorted(self._servers)]
        return [self._owners[name].status() for name in sorted(self._owners)]

    def tool_names(self, server: str) -> dict[str, str]:
        """From a server's own names of its tools to ours."""
        return self.shelf.names_of(server)

    def original(self, name: str) -> Original | None:
        """The server and tool behind a name of ours."""
        return self.shelf.original(name)

    async def wait_ready(self, timeout_seconds: float) -> bool:
        """Wait until every server has been tried once; False when the time was up first."""
        if not self._is_open:
            return True
        settled = self._loop.start(self._settled())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(settled), timeout_seconds)
        return settled.done()

    def wait_ready_sync(self, timeout_seconds: float) -> bool:
        """The same, for callers outside a loop."""
        if not self._is_open:
            return True
        try:
            self._loop.run_sync(self._settled(), timeout_seconds)
        except TimeoutError:
            return False
        return True

    # Calling

    async def call(self, server: str, tool: str, arguments: JsonObject, ctx: ToolContext) -> str | JsonObject:
        """What a tool answers, or an error as JSON; cancelling the caller cancels the call at the server."""
        return await self.do(server, lambda at, seconds, tell: at.call(tool, arguments, seconds, tell), ctx)

    async def do(self, server: str, work: Work, ctx: ToolContext) -> str | JsonObject:
        """What `work` gives, done as a call: in its turn, within the time of a call, connecting where need be."""
        owner = self._owners.get(server)
        if owner is None:
            await self.wait_ready(self.discovery_seconds)
            owner = self._owners.get(server)
            if owner is None:
                return tool_error(f"there is no MCP server {server!r} now; see `toolcrib mcp list`")
        call = Call(owner, work, ctx)
        coming = self._loop.start(answered(call))
        try:
            return await coming
        except asyncio.CancelledError:
            call.cancel_from(self._loop.loop)
            raise

    async def use(self, server: str, work: Callable[[Connection], Awaitable[T]], timeout_seconds: float) -> T:
        """What `work` gives, done with the connection of a server on the loop of the hub; connects where need be.

        For whatever is no tool call. Raises ServerFailed or TimeoutError, and what `work` raises.
        """
        owner = self._owners.get(server)
        if owner is None:
            raise ServerFailed(f"there is no MCP server {server!r} now; see `toolcrib mcp list`")
        return await self._loop.run(_use(owner, work, timeout_seconds))

    # On the loop

    async def _begin(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._begin_now.wait(), START_DELAY_SECONDS)
        ended = await self._ledger.end_orphans()
        if ended:
            logger.warning("ended MCP servers that a crash had left running: %s", ", ".join(ended))
        for name, settings in self._servers.items():
            self._add(name, settings)
        self._has_begun.set()

    def _add(self, name: str, settings: McpServerSettings) -> None:
        owner = ServerOwner(self._read(name, settings), self._connect, self._listed, self._starts)
        if owner.server.problem and settings.enabled:
            logger.warning("MCP server %r is not used: %s", name, owner.server.problem)
        if not alias_is_free(name):
            logger.warning("the toolset of MCP server %r is %r; %r is another one", name, toolset_name(name), name)
        if settings.skip_preflight:
            logger.info("skip_preflight of MCP server %r has no effect", name)
        self._owners[name] = owner
        owner.start()

    def _read(self, name: str, settings: McpServerSettings) -> Server:
        variables = dict(environment())
        load_env_file(self.settings.home, variables)
        return read_server(name, settings, variables)

    def _connect(self, server: Server, owner: ServerOwner, is_legacy: bool) -> AbstractAsyncContextManager[Connection]:
        try:
            # Here begins the SDK, which takes a second to load.
            from toolcrib.mcp.connection import Wiring, open_connection  # noqa: PLC0415
            from toolcrib.mcp.own_seams import own_seams  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ServerFailed(f"{error.name!r} is not installed; type `pip install 'toolcrib[mcp]'`") from error
        if self.seams is None:
            self.seams = own_seams(self)
        log = ServerLog(self._log_folder, server.name)
        program = Program(server=server, cwd=self.workspace, log=log, ledger=self._ledger)
        return open_connection(
            Wiring(
                program=program,
                seams=self.seams,
                contexts=lambda: list(owner.contexts),
                on_end=owner.ended,
                on_change=owner.changed,
                is_legacy=is_legacy,
            )
        )

    def _listed(self, owner: ServerOwner, listing: Listing, connection: Connection) -> None:
        server = owner.server
        tools = [offered(tool, server) for tool in listing.tools]
        seams = self.seams
        more = seams.more_tools(server, connection) if seams is not None and seams.more_tools is not None else []
        self.shelf.put(server, [(tool, self._call_of(tool.original)) for tool in tools] + more)

    def _call_of(self, original: Original) -> ToolCallable:
        return ToolCallable(self, original)

    async def _settled(self) -> None:
        await self._begun()
        for owner in list(self._owners.values()):
            await owner.settled.wait()

    async def _reload(self, servers: dict[str, McpServerSettings]) -> None:
        await self._begun()
        self._servers = servers
        # Compared with all variables filled in: one of those may be what has changed.
        wanted = {name: self._read(name, settings) for name, settings in servers.items()}
        owners = [owner for name, owner in self._owners.items() if owner.server != wanted.get(name)]
        for owner in owners:
            name = owner.server.name
            del self._owners[name]
            if name not in wanted or wanted[name].problem:
                self.shelf.remove(name)
        await asyncio.gather(*(owner.close() for owner in owners))
        for name, settings in servers.items():
            if name not in self._owners:
                self._add(name, settings)

    async def _reconnect(self, name: str) -> None:
        await self._begun()
        self._owners[name].reconnect()

    async def _begun(self) -> None:
        self._begin_now.set()
        await self._has_begun.wait()

    async def _end(self) -> None:
        owners, self._owners = list(self._owners.values()), {}
        await asyncio.gather(*(owner.close() for owner in owners))
        if self.seams is not None and self.seams.close is not None:
            await self.seams.close()

    def _require(self, name: str) -> None:
        if name not in self._servers:
            raise ServerFailed(f"there is no MCP server {name!r}; see `toolcrib mcp list`")


class ToolCallable(msgspec.Struct, frozen=True):
    """Calls one tool of a server. Equal ones call the same tool of the same hub."""

    hub: McpHub
    original: Original

    async def __call__(self, arguments: JsonObject, ctx: ToolContext) -> str | JsonObject:
        return await self.hub.call(self.original.server, self.original.tool, arguments, ctx)


async def _use(owner: ServerOwner, work: Callable[[Connection], Awaitable[T]], timeout_seconds: float) -> T:
    async with asyncio.timeout(timeout_seconds):
        return await work(await owner.ready())


def _not_yet(name: str) -> ServerStatus:
    return ServerStatus(name=name, state="starting", since=time.time())
