"""`toolcrib cron`: lists and manages scheduled jobs; `cron_edit` writes them, `cron_run` runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import click

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import (
    Pairs,
    hint,
    is_interactive,
    note,
    one_line,
    print_json,
    print_line,
    print_pairs,
    print_table,
)
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.cron.drafts import JobAuthor, JobDraft, pause_job, resume_job
from toolcrib.cron.jobs import Job, JobRun, describe_job, describe_run, upcoming_runs
from toolcrib.cron.schedule import zone_label
from toolcrib.cron.store import JobStore

group = CommandGroup("cron")

NO_JOBS = "There are no jobs yet; run `toolcrib cron create 'every 2h' 'PROMPT'` to create one."
NO_SCHEDULER = "No scheduler is running, so no job will run; start one with `toolcrib cron serve`."
COMMAND = TypeVar("COMMAND", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--name", metavar="NAME", help="A short name."),
    click.option("--tz", "timezone", metavar="ZONE", help="Time zone, such as Europe/Berlin."),
    click.option("--toolsets", metavar="NAME,NAME", help="Toolsets for its runs; default: those of the config."),
    click.option("--workdir", metavar="FOLDER", help="The folder to work in; default: the current one."),
    click.option("--model", metavar="NAME", help="The model; default: the configured one."),
    click.option("--provider", metavar="NAME", help="The provider; default: the configured one."),
    click.option(
        "--deliver",
        metavar="WHERE",
        help="Where to send results: local (only stored), file:PATH or command:COMMAND.",
    ),
    click.option("--repeat", type=click.IntRange(min=0), metavar="N", help="Run at most N times; 0 means no limit."),
    click.option(
        "--missed",
        type=click.Choice(["once", "skip", "all"]),
        help="What to do about runs that were missed.",
    ),
    click.option(
        "--skill", "skills", metavar="NAME", multiple=True, help="A skill to put before the prompt; repeatable."
    ),
    click.option("--script", metavar="COMMAND", help="A shell command to run first; the agent sees its output."),
    click.option(
        "--no-agent/--agent", "no_agent", default=None, help="Do not call a model: the script's output is the result."
    ),
    click.option(
        "--context-from",
        metavar="JOB",
        multiple=True,
        help="A job whose latest result goes before the prompt; repeatable.",
    ),
    click.option("--session", "attach_to_session", metavar="ID", help="Continue this session in every run."),
)
EVERYTHING = 10_000_000


@contextmanager
def open_jobs(settings: Settings | None = None) -> Iterator[JobStore]:
    """The job store of this home; opening it creates no file."""
    store = JobStore((settings or load_settings()).home.cron_file)
    try:
        yield store
    finally:
        store.close()


def complete_jobs(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Job names and ids for the shell."""
    return matching_names(_job_names, incomplete)


def _job_names() -> list[str]:
    with open_jobs() as store:
        return [name for job in store.jobs() for name in (job.name, job.id)]


job_argument = click.argument("wanted", metavar="JOB", shell_complete=complete_jobs)


def job_options(command: COMMAND) -> COMMAND:
    """Add the options that define a job."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def job_draft(schedule: str | None, prompt: str | None, options: dict[str, Any]) -> JobDraft:
    """The draft of a job from the command line; options that were not given stay open."""
    # An empty name clears the list.
    lists: dict[str, Any] = {
        name: tuple(filter(None, given)) for name in ("skills", "context_from") if (given := options.pop(name))
    }
    toolsets = options.pop("toolsets")
    if toolsets is not None:
        lists["toolsets"] = tuple(name.strip() for name in toolsets.split(",") if name.strip())
    return JobDraft(schedule=schedule, prompt=prompt, **lists, **options)


def job_author() -> JobAuthor:
    """The person at the terminal, whose jobs run in the current folder with all tools."""
    return JobAuthor(folder=str(current_folder()), is_person=True)


def next_runs_text(job: Job, now: float) -> tuple[list[str], str]:
    """The next runs of a job as text, and its schedule in words with the time zone."""
    moments, zone, meaning = upcoming_runs(job, now)
    shown = [datetime.fromtimestamp(one, zone).strftime("%a %Y-%m-%d %H:%M:%S") for one in moments]
    return shown, f"{meaning} ({zone_label(zone, now)})" if zone is not None else meaning


def run_text(run: JobRun, now: float) -> str:
    """A run in one line."""
    ended = run.finished_at if run.finished_at is not None else now
    words = [
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at)),
        run.state.replace("_", " "),
        "" if run.state == "skipped" else f"{max(0.0, ended - run.started_at):.0f} s",
        "manual" if run.trigger == "manual" else "",
        f"session {run.session_id}" if run.session_id else "",
    ]
    return ", ".join(word for word in words if word)


def warn_without_scheduler(store: JobStore, jobs: list[Job], now: float) -> None:
    """Warn if jobs are waiting and no scheduler is running."""
    if not any(job.state == "active" or job.asked_at is not None for job in jobs) or store.scheduler():
        return
    late = [job for job in jobs if job.next_run is not None and job.next_run <= now]
    due = f" {one_line(late[0].name)!r} is due." if late else ""
    note(NO_SCHEDULER + due)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_jobs(as_json: bool) -> None:
    """List the jobs and when each runs next.

    Each object of --json has the keys job_id, name, state (active, paused or done), schedule, meaning, timezone,
    next_runs, prompt, deliver, workdir, runs and last_run, and the options that were set.
    """
    now = time.time()
    with open_jobs() as store:
        jobs = store.jobs()
        latest = store.latest_runs()
        if as_json:
            print_json([describe_job(job, now) | {"last_run": _run_facts(latest.get(job.id))} for job in jobs])
            return
        if not jobs:
            print_line(NO_JOBS)
            return
        print_table(
            ["id", "name", "schedule", "next", "last run"],
            [[job.id, job.name, job.schedule, _next(job), _last(latest.get(job.id))] for job in jobs],
        )
        warn_without_scheduler(store, jobs, now)
    hint("Run `toolcrib cron show JOB` to see a job and its runs.")


def _run_facts(run: JobRun | None) -> dict[str, object] | None:
    return None if run is None else describe_run(run)


def _next(job: Job) -> str:
    if job.state != "active" or job.next_run is None:
        return job.state
    # In local time, whatever the time zone of the job, so that the rows can be compared.
    return time.strftime("%a %Y-%m-%d %H:%M", time.localtime(job.next_run))


def _last(run: JobRun | None) -> str:
    if run is None:
        return "-"
    return f"{run.state.replace('_', ' ')} {time.strftime('%Y-%m-%d %H:%M', time.localtime(run.started_at))}"


@group.command("show")
@job_argument
@click.option("-n", "--count", default=5, show_default=True, type=click.IntRange(min=1), help="How many runs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_job(wanted: str, count: int, as_json: bool) -> None:
    """Show a job and its latest runs.

    JOB is a name or id from `toolcrib cron list`, or a unique prefix of one. A run whose process died is marked as
    lost; it is not repeated automatically.

    --json prints an object with the keys of `cron list --json` and run_list: run, state, due, started, finished,
    asked_for, session_id, output, error and note of each run.
    """
    now = time.time()
    with open_jobs() as store:
        job = store.find(wanted)
        runs = store.runs(job, count)
        if as_json:
            print_json(describe_job(job, now) | {"run_list": [describe_run(run, EVERYTHING) for run in runs]})
            return
        print_pairs(_job_lines(job, now, {one.id: one.name for one in store.jobs()}))
        for run in runs:
            _print_run(run, now)
        warn_without_scheduler(store, [job], now)


def _job_lines(job: Job, now: float, names: dict[str, str]) -> Pairs:
    moments, meaning = next_runs_text(job, now)
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
        ("requested", "a run now, waiting for a scheduler" if job.asked_at is not None else ""),
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


@group.command("pause")
@job_argument
def pause(wanted: str) -> None:
    """Pause a job.

    A run that has started continues.
    """
    with open_jobs() as store:
        job = store.find(wanted)
        store.replace(pause_job(job, time.time()), job)
    print_line(f"Paused the job {job.name!r}; run `toolcrib cron resume {job.id}` to resume it.")


@group.command("resume")
@job_argument
def resume(wanted: str) -> None:
    """Resume a paused job.

    Runs that were due while it was paused are skipped.
    """
    now = time.time()
    with open_jobs() as store:
        before = store.find(wanted)
        job = store.replace(resume_job(before, now), before)
        moments, _ = next_runs_text(job, now)
        print_line(f"Resumed the job {job.name!r}; next run: {moments[0]}.")
        warn_without_scheduler(store, [job], now)


@group.command("remove")
@job_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def remove_job(wanted: str, yes: bool) -> None:
    """Delete a job and the results of its runs.

    The sessions of its runs are kept.
    """
    with open_jobs() as store:
        job = store.find(wanted)
        if not yes and not _confirmed(job.name):
            note("Nothing was deleted.")
            return
        store.remove(job)
    print_line(f"Deleted the job {job.name!r}.")


def _confirmed(name: str) -> bool:
    if not is_interactive():
        raise UsageError("nothing was deleted: there is no terminal to confirm at; add `--yes`")
    return click.confirm(f"Delete the job {name!r} and the results of its runs?", err=True)


group.lazy("create", "cron_edit:create_job", "Schedule a job for the agent.")
group.lazy("update", "cron_edit:update", "Change a job.")
group.lazy("run", "cron_run:run_job", "Run a job now.")
group.lazy("serve", "cron_run:serve_jobs", "Run jobs when they are due, until you stop it.")
