"""What the commands about scheduled jobs share: the store, finding one job, options, and jobs as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from toolcrib.cli.output import note, one_line, silence
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.cron.drafts import JobAuthor, JobDraft
from toolcrib.cron.jobs import Job, JobRun, upcoming_runs
from toolcrib.cron.schedule import zone_label
from toolcrib.cron.store import JobStore

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
    with silence():
        try:
            with opened_jobs() as store:
                known = store.jobs()
        except (ToolcribError, OSError):
            return []  # there is no place for a message while somebody is typing
    return [name for job in known for name in (job.name, job.id) if name.startswith(incomplete)]


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


def wish_of(schedule: str | None, prompt: str | None, options: dict[str, Any]) -> JobDraft:
    """What was typed; what was not typed is left open."""
    # An empty name takes the list away.
    lists: dict[str, Any] = {
        name: tuple(filter(None, given)) for name in ("skills", "context_from") if (given := options.pop(name))
    }
    toolsets = options.pop("toolsets")
    if toolsets is not None:
        lists["toolsets"] = tuple(name.strip() for name in toolsets.split(",") if name.strip())
    return JobDraft(schedule=schedule, prompt=prompt, **lists, **options)


def person() -> JobAuthor:
    """Whoever types: his jobs work where he is, with all tools."""
    try:
        return JobAuthor(folder=str(Path.cwd()))
    except FileNotFoundError as error:
        raise UsageError("the current folder is gone; go to another one, as with `cd ~`, and try again") from error


def moments_text(job: Job, now: float) -> tuple[list[str], str]:
    """The next moments of a job as people read them, and what its schedule means, with its zone."""
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
