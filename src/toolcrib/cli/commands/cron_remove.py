"""`toolcrib cron remove JOB`."""

from __future__ import annotations

import click

from toolcrib.cli.cron import job_argument, opened_jobs
from toolcrib.cli.output import note, person_present, print_line
from toolcrib.core.errors import UsageError


@click.command(name="remove")
@job_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(wanted: str, yes: bool) -> None:
    """Delete a job and what is kept of its runs.

    The conversations of its runs stay.
    """
    with opened_jobs() as store:
        job = store.find(wanted)
        if not yes and not _agreed(job.name):
            note("Nothing was deleted.")
            return
        store.remove(job)
    print_line(f"Deleted the job {job.name!r}.")


def _agreed(name: str) -> bool:
    if not person_present():
        raise UsageError("nothing was deleted, because nobody can be asked; add `--yes`")
    return click.confirm(f"Delete the job {name!r} and the results of its runs?", err=True)
