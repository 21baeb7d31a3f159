"""`toolcrib cron list`."""

from __future__ import annotations

import time

import click

from toolcrib.cli.cron import NO_JOBS, opened_jobs, warn_without_scheduler
from toolcrib.cli.output import hint, print_json, print_line, print_table
from toolcrib.cron.jobs import Job, JobRun, describe_job, describe_run


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(as_json: bool) -> None:
    """List the scheduled jobs, and when each runs next.

    Each object of --json has the keys job_id, name, state (active, paused or done), schedule, meaning, timezone,
    next_runs, prompt, deliver, workdir, runs and last_run, and those options of the job that were given.
    """
    now = time.time()
    with opened_jobs() as store:
        jobs = store.jobs()
        latest = store.latest_runs()
        if as_json:
            print_json([describe_job(job, now) | {"last_run": _facts(latest.get(job.id))} for job in jobs])
            return
        if not jobs:
            print_line(NO_JOBS)
            return
        print_table(
            ["id", "name", "schedule", "next", "last run"],
            [[job.id, job.name, job.schedule, _next(job), _last(latest.get(job.id))] for job in jobs],
        )
        warn_without_scheduler(store, jobs, now)
    hint("`toolcrib cron show JOB` shows one and its runs.")


def _facts(run: JobRun | None) -> dict[str, object] | None:
    return None if run is None else describe_run(run)


def _next(job: Job) -> str:
    if job.state != "active" or job.next_run is None:
        return job.state
    # In the time of this machine, whatever the zones of the jobs are: a column is read from top to bottom.
    return time.strftime("%a %Y-%m-%d %H:%M", time.localtime(job.next_run))


def _last(run: JobRun | None) -> str:
    if run is None:
        return "-"
    return f"{run.state.replace('_', ' ')} {time.strftime('%Y-%m-%d %H:%M', time.localtime(run.started_at))}"
