"""Jobs and their runs, as values."""

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

LOST = "the process that ran it was ended before it could say how it went; it is not run again by itself"


class JobError(ToolcribError):
    """A job cannot be read, written or run; says which one and what to do."""


class UnknownJob(UnknownName):
    """No job, or more than one, is meant by a name."""

    kind = "job"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Work at set times."""

    id: str
    name: str
    schedule: str
    """As it was written."""
    timezone: str = ""
    """The zone of the schedule; empty means this machine's."""
    since: float
    """When the schedule was written: spans of time are counted from here."""
    prompt: str = ""
    repeat: int | None = None
    """How often it runs at most; None means without end."""
    missed: MissedPolicy | None = None
    """None: as `cron.missed` says."""
    deliver: str = "local"
    origin: str = ""
    """The session that made it."""
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
    """None: those of the config."""
    allowed_tools: tuple[str, ...] | None = None
    """The tools of the session that made it, beyond which it gets none; None where a person made it."""
    workdir: str = ""
    attach_to_session: str = ""
    """The session that its runs go on with; empty means that each has a session of its own."""
    created_at: float = 0.0
    updated_at: float = 0.0

    state: JobState = "active"
    next_run: float | None = None
    run_count: int = 0
    """Runs that its schedule started."""
    asked_at: float | None = None
    """When somebody asked for a run at once that has not begun yet."""


LIVE_FIELDS = ("state", "next_run", "run_count", "asked_at")
"""What is kept in columns of its own, because schedulers look at it and change it."""


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
    """What else there is to know: runs that it stands for, what became of its delivery."""
    owner: str = ""
    """The process that runs it."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run went."""

    state: RunState
    output: str = ""
    error: str = ""
    session_id: str = ""
    note: str = ""


def schedule_of(job: Job) -> Schedule:
    """When a job is due; raises UsageError where that cannot be read any more."""
    zone = zone_named(job.timezone) if job.timezone else machine_zone(environment())
    return parse_schedule(job.schedule, zone, job.since)


NEXT_SHOWN = 3
OPTIONS = ("repeat", "missed", "skills", "model", "provider", "script", "no_agent", "context_from", "attach_to_session")


def format_moment(moment: float, zone: tzinfo | None = None) -> str:
    """A moment with its offset, in a zone or in that of this machine: 2026-12-24T18:00:00+01:00."""
    return datetime.fromtimestamp(moment, zone or UTC).astimezone(zone).isoformat(timespec="seconds")


def upcoming_runs(job: Job, now: float) -> tuple[list[float], tzinfo | None, str]:
    """The next moments of a job, the zone that they are said in, and what its schedule means."""
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
    """A job; empty options are left out."""
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
    """A run, with the beginning of its output where that is asked for; empty facts are left out."""
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
