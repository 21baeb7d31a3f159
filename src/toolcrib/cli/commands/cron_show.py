"""`toolcrib cron show JOB`."""

from __future__ import annotations

import time

import click

from toolcrib.cli.cron import job_argument, moments_text, opened_jobs, run_text, warn_without_scheduler
from toolcrib.cli.output import Pairs, print_json, print_line, print_pairs
from toolcrib.cron.jobs import Job, JobRun, describe_job, describe_run

EVERYTHING = 10_000_000


@click.command(name="show")
@job_argument
@click.option("-n", "--count", default=5, show_default=True, type=click.IntRange(min=1), help="How many runs.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(wanted: str, count: int, as_json: bool) -> None:
    """Show one job and its latest runs.

    JOB is a name or an id of `toolcrib cron list`, or enough of its beginning. A run whose process died is lost: nobody
    knows how far it came, and it is not run again by itself.

    The object of --json has the keys of `cron list --json`, and run_list: run, state, due, started, finished,
    asked_for, session_id, output, error and note of each.
    """
    now = time.time()
    with opened_jobs() as store:
        job = store.find(wanted)
        runs = store.runs(job, count)
        if as_json:
            print_json(describe_job(job, now) | {"run_list": [describe_run(run, EVERYTHING) for run in runs]})
            return
        print_pairs(_facts(job, now, {one.id: one.name for one in store.jobs()}))
        for run in runs:
            _print_run(run, now)
        warn_without_scheduler(store, [job], now)


def _facts(job: Job, now: float, names: dict[str, str]) -> Pairs:
    moments, meaning = moments_text(job, now)
    facts: list[tuple[str, str | list[str]]] = [
        ("job", f"{job.name} (id {job.id}), {job.state}"),
        ("prompt", job.prompt.splitlines()),
        ("script", job.script + (" (no agent)" if job.no_agent else "")),
        ("schedule", f"{job.schedule}: {meaning}"),
        ("next", moments),
        ("repeat", "" if job.repeat is None else f"{job.run_count} of {job.repeat} runs"),
        ("missed", job.missed or ""),
        ("deliver", job.deliver),
        ("folder", job.workdir),
        ("toolsets", "" if job.toolsets is None else ", ".join(job.toolsets) or "none"),
        ("model", f"{job.model} {job.provider}".strip()),
        ("skills", ", ".join(job.skills)),
        ("context from", ", ".join(names.get(one, one) for one in job.context_from)),
        ("session", job.attach_to_session),
        ("asked for", "a run at once, which waits for a scheduler" if job.asked_at is not None else ""),
    ]
    return [(label, text) for label, text in facts if text]


def _print_run(run: JobRun, now: float) -> None:
    print_line()
    print_line(f"run {run.number}: {run_text(run, now)}")
    for label, text in (("error", run.error), ("note", run.note)):
        if text:
            print_line(f"  {label}: {text}")
    for line in run.output.strip().splitlines():
        print_line(f"  {line}")
