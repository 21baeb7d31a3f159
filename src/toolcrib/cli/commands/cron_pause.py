"""`toolcrib cron pause JOB`."""

from __future__ import annotations

import time

import click

from toolcrib.cli.cron import job_argument, opened_jobs
from toolcrib.cli.output import print_line
from toolcrib.cron.drafts import pause_job


@click.command(name="pause")
@job_argument
def command(wanted: str) -> None:
    """Let a job rest.

    A run that has begun goes on to its end.
    """
    with opened_jobs() as store:
        job = store.find(wanted)
        store.replace(pause_job(job, time.time()), job)
    print_line(f"The job {job.name!r} rests; `toolcrib cron resume {job.id}` lets it run again.")
