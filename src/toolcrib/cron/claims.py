"""Which runs begin now: decided inside the transaction that puts them on record.

What a scheduler finds late, because none was running or because the job itself still was, has been missed: `once` lets
one run stand for all of it, `skip` leaves it out, `all` makes up for each moment, one after the other.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

import msgspec

from toolcrib.core.errors import UsageError
from toolcrib.cron.jobs import Job, Missed, Run, RunState, Trigger, schedule_of
from toolcrib.cron.schedule import Schedule, count_until
from toolcrib.cron.tables import JOB_COLUMNS, RUN_COLUMNS, job_of, run_of

LATE_SECONDS = 60.0
"""Who comes later than this has missed the moment."""
MAX_COUNTED = 10_000

_FREE = "NOT EXISTS (SELECT 1 FROM runs WHERE job = jobs.id AND runs.state = 'running')"
_DUE = "(asked_at IS NOT NULL OR (state = 'active' AND next_run <= ?))"


class Claim(msgspec.Struct, frozen=True):
    """A run that has begun, and its job."""

    run: Run
    job: Job


def something_is_due(connection: sqlite3.Connection, now: float) -> bool:
    """Whether it is worth a transaction to look closer."""
    return connection.execute(f"SELECT 1 FROM jobs WHERE {_DUE} LIMIT 1", (now,)).fetchone() is not None


def next_moment(connection: sqlite3.Connection) -> float | None:
    """When the next job is due, of those that are not running."""
    row = connection.execute(
        f"SELECT min(coalesce(asked_at, next_run)) FROM jobs "
        f"WHERE (asked_at IS NOT NULL OR (state = 'active' AND next_run IS NOT NULL)) AND {_FREE}"
    ).fetchone()
    return None if row[0] is None else float(row[0])


def claim_due(
    connection: sqlite3.Connection, now: float, default: Missed, max_parallel: int, owner: str
) -> list[Claim]:
    """Begin what is due, the longest due first, and move each job on to its next moment."""
    running = connection.execute("SELECT count(*) FROM runs WHERE state = 'running'").fetchone()[0]
    rows = connection.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE {_DUE} AND {_FREE} ORDER BY coalesce(asked_at, next_run)", (now,)
    ).fetchall()
    begun: list[Claim] = []
    for job in map(job_of, rows):
        if running + len(begun) >= max_parallel:
            break
        if job.asked_at is not None:
            begun.append(begin_asked(connection, job, job.asked_at, now, owner))
            continue
        claim = _begin_due(connection, job, now, default, owner)
        if claim is not None:
            begun.append(claim)
    return begun


def count_anew(connection: sqlite3.Connection, now: float) -> list[Job]:
    """The jobs that were made or run in what is the future now: the clock was set back, and they would wait for it.

    Moments that are on record are not run again all the same.
    """
    rows = connection.execute(
        f"SELECT {JOB_COLUMNS}, (SELECT max(started_at) FROM runs WHERE job = jobs.id) FROM jobs "
        "WHERE state = 'active' AND next_run > ?",
        (now,),
    ).fetchall()
    found = []
    for *columns, started_at in rows:
        job = job_of(tuple(columns))
        if max(job.since, started_at or 0.0) <= now + LATE_SECONDS:
            continue
        job = msgspec.structs.replace(job, since=min(job.since, float(int(now))))
        with suppress(UsageError):
            following = schedule_of(job).next_after(now)
            if following is not None and job.next_run is not None and following < job.next_run:
                found.append(msgspec.structs.replace(job, next_run=following))
    return found


def begin_asked(connection: sqlite3.Connection, job: Job, asked_at: float, now: float, owner: str) -> Claim:
    """Begin a run that somebody asked for; the schedule stays as it is."""
    connection.execute("UPDATE jobs SET asked_at = NULL WHERE id = ?", (job.id,))
    return Claim(_begin(connection, job, asked_at, now, owner, trigger="manual"), job)


def _begin_due(connection: sqlite3.Connection, job: Job, now: float, default: Missed, owner: str) -> Claim | None:
    try:
        schedule = schedule_of(job)
    except UsageError as error:
        # Its time zone is unknown on this machine by now, for example.
        _move_on(connection, job, None, ran=False, state="paused")
        note = f"the job was paused: {error}"
        _begin(connection, job, job.next_run or now, now, owner, state="skipped", note=note)
        return None
    due = _not_run(connection, job, schedule, job.next_run)
    if due is None or due > now:
        _move_on(connection, job, due, ran=False)
        return None
    policy = job.missed or default
    if policy == "skip" and due < now - LATE_SECONDS:
        return _skip(connection, job, schedule, due, now, owner)
    following, note = schedule.next_after(due), ""
    if policy != "all" and following is not None and following <= now:
        count = count_until(schedule, due, now, MAX_COUNTED)
        note = f"it stands for {_counted(count)} moments that have passed"
        following = schedule.next_after(now)
    _move_on(connection, job, following, ran=True)
    return Claim(_begin(connection, job, due, now, owner, note=note), job)


def _skip(
    connection: sqlite3.Connection, job: Job, schedule: Schedule, due: float, now: float, owner: str
) -> Claim | None:
    """Leave out what was missed, and begin what is due just now."""
    last_missed = now - LATE_SECONDS
    count = count_until(schedule, due, last_missed, MAX_COUNTED)
    note = f"left out: {_counted(count)} moment{'s' if count > 1 else ''} passed before anybody could run it"
    _begin(connection, job, due, now, owner, state="skipped", note=note)
    following = _not_run(connection, job, schedule, schedule.next_after(last_missed))
    if following is None or following > now:
        _move_on(connection, job, following, ran=False)
        return None
    _move_on(connection, job, schedule.next_after(now), ran=True)
    return Claim(_begin(connection, job, following, now, owner), job)


def _counted(count: int) -> str:
    return f"{count:,}" if count < MAX_COUNTED else f"more than {MAX_COUNTED:,}"


def _move_on(
    connection: sqlite3.Connection, job: Job, following: float | None, *, ran: bool, state: str = "active"
) -> None:
    count = job.run_count + ran
    if following is None or (job.repeat is not None and count >= job.repeat):
        following, state = None, "done" if state == "active" else state
    moved = connection.execute(
        "UPDATE jobs SET next_run = ?, run_count = ?, state = ? WHERE id = ? AND next_run IS ?",
        (following, count, state, job.id, job.next_run),
    )
    if moved.rowcount != 1:
        raise sqlite3.IntegrityError(f"the job {job.id} moved on in the middle of a transaction")


def _not_run(connection: sqlite3.Connection, job: Job, schedule: Schedule, moment: float | None) -> float | None:
    """This moment, or the next one that is not on record: a schedule was changed back, or the clock was."""
    while moment is not None and _has_run(connection, job, moment):
        moment = schedule.next_after(moment)
    return moment


def _has_run(connection: sqlite3.Connection, job: Job, due: float) -> bool:
    found = connection.execute(
        "SELECT 1 FROM runs WHERE job = ? AND due_at = ? AND trigger = 'schedule'", (job.id, due)
    ).fetchone()
    return found is not None


def _begin(
    connection: sqlite3.Connection,
    job: Job,
    due: float,
    now: float,
    owner: str,
    *,
    trigger: Trigger = "schedule",
    state: RunState = "running",
    note: str = "",
) -> Run:
    finished = None if state == "running" else now
    row = connection.execute(
        "INSERT INTO runs (job, due_at, started_at, finished_at, state, trigger, note, owner) "
        f"VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING {RUN_COLUMNS}",
        (job.id, due, now, finished, state, trigger, note, owner),
    ).fetchone()
    return run_of(row)
