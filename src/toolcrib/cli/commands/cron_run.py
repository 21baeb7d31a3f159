"""`toolcrib cron run JOB`."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import click

from toolcrib.agent.scheduled import JobRunner
from toolcrib.cli.chat.one_shot import Progress
from toolcrib.cli.cron import job_argument, opened_jobs
from toolcrib.cli.output import clean, error_line, note, stdout_reserved
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.context import CancelToken
from toolcrib.cron.jobs import Job, Report
from toolcrib.cron.scheduler import run_in_time
from toolcrib.cron.store import JobStore

INTERRUPTED = 130


@click.command(name="run")
@job_argument
@click.option("-q", "--quiet", is_flag=True, help="Do not tell what the agent does.")
def command(wanted: str, quiet: bool) -> int:
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
    runs = JobRunner(store, load_settings, None if quiet else Progress(note).hear)
    report = await run_in_time(runs.execute, claim, cancel, settings.cron.timeout)
    store.finish(claim.run, report, time.time(), keep_runs=settings.cron.keep_runs)
    return report
