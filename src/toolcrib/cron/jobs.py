"""Jobs and runs as values, and as JSON for programs and models."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import Literal

import msgspec

from toolcrib.config.environment import environment
from toolcrib.core.errors import ToolcribError, UnknownName, UsageError
from toolcrib.core.types import JsonObject
from toolcrib.cron.schedule import Schedule, machine_zone, parse_schedule, upcoming, zone_named

MissedPolicy = Literal["once", "skip", "all"]
RunState = Literal["running", "ok", "failed", "timed_out", "skipped", "lost"]
Trigger = Literal["schedule", "manual"]
JobState = Literal["active", "paused", "done"]

LOST = "its process ended before it could report a result; it is not repeated automatically"


class JobError(ToolcribError):
    """A job cannot be read, written or run; the message says which one and what to do."""


class UnknownJob(UnknownName):
    """A name matches no job, or more than one."""

    kind = "job"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduled job."""

    id: str
    name: str
    schedule: str
    """As the user wrote it."""
    timezone: str = ""
    """The time zone of the schedule; empty means this machine's."""
    since: float
    """When the schedule was set; intervals count from here."""
    prompt: str = ""
    prompt_by_person: bool = False
    """Whether a person wrote the prompt, and not a model."""
    repeat: int | None = None
    """The maximum number of runs; None means no limit."""
    missed: MissedPolicy | None = None
    """None uses the setting `cron.missed`."""
    deliver: str = "local"
    origin: str = ""
    """The session that created it."""
    owner: str = ""
    """Whose job it is; empty for the owner of the home."""
    skills: tuple[str, ...] = ()
    model: str = ""
    provider: str = ""
    script: str = ""
    """A shell command that runs first."""
    no_agent: bool = False
    """The output of the script is the result."""
    context_from: tuple[str, ...] = ()
    """The ids of jobs whose latest output is put before the prompt."""
    toolsets: tuple[str, ...] | None = None
    """None uses those in the config."""
    allowed_tools: tuple[str, ...] | None = None
    """The tools of the session that created it, which it cannot exceed; None if a person created it."""
    workdir: str = ""
    attach_to_session: str = ""
    """The session that its runs continue; empty means that each run gets its own session."""
    created_at: float = 0.0
    updated_at: float = 0.0
    paused_reason: str = ""
    """Why it was paused, if whoever paused it said so."""

    state: JobState = "active"
    next_run: float | None = None
    run_count: int = 0
    """Runs started by its schedule."""
    asked_at: float | None = None
    """When somebody requested an immediate run that has not started yet."""


LIVE_FIELDS = ("state", "next_run", "run_count", "asked_at")
"""Fields with their own columns, because schedulers query and update them."""


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job."""

    number: int
    job: str
    due_at: float
    started_at: float
    finished_at: float | None = None
    state: RunState = "running"
    trigger: Trigger = "schedule"
    session_id: str = ""
    output: str = ""
    error: str = ""
    note: str = ""
    """Additional information, such as the runs that it replaces or the result of its delivery."""
    owner: str = ""
    """The process that runs it."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run."""

    state: RunState
    output: str = ""
    error: str = ""
    session_id: str = ""
    note: str = ""


def schedule_of(job: Job) -> Schedule:
    """The parsed schedule of a job; raises UsageError if it is no longer valid."""
    zone = zone_named(job.timezone) if job.timezone else machine_zone(environment())
    return parse_schedule(job.schedule, zone, job.since)


NEXT_SHOWN = 3
OPTIONS = ("repeat", "missed", "skills", "model", "provider", "script", "no_agent", "context_from", "attach_to_session")


def format_moment(moment: float, zone: tzinfo | None = None) -> str:
    """A moment with its UTC offset, in a zone or in this machine's: 2026-12-24T18:00:00+01:00."""
    return datetime.fromtimestamp(moment, zone or UTC).astimezone(zone).isoformat(timespec="seconds")


def upcoming_runs(job: Job, now: float) -> tuple[list[float], tzinfo | None, str]:
    """The next moments of a job, their time zone, and the meaning of its schedule in words."""
    try:
        schedule = schedule_of(job)
    except UsageError as error:
        return [], None, str(error)
    if job.state != "active" or job.next_run is None:
        return [], schedule.zone, schedule.meaning
    left = NEXT_SHOWN if job.repeat is None else min(NEXT_SHOWN, job.repeat - job.run_count)
    later = islice(upcoming(schedule, max(now, job.next_run)), max(0, left - 1))
    return [job.next_run, *later], schedule.zone, schedule.meaning


def describe_job(job: Job, now: float) -> JsonObject:
    """A job as JSON, without empty options. Keys are only ever added."""
    moments, zone, meaning = upcoming_runs(job, now)
    facts: JsonObject = {
        "job_id": job.id,
        "name": job.name,
        "state": job.state,
        "schedule": job.schedule,
        "meaning": meaning,
        "timezone": job.timezone,
        "next_runs": [format_moment(one, zone) for one in moments],
        "prompt": job.prompt,
        "deliver": job.deliver,
        "workdir": job.workdir,
        "runs": job.run_count,
    }
    if job.toolsets is not None:
        facts["enabled_toolsets"] = list(job.toolsets)
    for name in OPTIONS:
        value = getattr(job, name)
        if value:
            facts[name] = list(value) if isinstance(value, tuple) else value
    return facts


def describe_run(run: JobRun, output_chars: int = 0) -> JsonObject:
    """A run as JSON, without empty fields; `output_chars` includes the start of its output."""
    facts: JsonObject = {
        "run": run.number,
        "state": run.state,
        "due": format_moment(run.due_at),
        "started": format_moment(run.started_at),
        "finished": "" if run.finished_at is None else format_moment(run.finished_at),
        "asked_for": run.trigger == "manual",
        "session_id": run.session_id,
        "error": run.error,
        "note": run.note,
    }
    if output_chars:
        cut = len(run.output) > output_chars
        facts["output"] = run.output[:output_chars] + ("…" if cut else "")
    return {name: value for name, value in facts.items() if value != "" and value is not False}
