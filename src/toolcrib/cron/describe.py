"""Jobs and runs as objects for programs and models; keys are only ever added."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from itertools import islice

from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.cron.jobs import Job, Run, schedule_of
from toolcrib.cron.schedule import upcoming

NEXT_SHOWN = 3
OPTIONS = ("repeat", "missed", "skills", "model", "provider", "script", "no_agent", "context_from", "attach_to_session")


def moment_text(moment: float, zone: tzinfo | None = None) -> str:
    """A moment with its offset, in a zone or in that of this machine: 2026-12-24T18:00:00+01:00."""
    return datetime.fromtimestamp(moment, zone or UTC).astimezone(zone).isoformat(timespec="seconds")


def next_moments(job: Job, now: float) -> tuple[list[float], tzinfo | None, str]:
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


def job_facts(job: Job, now: float) -> JsonObject:
    """A job; empty options are left out."""
    moments, zone, meaning = next_moments(job, now)
    facts: JsonObject = {
        "job_id": job.id,
        "name": job.name,
        "state": job.state,
        "schedule": job.schedule,
        "meaning": meaning,
        "timezone": job.timezone,
        "next_runs": [moment_text(one, zone) for one in moments],
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


def run_facts(run: Run, output_chars: int = 0) -> JsonObject:
    """A run, with the beginning of its output where that is asked for; empty facts are left out."""
    facts: JsonObject = {
        "run": run.number,
        "state": run.state,
        "due": moment_text(run.due_at),
        "started": moment_text(run.started_at),
        "finished": "" if run.finished_at is None else moment_text(run.finished_at),
        "asked_for": run.trigger == "manual",
        "session_id": run.session_id,
        "error": run.error,
        "note": run.note,
    }
    if output_chars:
        cut = len(run.output) > output_chars
        facts["output"] = run.output[:output_chars] + ("…" if cut else "")
    return {name: value for name, value in facts.items() if value != "" and value is not False}
