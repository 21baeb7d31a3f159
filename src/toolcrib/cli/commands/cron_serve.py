"""`toolcrib cron serve`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

import click

from toolcrib.agent.scheduled import ScheduledRuns
from toolcrib.cli.cron import opened_jobs
from toolcrib.cli.output import one_line, plural, stdout_reserved
from toolcrib.config.load import load_settings
from toolcrib.config.logs import configure_logging
from toolcrib.config.redact import known_secrets
from toolcrib.config.settings import Settings
from toolcrib.cron.scheduler import Scheduler
from toolcrib.cron.store import JobStore


@click.command(name="serve")
@click.option("--once", is_flag=True, help="Run what is due now, and end.")
def command(once: bool) -> None:
    """Run the jobs at their times, until it is stopped.

    One line is printed for each thing that happens. One scheduler is enough for a home; several do no harm, because
    each run is begun by exactly one of them. Ctrl-C or SIGTERM ends it: runs get a moment to come to their end, and a
    second signal takes that away from them.
    """
    settings = load_settings()
    # For all runs together: each of them would end the log of the others.
    stop_logging = configure_logging(settings.home, settings.logging.level, known_secrets)
    printer = _Printer()
    try:
        with opened_jobs(settings) as store, stdout_reserved():
            asyncio.run(_serve(store, settings, printer, once=once))
    finally:
        printer.close()
        stop_logging()
    if printer.problem is not None:
        raise printer.problem


class _Printer:
    """Writes lines to stdout as it was, also while what other code prints goes to stderr."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self.lines = 0
        self.problem: OSError | None = None
        self.stop = asyncio.Event()
        with contextlib.suppress(OSError, ValueError):
            copy = os.dup(sys.stdout.fileno())
            self._stream = os.fdopen(copy, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)

    def close(self) -> None:
        if self._stream is not sys.stdout:
            self._stream.close()

    def __call__(self, line: str) -> None:
        if self.problem is not None:
            return
        try:
            self._stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {one_line(line)}\n")
            self._stream.flush()
            self.lines += 1
        except OSError as error:
            self.problem = error
            self.stop.set()


async def _serve(store: JobStore, settings: Settings, printer: _Printer, *, once: bool) -> None:
    stop, stop_now = printer.stop, asyncio.Event()

    def told_to_stop() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop)
    scheduler = Scheduler(store, ScheduledRuns(store, load_settings).execute, settings.cron, on_event=printer)
    if once:
        await scheduler.run_due(stop)
        if not printer.lines:
            printer("nothing is due")
        return
    waiting = sum(job.state == "active" for job in store.jobs())
    printer(f"serving {plural(waiting, 'job')} of {settings.home.root}")
    await scheduler.serve(stop, stop_now)
    printer("stopped")
