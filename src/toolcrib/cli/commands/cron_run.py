"""`toolcrib cron run` and `serve`: run jobs, now or when they are due."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

import click

from toolcrib.agent.job_runner import JobRunner
from toolcrib.cli.chat.one_shot import ProgressPrinter
from toolcrib.cli.commands.cron import job_argument, open_jobs
from toolcrib.cli.output import ResultStream, clean, error_line, note, one_line, plural, stdout_reserved
from toolcrib.config.load import load_settings
from toolcrib.config.logs import configure_logging
from toolcrib.config.redact import known_secrets
from toolcrib.config.settings import Settings
from toolcrib.core.cancel import CancelToken
from toolcrib.cron.jobs import Job, RunOutcome
from toolcrib.cron.scheduler import Scheduler, run_with_timeout
from toolcrib.cron.store import JobStore

INTERRUPTED = 130


@click.command(name="run")
@job_argument
@click.option("-q", "--quiet", is_flag=True, help="Do not print what the agent does.")
def run_job(wanted: str, quiet: bool) -> int:
    """Run a job now.

    Prints its result. The job runs under the policy for scheduled jobs, so nobody is asked for approval. Its schedule
    does not change; paused and finished jobs can be run too. Exit code 0 if it succeeded.
    """
    settings, cancel = load_settings(), CancelToken()
    with open_jobs(settings) as store, stdout_reserved():
        job = store.find(wanted)
        report = asyncio.run(_run(store, job, settings, cancel, quiet=quiet))
    if report.output:
        sys.stdout.write(clean(report.output).rstrip("\n") + "\n")
    if report.note and not quiet:
        note(f"The result was {report.note}.")
    if report.state == "ok":
        return 0
    error_line(f"{report.error}; run `toolcrib cron show {job.id}` to see its runs")
    return INTERRUPTED if cancel.cancelled and report.state == "failed" else 1


async def _run(store: JobStore, job: Job, settings: Settings, cancel: CancelToken, *, quiet: bool) -> RunOutcome:
    # Before the run is recorded, so that the record of an interrupted run is finished too.
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel.cancel, "it was interrupted")
    claim = store.claim_now(job, time.time())
    runs = JobRunner(store, load_settings, None if quiet else ProgressPrinter(note).on_event)
    report = await run_with_timeout(runs.execute, claim, cancel, settings.cron.timeout)
    store.finish(claim.run, report, time.time(), keep_runs=settings.cron.keep_runs)
    return report


@click.command(name="serve")
@click.option("--once", is_flag=True, help="Run what is due now, then exit.")
def serve_jobs(once: bool) -> None:
    """Run jobs when they are due, until you stop it.

    Prints a line for each event. One scheduler per home is enough; more do no harm, because each run is started by
    exactly one of them. Stop it with Ctrl-C or SIGTERM: running jobs get a moment to finish; a second signal stops them
    at once.
    """
    settings = load_settings()
    # Once for all runs: each run would close the log of the others.
    stop_logging = configure_logging(settings.home, settings.logging.level, known_secrets)
    printer = _LinePrinter()
    try:
        with open_jobs(settings) as store, stdout_reserved():
            asyncio.run(_serve(store, settings, printer, once=once))
    finally:
        printer.close()
        stop_logging()
    if printer.problem is not None:
        if isinstance(sys.stdout, ResultStream):
            sys.stdout.problem = printer.problem
        raise printer.problem


class _LinePrinter:
    """Prints lines to the original stdout while the output of other code goes to stderr."""

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
            # A line that could not be written is reported at the end, as `problem`.
            with contextlib.suppress(OSError):
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


async def _serve(store: JobStore, settings: Settings, printer: _LinePrinter, *, once: bool) -> None:
    stop, stop_now = printer.stop, asyncio.Event()

    def stop_requested() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_requested)
    scheduler = Scheduler(store, JobRunner(store, load_settings).execute, settings.cron, on_event=printer)
    if once:
        await scheduler.run_due(stop)
        if not printer.lines:
            printer("no job is due")
        return
    waiting = sum(job.state == "active" for job in store.jobs())
    printer(f"scheduling {plural(waiting, 'job')} of {settings.home.root}")
    await scheduler.serve(stop, stop_now)
    printer("stopped")
