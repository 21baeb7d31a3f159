"""What the commands about scheduled jobs share: the store, finding one job, options, and jobs as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import (
    Pairs,
    hint,
    note,
    one_line,
    person_present,
    print_json,
    print_line,
    print_pairs,
    print_table,
)
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.cron.describe import job_facts, next_moments, run_facts
from toolcrib.cron.drafts import Author, Wish
from toolcrib.cron.jobs import Job, Run
from toolcrib.cron.pausing import paused, resumed
from toolcrib.cron.store import JobStore
from toolcrib.cron.zones import zone_label

group = CommandGroup("cron")

NO_JOBS = "There are no jobs yet; `toolcrib cron create 'every 2h' 'PROMPT'` makes one."
NO_SCHEDULER = "No scheduler is running, so nothing runs by itself; `toolcrib cron serve` starts one."
COMMAND = TypeVar("COMMAND", bound=Callable[..., Any])


@contextmanager
def opened_jobs(settings: Settings | None = None) -> Iterator[JobStore]:
    """The jobs of this home. Looking at them creates nothing."""
    store = JobStore((settings or load_settings()).home.cron_file)
    try:
        yield store
    finally:
        store.close()


def complete_jobs(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names and ids of jobs for the shell."""
    return matching_names(_job_names, incomplete)


def _job_names() -> list[str]:
    with opened_jobs() as store:
        return [name for job in store.jobs() for name in (job.name, job.id)]


job_argument = click.argument("wanted", metavar="JOB", shell_complete=complete_jobs)

_OPTIONS = (
    click.option("--name", metavar="NAME", help="A short name."),
    click.option("--tz", "timezone", metavar="ZONE", help="The time zone, as Europe/Berlin."),
    click.option("--toolsets", metavar="NAME,NAME", help="The toolsets of its runs; without it, those of the config."),
    click.option("--workdir", metavar="FOLDER", help="The folder to work in; without it, the current one."),
    click.option("--model", metavar="NAME", help="Another model than the usual one."),
    click.option("--provider", metavar="NAME", help="Another provider than the usual one."),
    click.option(
        "--deliver",
        metavar="WHERE",
        help="Where results go besides being kept: local (nowhere), file:PATH, command:COMMAND.",
    ),
    click.option("--repeat", type=click.IntRange(min=0), metavar="N", help="Run N times at most; 0 is without end."),
    click.option(
        "--missed",
        type=click.Choice(["once", "skip", "all"]),
        help="What happens to times that passed while nobody could run it.",
    ),
    click.option("--skill", "skills", metavar="NAME", multiple=True, help="A skill to put before the prompt."),
    click.option("--script", metavar="COMMAND", help="A shell command that runs first; the agent gets its output."),
    click.option(
        "--no-agent/--agent", "no_agent", default=None, help="Ask no model: the output of the script is the result."
    ),
    click.option(
        "--context-from", metavar="JOB", multiple=True, help="A job whose latest result is put before the prompt."
    ),
    click.option("--session", "attach_to_session", metavar="ID", help="Let runs go on with this conversation."),
)


def job_options(command: COMMAND) -> COMMAND:
    """The options that say what a job is."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def wish_of(schedule: str | None, prompt: str | None, options: dict[str, Any]) -> Wish:
    """What was typed; what was not typed is left open."""
    # An empty name takes the list away.
    lists: dict[str, Any] = {
        name: tuple(filter(None, given)) for name in ("skills", "context_from") if (given := options.pop(name))
    }
    toolsets = options.pop("toolsets")
    if toolsets is not None:
        lists["toolsets"] = tuple(name.strip() for name in toolsets.split(",") if name.strip())
    return Wish(schedule=schedule, prompt=prompt, **lists, **options)


def person() -> Author:
    """Whoever types: his jobs work where he is, with all tools."""
    try:
        return Author(folder=str(Path.cwd()))
    except FileNotFoundError as error:
        raise UsageError("the current folder is gone; go to another one, as with `cd ~`, and try again") from error


def moments_text(job: Job, now: float) -> tuple[list[str], str]:
    """The next moments of a job as people read them, and what its schedule means, with its zone."""
    moments, zone, meaning = next_moments(job, now)
    shown = [datetime.fromtimestamp(one, zone).strftime("%a %Y-%m-%d %H:%M:%S") for one in moments]
    return shown, f"{meaning} ({zone_label(zone, now)})" if zone is not None else meaning


def run_text(run: Run, now: float) -> str:
    """A run in one line."""
    ended = run.finished_at if run.finished_at is not None else now
    words = [
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at)),
        run.state.replace("_", " "),
        "" if run.state == "skipped" else f"{max(0.0, ended - run.started_at):.0f} s",
        "asked for" if run.trigger == "manual" else "",
        f"session {run.session_id}" if run.session_id else "",
    ]
    return ", ".join(word for word in words if word)


def warn_without_scheduler(store: JobStore, jobs: list[Job], now: float) -> None:
    """Say so when jobs wait for a scheduler that is not there."""
    if not any(job.state == "active" or job.asked_at is not None for job in jobs) or store.scheduler():
        return
    late = [job for job in jobs if job.next_run is not None and job.next_run <= now]
    due = f" {one_line(late[0].name)!r} is due." if late else ""
    note(NO_SCHEDULER + due)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def list_jobs(as_json: bool) -> None:
    """List the scheduled jobs, and when each runs next.

    Each object of --json has the keys job_id, name, state (active, paused or done), schedule, meaning, timezone,
    next_runs, prompt, deliver, workdir, runs and last_run, and those options of the job that were given.
    """
    now = time.time()
    with opened_jobs() as store:
        jobs = store.jobs()
        latest = store.latest_runs()
        if as_json:
            print_json([job_facts(job, now) | {"last_run": _run_facts(latest.get(job.id))} for job in jobs])
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


def _run_facts(run: Run | None) -> dict[str, object] | None:
    return None if run is None else run_facts(run)


def _next(job: Job) -> str:
    if job.state != "active" or job.next_run is None:
        return job.state
    # In the time of this machine, whatever the zones of the jobs are: a column is read from top to bottom.
    return time.strftime("%a %Y-%m-%d %H:%M", time.localtime(job.next_run))


def _last(run: Run | None) -> str:
    if run is None:
        return "-"
    return f"{run.state.replace('_', ' ')} {time.strftime('%Y-%m-%d %H:%M', time.localtime(run.started_at))}"


EVERYTHING = 10_000_000


@group.command("show")
@job_argument
@click.option("-n", "--count", default=5, show_default=True, type=click.IntRange(min=1), help="How many runs.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def show_job(wanted: str, count: int, as_json: bool) -> None:
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
            print_json(job_facts(job, now) | {"run_list": [run_facts(run, EVERYTHING) for run in runs]})
            return
        print_pairs(_job_lines(job, now, {one.id: one.name for one in store.jobs()}))
        for run in runs:
            _print_run(run, now)
        warn_without_scheduler(store, [job], now)


def _job_lines(job: Job, now: float, names: dict[str, str]) -> Pairs:
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


def _print_run(run: Run, now: float) -> None:
    print_line()
    print_line(f"run {run.number}: {run_text(run, now)}")
    for label, text in (("error", run.error), ("note", run.note)):
        if text:
            print_line(f"  {label}: {text}")
    for line in run.output.strip().splitlines():
        print_line(f"  {line}")


@group.command("pause")
@job_argument
def pause_job(wanted: str) -> None:
    """Let a job rest.

    A run that has begun goes on to its end.
    """
    with opened_jobs() as store:
        job = store.find(wanted)
        store.replace(paused(job, time.time()), job)
    print_line(f"The job {job.name!r} rests; `toolcrib cron resume {job.id}` lets it run again.")


@group.command("resume")
@job_argument
def resume_job(wanted: str) -> None:
    """Let a job run again.

    What was due while it rested is not made up for.
    """
    now = time.time()
    with opened_jobs() as store:
        before = store.find(wanted)
        job = store.replace(resumed(before, now), before)
        moments, _ = moments_text(job, now)
        print_line(f"The job {job.name!r} runs next: {moments[0]}.")
        warn_without_scheduler(store, [job], now)


@group.command("remove")
@job_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_job(wanted: str, yes: bool) -> None:
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


group.lazy("create", "cron_edit:create_job", "Schedule a job for the agent.")
group.lazy("update", "cron_edit:update_job", "Change a job.")
group.lazy("run", "cron_run:run_job", "Run a job now.")
group.lazy("serve", "cron_run:serve_jobs", "Run jobs when they are due, until you stop it.")
