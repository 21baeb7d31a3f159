"""`toolcrib cron run JOB`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

import click

from toolcrib.agent.scheduled import ScheduledRuns
from toolcrib.cli.chat.one_shot import Progress
from toolcrib.cli.commands.cron import job_argument, opened_jobs
from toolcrib.cli.output import clean, error_line, note, one_line, plural, stdout_reserved
from toolcrib.config.load import load_settings
from toolcrib.config.logs import configure_logging
from toolcrib.config.redact import known_secrets
from toolcrib.config.settings import Settings
from toolcrib.core.context import CancelToken
from toolcrib.cron.jobs import Job, Report
from toolcrib.cron.scheduler import Scheduler, run_in_time
from toolcrib.cron.store import JobStore

INTERRUPTED = 130


@click.command(name="run")
@job_argument
@click.option("-q", "--quiet", is_flag=True, help="Do not tell what the agent does.")
def run_job(wanted: str, quiet: bool) -> int:
    """Run a job now.

    Its result is printed. It runs as it would at its time: under the policy for scheduled jobs, so nobody is asked. Its
    schedule stays as it is, and a job that is paused or done can be run, too. Exit code 0: it went well.
    """
    settings, cancel = load_settings(), CancelToken()
    with opened_jobs(settings) as store, stdout_reserved():
        job = store.find(wanted)
        report = asyncio.run(_run(store, job, settings, cancel, quiet=quiet))
    if report.output:
        sys.stdout.write(clean(report.output).rstrip("\n") + "\n")
    if report.note and not quiet:
        note(f"The result was {report.note}.")
    if report.state == "ok":
        return 0
    error_line(f"{report.error}; `toolcrib cron show {job.id}` shows its runs")
    return INTERRUPTED if cancel.cancelled and report.state == "failed" else 1


async def _run(store: JobStore, job: Job, settings: Settings, cancel: CancelToken, *, quiet: bool) -> Report:
    # Before the run is on record: one that is interrupted ends there, too.
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel.cancel, "it was interrupted")
    claim = store.claim_now(job, time.time())
    runs = ScheduledRuns(store, load_settings, None if quiet else Progress(note).hear)
    report = await run_in_time(runs.execute, claim, cancel, settings.cron.timeout)
    store.finish(claim.run, report, time.time(), keep_runs=settings.cron.keep_runs)
    return report


@click.command(name="serve")
@click.option("--once", is_flag=True, help="Run what is due now, and end.")
def serve_jobs(once: bool) -> None:
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
    scheduler = Scheduler(store, ScheduledRuns(store, load_settings).execute, settings.cron, tell=printer)
    if once:
        await scheduler.run_due(stop)
        if not printer.lines:
            printer("nothing is due")
        return
    waiting = sum(job.state == "active" for job in store.jobs())
    printer(f"serving {plural(waiting, 'job')} of {settings.home.root}")
    await scheduler.serve(stop, stop_now)
    printer("stopped")
