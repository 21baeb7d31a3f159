"""`toolcrib cron resume JOB`."""

from __future__ import annotations

import time

import click

from toolcrib.cli.cron import job_argument, moments_text, opened_jobs, warn_without_scheduler
from toolcrib.cli.output import print_line
from toolcrib.cron.drafts import resume_job


@click.command(name="resume")
@job_argument
def command(wanted: str) -> None:
    """Let a job run again.

    What was due while it rested is not made up for.
    """
    now = time.time()
    with opened_jobs() as store:
        before = store.find(wanted)
        job = store.replace(resume_job(before, now), before)
        moments, _ = moments_text(job, now)
        print_line(f"The job {job.name!r} runs next: {moments[0]}.")
        warn_without_scheduler(store, [job], now)
