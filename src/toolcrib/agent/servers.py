"""The MCP servers of a workshop, as its agents mind them: waited for at the beginning, kept as the config has them."""

from __future__ import annotations

import asyncio
import logging
import os

from msgspec.structs import replace

from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.runtime import Runtime, toolsets_of_servers

logger = logging.getLogger(__name__)

Signature = tuple[int, int, int] | None


class ServerWatch:
    """Shared by all agents of a workshop. Costs one look at a file before each request to a model."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._file = runtime.settings.home.config_file
        self._settings = runtime.settings
        self._seen = self._signature()
        self._are_awaited = bool(runtime.settings.mcp_servers)
        self._warned = ""
        self._is_watching = not runtime.settings.safe_mode and self._came_from_the_file()

    @property
    def are_configured(self) -> bool:
        """Whether there are any that are used."""
        return bool(self._settings.mcp_servers) and not self._settings.safe_mode

    async def before_request(self) -> str:
        """Bring the servers in line with the config file, and wait for those that are starting, once and bounded.

        Gives what is wrong with the file, as a sentence, once.
        """
        warning = ""
        if self._is_watching and self._settings.mcp.auto_reload_on_config_change:
            seen = self._signature()
            if seen != self._seen:
                # First of all: another agent that comes here meanwhile has nothing to do.
                self._seen = seen
                warning = await self._follow_file()
        if self._are_awaited:
            self._are_awaited = False
            await self.wait()
        return warning

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until every server has been tried once; by default for as long as the config says."""
        if self.are_configured:
            hub = self._runtime.mcp
            await hub.wait_ready(hub.discovery_seconds if seconds is None else seconds)

    async def reload(self) -> None:
        """Read the config file now, and start, restart and end servers as it says; raises for a file that is broken."""
        if self._settings.safe_mode:
            raise UsageError("safe mode is on, so that no MCP server is used; unset TOOLCRIB_SAFE_MODE to end it")
        self._seen = self._signature()
        await self._use(await asyncio.to_thread(load_settings, self._runtime.settings.home))

    async def _follow_file(self) -> str:
        try:
            settings = await asyncio.to_thread(load_settings, self._runtime.settings.home)
            if settings.mcp_servers != self._settings.mcp_servers:
                await self._use(settings)
            self._settings = replace(self._settings, mcp=settings.mcp)
        except (ToolcribError, TimeoutError) as error:
            problem = f"the MCP servers stay as they are, because the config file is broken: {_first_line(error)}"
            is_new, self._warned = problem != self._warned, problem
            if is_new:
                logger.warning("%s", problem)
            return problem if is_new else ""
        self._warned = ""
        return ""

    async def _use(self, settings: Settings) -> None:
        self._settings = replace(self._settings, mcp_servers=settings.mcp_servers)
        self._runtime.toolsets.expected = frozenset(toolsets_of_servers(self._settings))
        # It waits for servers to end, and this loop has other work.
        await asyncio.to_thread(self._runtime.mcp.reload, settings.mcp_servers)
        self._are_awaited = True

    def _signature(self) -> Signature:
        try:
            found = os.stat(self._file)  # noqa: PTH116 - before each request
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _came_from_the_file(self) -> bool:
        """Whether the servers are those of the config file; whoever names others in code keeps them."""
        if not self._settings.mcp_servers:
            return True
        try:
            return b"mcp_servers" in self._file.read_bytes()
        except OSError:
            return False


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]
