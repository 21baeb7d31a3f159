"""Background work of the server: runs due jobs, and reloads the config when it changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from msgspec.structs import replace

from toolcrib.agent.host import AgentHost
from toolcrib.agent.job_runner import JobRunner
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ToolcribError
from toolcrib.cron.scheduler import Scheduler
from toolcrib.cron.store import JobStore
from toolcrib.service_loop import ServiceLoop

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often the server looks at the config file."""
LIVE_SERVE_KEYS = ("toolsets", "approval_timeout", "keep_days", "limits")
"""The settings of the server that it takes up without a restart."""
LIVE_SECTIONS = ("agent", "compression", "tool_loop_guardrails")


class JobTicker:
    """Runs scheduled jobs when they are due, as `toolcrib cron serve` does, on a loop of their own: other processes use
    the same database."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = ServiceLoop("toolcrib-jobs")
        self._stop = asyncio.Event()
        self._running: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._running = self._loop.start(self._run())

    async def _run(self) -> None:
        store = JobStore(self._settings.home.cron_file)
        runner = JobRunner(store, lambda: load_settings(self._settings.home))
        scheduler = Scheduler(
            store, runner.execute, self._settings.cron, on_event=lambda line: logger.info("jobs: %s", line)
        )
        try:
            await scheduler.serve(self._stop)
        except ToolcribError:
            logger.exception("scheduled jobs do not run any longer")
        finally:
            store.close()

    async def stop(self) -> None:
        """Give running jobs a moment to finish, then stop them."""
        if self._running is None:
            return
        self._loop.loop.call_soon_threadsafe(self._stop.set)
        await self._running
        self._running = None
        await asyncio.to_thread(self._loop.close)


class ConfigWatcher:
    """Takes up those changes of the config file that are safe while the server works."""

    def __init__(self, host: AgentHost, on_change: Callable[[Settings], None]) -> None:
        self._host = host
        self._on_change = on_change
        self._file = host.settings.home.config_file
        self._seen = self._signature()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the file again if it has changed."""
        seen = self._signature()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            written = await asyncio.to_thread(load_settings, self._host.settings.home)
        except ToolcribError as error:
            logger.warning("the config file was changed, but it is broken: %s", str(error).partition("\n")[0])
            return
        self._take_up(written)

    def _take_up(self, written: Settings) -> None:
        now = self._host.settings
        serve = replace(now.serve, **{name: getattr(written.serve, name) for name in LIVE_SERVE_KEYS})
        sections = {name: getattr(written, name) for name in LIVE_SECTIONS}
        # The server's time limit for approvals is the one that the model reads.
        approvals = replace(now.approvals, timeout=serve.approval_timeout)
        self._host.settings = replace(now, serve=serve, approvals=approvals, **sections)
        self._on_change(self._host.settings)
        logger.info("took up the changed config file")
        if serve != written.serve:
            logger.warning("some changed settings of `serve` need a restart of the server")

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._file)  # noqa: PTH116 - every two seconds
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
