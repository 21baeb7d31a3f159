"""Letting jobs rest and go on."""

from __future__ import annotations

from msgspec.structs import replace

from toolcrib.core.errors import UsageError
from toolcrib.cron.jobs import Job
from toolcrib.cron.store import restarted


def paused(job: Job, now: float) -> Job:
    """The job at rest; refused for one that is done."""
    if job.state == "done":
        raise UsageError(
            f"the job {job.name!r} is done and does not run any more; `toolcrib cron remove {job.id}` deletes it"
        )
    return replace(job, state="paused", next_run=None, asked_at=None, updated_at=now)


def resumed(job: Job, now: float) -> Job:
    """The job with its next moment from now on; what was due while it rested is not made up for."""
    if job.state == "active":
        raise UsageError(f"the job {job.name!r} is not paused; `toolcrib cron show {job.id}` says when it runs next")
    again = restarted(replace(job, state="active", updated_at=now), now)
    if again.state == "done":
        raise UsageError(f"the job {job.name!r} has no time left to run at; give it another schedule with update")
    return again
