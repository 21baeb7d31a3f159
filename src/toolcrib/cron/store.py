"""The jobs of one home and their runs, in one SQLite file shared by all processes.

A run starts in the same transaction that moves its job on to the next moment, so each moment has exactly one run, no
matter how many schedulers look at once. A run whose process died is lost: that is recorded, and it is never repeated.

A moment that a scheduler finds late, because none was running or because the job itself still was, counts as missed:
`once` lets one run stand for all of them, `skip` leaves them out, `all` makes up for each of them in order.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.core.errors import UsageError
from toolcrib.cron.jobs import (
    LIVE_FIELDS,
    LOST,
    Job,
    JobError,
    JobRun,
    MissedPolicy,
    RunOutcome,
    RunState,
    Trigger,
    UnknownJob,
    schedule_of,
)
from toolcrib.cron.schedule import Schedule, count_until
from toolcrib.registry.results import sendable
from toolcrib.sessions.database import Database, Migration
from toolcrib.sessions.recorder import is_alive, own_owner, pid_of

STEPS = (
    Migration(
        (
            """CREATE TABLE jobs (
                id TEXT PRIMARY KEY,
                name TEXT NOT NULL UNIQUE COLLATE NOCASE,
                state TEXT NOT NULL,
                next_run REAL,
                run_count INTEGER NOT NULL,
                asked_at REAL,
                definition TEXT NOT NULL
            )""",
            "CREATE INDEX jobs_by_time ON jobs (next_run) WHERE next_run IS NOT NULL",
            """CREATE TABLE runs (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                job TEXT NOT NULL,
                due_at REAL NOT NULL,
                started_at REAL NOT NULL,
                finished_at REAL,
                state TEXT NOT NULL,
                trigger TEXT NOT NULL,
                session_id TEXT NOT NULL DEFAULT '',
                output TEXT NOT NULL DEFAULT '',
                error TEXT NOT NULL DEFAULT '',
                note TEXT NOT NULL DEFAULT '',
                owner TEXT NOT NULL
            )""",
            # No moment of a schedule can run twice, whatever a scheduler does.
            "CREATE UNIQUE INDEX runs_once ON runs (job, due_at) WHERE trigger = 'schedule'",
            "CREATE UNIQUE INDEX runs_alone ON runs (job) WHERE state = 'running'",
            "CREATE INDEX runs_by_job ON runs (job, number)",
            "CREATE TABLE schedulers (owner TEXT PRIMARY KEY, started_at REAL NOT NULL)",
            """CREATE TABLE notices (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                session TEXT NOT NULL,
                run INTEGER NOT NULL,
                text TEXT NOT NULL
            )""",
            "CREATE INDEX notices_by_session ON notices (session)",
        )
    ),
)

JOB_COLUMNS = f"id, name, {', '.join(LIVE_FIELDS)}, definition"
RUN_COLUMNS = "number, job, due_at, started_at, finished_at, state, trigger, session_id, output, error, note, owner"


def open_database(path: Path) -> Database:
    """The database of scheduled jobs; opened on first use, readable by the owner only."""
    return Database(path, steps=STEPS, what="database of scheduled jobs", error=JobError)


def job_values(job: Job) -> tuple[Any, ...]:
    """A job as the values of JOB_COLUMNS."""
    fields = msgspec.to_builtins(job)
    live = [fields.pop(name) for name in ("id", "name", *LIVE_FIELDS)]
    # ASCII, because a path may contain bytes that are not valid text.
    return (*live, json.dumps(fields))


def job_of(row: tuple[Any, ...]) -> Job:
    """The job in a row of JOB_COLUMNS."""
    live = dict(zip(("id", "name", *LIVE_FIELDS), row[:-1], strict=True))
    return msgspec.convert({**json.loads(row[-1]), **live}, Job)


def run_of(row: tuple[Any, ...]) -> JobRun:
    """The run in a row of RUN_COLUMNS."""
    return msgspec.convert(dict(zip(JobRun.__struct_fields__, row, strict=True)), JobRun)


LATE_SECONDS = 60.0
"""A moment found later than this was missed."""
MAX_COUNTED = 10_000

_NOT_RUNNING = "NOT EXISTS (SELECT 1 FROM runs WHERE job = jobs.id AND runs.state = 'running')"
_DUE = "(asked_at IS NOT NULL OR (state = 'active' AND next_run <= ?))"


class Claim(msgspec.Struct, frozen=True):
    """A run that has started, and its job."""

    run: JobRun
    job: Job


def is_anything_due(connection: sqlite3.Connection, now: float) -> bool:
    """Whether a write transaction is worthwhile."""
    return connection.execute(f"SELECT 1 FROM jobs WHERE {_DUE} LIMIT 1", (now,)).fetchone() is not None


def next_due(connection: sqlite3.Connection) -> float | None:
    """When the next job that is not running is due."""
    row = connection.execute(
        f"SELECT min(coalesce(asked_at, next_run)) FROM jobs "
        f"WHERE (asked_at IS NOT NULL OR (state = 'active' AND next_run IS NOT NULL)) AND {_NOT_RUNNING}"
    ).fetchone()
    return None if row[0] is None else float(row[0])


def claim_due(
    connection: sqlite3.Connection, now: float, default: MissedPolicy, max_parallel: int, owner: str
) -> list[Claim]:
    """Start what is due, the longest overdue first, and move each job on to its next moment."""
    running = connection.execute("SELECT count(*) FROM runs WHERE state = 'running'").fetchone()[0]
    rows = connection.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE {_DUE} AND {_NOT_RUNNING} ORDER BY coalesce(asked_at, next_run)", (now,)
    ).fetchall()
    started: list[Claim] = []
    for job in map(job_of, rows):
        if running + len(started) >= max_parallel:
            break
        if job.asked_at is not None:
            started.append(start_manual_run(connection, job, job.asked_at, now, owner))
            continue
        claim = _start_due(connection, job, now, default, owner)
        if claim is not None:
            started.append(claim)
    return started


def reschedule_after_clock_change(connection: sqlite3.Connection, now: float) -> list[Job]:
    """The jobs created or run in what is now the future: the clock was set back, and they would wait for it.

    Moments that already have a run are still not repeated.
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


def start_manual_run(connection: sqlite3.Connection, job: Job, asked_at: float, now: float, owner: str) -> Claim:
    """Start a manual run; the schedule does not change."""
    connection.execute("UPDATE jobs SET asked_at = NULL WHERE id = ?", (job.id,))
    return Claim(_insert_run(connection, job, asked_at, now, owner, trigger="manual"), job)


def _start_due(connection: sqlite3.Connection, job: Job, now: float, default: MissedPolicy, owner: str) -> Claim | None:
    try:
        schedule = schedule_of(job)
    except UsageError as error:
        # For example, its time zone is no longer known on this machine.
        _advance(connection, job, None, ran=False, state="paused")
        note = f"the job was paused: {error}"
        _insert_run(connection, job, job.next_run or now, now, owner, state="skipped", note=note)
        return None
    due = _without_run(connection, job, schedule, job.next_run)
    if due is None or due > now:
        _advance(connection, job, due, ran=False)
        return None
    policy = job.missed or default
    if policy == "skip" and due < now - LATE_SECONDS:
        return _skip_missed(connection, job, schedule, due, now, owner)
    following, note = schedule.next_after(due), ""
    if policy != "all" and following is not None and following <= now:
        count = count_until(schedule, due, now, MAX_COUNTED)
        note = f"it stands for {_format_count(count)} missed runs"
        following = schedule.next_after(now)
    _advance(connection, job, following, ran=True)
    return Claim(_insert_run(connection, job, due, now, owner, note=note), job)


def _skip_missed(
    connection: sqlite3.Connection, job: Job, schedule: Schedule, due: float, now: float, owner: str
) -> Claim | None:
    """Skip what was missed, and start what is due right now."""
    last_missed = now - LATE_SECONDS
    count = count_until(schedule, due, last_missed, MAX_COUNTED)
    note = f"skipped: {_format_count(count)} run{'s' if count > 1 else ''} missed while no scheduler could start them"
    _insert_run(connection, job, due, now, owner, state="skipped", note=note)
    following = _without_run(connection, job, schedule, schedule.next_after(last_missed))
    if following is None or following > now:
        _advance(connection, job, following, ran=False)
        return None
    _advance(connection, job, schedule.next_after(now), ran=True)
    return Claim(_insert_run(connection, job, following, now, owner), job)


def _format_count(count: int) -> str:
    return f"{count:,}" if count < MAX_COUNTED else f"more than {MAX_COUNTED:,}"


def _advance(
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
        raise sqlite3.IntegrityError(f"the job {job.id} changed in the middle of a transaction")


def _without_run(connection: sqlite3.Connection, job: Job, schedule: Schedule, moment: float | None) -> float | None:
    """This moment, or the next one without a run: the schedule or the clock may have been set back."""
    while moment is not None and _has_run(connection, job, moment):
        moment = schedule.next_after(moment)
    return moment


def _has_run(connection: sqlite3.Connection, job: Job, due: float) -> bool:
    found = connection.execute(
        "SELECT 1 FROM runs WHERE job = ? AND due_at = ? AND trigger = 'schedule'", (job.id, due)
    ).fetchone()
    return found is not None


def _insert_run(
    connection: sqlite3.Connection,
    job: Job,
    due: float,
    now: float,
    owner: str,
    *,
    trigger: Trigger = "schedule",
    state: RunState = "running",
    note: str = "",
) -> JobRun:
    finished = None if state == "running" else now
    row = connection.execute(
        "INSERT INTO runs (job, due_at, started_at, finished_at, state, trigger, note, owner) "
        f"VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING {RUN_COLUMNS}",
        (job.id, due, now, finished, state, trigger, note, owner),
    ).fetchone()
    return run_of(row)


MAX_OUTPUT_CHARS = 1_000_000
ID_BYTES = 3
ADVICE = "`toolcrib cron list` lists all jobs"


class JobStore:
    """The jobs of one home, or those of one owner. Opened on first use, safe from any thread, shared with other
    processes."""

    def __init__(self, path: Path, *, owner: str | None = None) -> None:
        self.database = open_database(path)
        self._owner = owner
        """Only jobs of this owner are found; None means all."""

    # Jobs

    def add(self, job: Job) -> Job:
        """Store a new job under a new id; raises JobError if its name is taken."""
        with self.database.write(durable=True) as connection:
            job = msgspec.structs.replace(job, id=_new_id(connection), owner=self._owner or job.owner)
            _refuse_taken_name(connection, job)
            marks = ", ".join("?" * len(job_values(job)))
            connection.execute(f"INSERT INTO jobs ({JOB_COLUMNS}) VALUES ({marks})", job_values(job))
        return job

    def replace(self, job: Job, before: Job) -> Job:
        """Replace a job; raises JobError if it changed in between."""
        with self.database.write(durable=True) as connection:
            found = _find_id(connection, job.id)
            if found != before:
                raise JobError(f"the job {before.name!r} was just changed by somebody else; check it and try again")
            _refuse_taken_name(connection, job)
            _update_row(connection, job)
        return job

    def remove(self, job: Job) -> None:
        """Delete a job and its runs; raises JobError while it is running."""
        with self.database.write(durable=True) as connection:
            self._mark_lost(connection, None)
            _refuse_running(connection, job)
            connection.execute("DELETE FROM jobs WHERE id = ?", (job.id,))
            connection.execute("DELETE FROM runs WHERE job = ?", (job.id,))

    def jobs(self) -> list[Job]:
        """All jobs, sorted by their next run; jobs without one come last."""
        if not self.database.exists:
            return []
        with self.database.read() as connection:
            rows = connection.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs "
                "WHERE ?1 IS NULL OR coalesce(json_extract(definition, '$.owner'), '') = ?1 "
                "ORDER BY next_run IS NULL, next_run, name",
                (self._owner,),
            )
            return [job_of(row) for row in rows.fetchall()]

    def find(self, wanted: str) -> Job:
        """The job with that id or name, or the only one whose id or name starts with it; raises UnknownJob."""
        known, text = self.jobs(), wanted.strip().casefold()
        exact = [job for job in known if text in (job.id, job.name.casefold())]
        near = [job for job in known if text and (job.id.startswith(text) or job.name.casefold().startswith(text))]
        found = exact or near
        if len(found) == 1:
            return found[0]
        if found:
            names = " and ".join(repr(job.name) for job in found[:3])
            raise UnknownJob(
                wanted, (), advice=f"{names} both match; give more of the name, or the id from `toolcrib cron list`"
            )
        advice = ADVICE if known else "there are no jobs yet; `toolcrib cron create` creates one"
        raise UnknownJob(wanted, [name for job in known for name in (job.name, job.id)], advice=advice)

    # Runs

    def runs(self, job: Job, limit: int = 10) -> list[JobRun]:
        """The latest runs of a job, newest first. One whose process died counts as lost even before it is marked."""
        if not self.database.exists:
            return []
        with self.database.read() as connection:
            rows = connection.execute(
                f"SELECT {RUN_COLUMNS} FROM runs WHERE job = ? ORDER BY number DESC LIMIT ?", (job.id, limit)
            ).fetchall()
        return [_with_lost_state(run_of(row)) for row in rows]

    def latest_runs(self) -> dict[str, JobRun]:
        """The latest run of each job that has one, by job id; without outputs, which may be large."""
        if not self.database.exists:
            return {}
        columns = RUN_COLUMNS.replace("output", "'' AS output")
        with self.database.read() as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM runs WHERE number IN (SELECT max(number) FROM runs GROUP BY job)"
            ).fetchall()
        return {run.job: _with_lost_state(run) for run in map(run_of, rows)}

    def last_output(self, job_id: str) -> JobRun | None:
        """The latest successful run of a job."""
        with self.database.read() as connection:
            row = connection.execute(
                f"SELECT {RUN_COLUMNS} FROM runs WHERE job = ? AND state = 'ok' ORDER BY number DESC LIMIT 1", (job_id,)
            ).fetchone()
        return None if row is None else run_of(row)

    def claim_due(self, now: float, *, missed: MissedPolicy, max_parallel: int) -> list[Claim]:
        """Start the runs that are due, up to the limit. This process must finish them."""
        if not self.database.exists:
            return []
        # Check with a read first, because a write would make other processes wait.
        with self.database.read() as connection:
            if not is_anything_due(connection, now):
                return []
        with self.database.write(durable=True) as connection:
            self._mark_lost(connection, now)
            return claim_due(connection, now, missed, max_parallel, own_owner())

    def claim_now(self, job: Job, now: float) -> Claim:
        """Start a manual run; raises JobError while the job is running."""
        with self.database.write(durable=True) as connection:
            self._mark_lost(connection, now)
            found = _find_id(connection, job.id)
            _refuse_running(connection, found)
            return start_manual_run(connection, found, now, now, own_owner())

    def request_run(self, job: Job, now: float) -> None:
        """Request an immediate run from the next scheduler, even for a paused job."""
        with self.database.write(durable=True) as connection:
            connection.execute("UPDATE jobs SET asked_at = ? WHERE id = ?", (now, job.id))

    def finish(self, run: JobRun, outcome: RunOutcome, now: float, *, keep_runs: int) -> None:
        """Record the outcome of a run and delete the oldest ones. Also corrects a run that was marked as lost."""
        output = outcome.output
        if len(output) > MAX_OUTPUT_CHARS:
            output = f"{output[:MAX_OUTPUT_CHARS]}\n… ({len(outcome.output):,} characters in total)"
        note = "; ".join(part for part in (run.note, outcome.note) if part)
        with self.database.write(durable=True) as connection:
            connection.execute(
                "UPDATE runs SET state = ?, finished_at = ?, output = ?, error = ?, session_id = ?, note = ? "
                "WHERE number = ? AND owner = ? AND state IN ('running', 'lost')",
                (outcome.state, now, *map(sendable, (output, outcome.error)), outcome.session_id, sendable(note),
                 run.number, run.owner),
            )  # fmt: skip
            connection.execute(
                "DELETE FROM runs WHERE job = ?1 AND state <> 'running' AND number NOT IN "
                "(SELECT number FROM runs WHERE job = ?1 ORDER BY number DESC LIMIT ?2)",
                (run.job, keep_runs),
            )

    def reschedule_after_clock_change(self, now: float) -> list[Job]:
        """Move jobs to an earlier next run after the clock was set back; returns those that moved."""
        if not self.database.exists:
            return []
        with self.database.read() as connection:
            if not reschedule_after_clock_change(connection, now):
                return []
        with self.database.write(durable=True) as connection:
            found = reschedule_after_clock_change(connection, now)
            for job in found:
                _update_row(connection, job)
        return found

    def next_due(self) -> float | None:
        """When the next job that is not running is due; in the past while one waits for its turn."""
        if not self.database.exists:
            return None
        with self.database.read() as connection:
            return next_due(connection)

    def mark_lost(self, now: float) -> list[JobRun]:
        """Mark the runs whose process died as lost; returns them."""
        if not self.database.exists:
            return []
        with self.database.read() as connection:
            if not _dead_runs(connection):
                return []
        with self.database.write(durable=True) as connection:
            return self._mark_lost(connection, now)

    def _mark_lost(self, connection: sqlite3.Connection, now: float | None) -> list[JobRun]:
        dead = _dead_runs(connection)
        for run in dead:
            connection.execute(
                "UPDATE runs SET state = 'lost', finished_at = ?, error = ? WHERE number = ?",
                (now or run.started_at, LOST, run.number),
            )
        return dead

    # Schedulers

    @contextmanager
    def serving(self, now: float) -> Iterator[None]:
        """Register this process as a scheduler for the duration of the block."""
        owner = own_owner()
        with self.database.write() as connection:
            gone = [(one,) for one in _schedulers(connection) if not is_alive(one)]
            connection.executemany("DELETE FROM schedulers WHERE owner = ?", gone)
            connection.execute("INSERT OR REPLACE INTO schedulers VALUES (?, ?)", (owner, now))
        try:
            yield
        finally:
            with self.database.write() as connection:
                connection.execute("DELETE FROM schedulers WHERE owner = ?", (owner,))

    def scheduler(self) -> int:
        """The process id of a running scheduler; 0 if there is none."""
        if not self.database.exists:
            return 0
        with self.database.read() as connection:
            return next((pid_of(owner) for owner in _schedulers(connection) if is_alive(owner)), 0)

    @property
    def version(self) -> int:
        """A number that changes when another process writes to the database."""
        if not self.database.exists:
            return 0
        with self.database.read() as connection:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self.database.close()


def rescheduled(job: Job, now: float) -> Job:
    """Activate a job from now on, with the next moment of its schedule."""
    following = schedule_of(job).next_after(now)
    exhausted = following is None or (job.repeat is not None and job.run_count >= job.repeat)
    return msgspec.structs.replace(
        job, state="done" if exhausted else "active", next_run=None if exhausted else following
    )


def _new_id(connection: sqlite3.Connection) -> str:
    while True:
        made = secrets.token_hex(ID_BYTES)
        # An all-digit id could be mistaken for a number or a name.
        if not made.isdigit() and not connection.execute("SELECT 1 FROM jobs WHERE id = ?", (made,)).fetchone():
            return made


def _find_id(connection: sqlite3.Connection, job_id: str) -> Job:
    row = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise UnknownJob(job_id, (), advice=f"it was removed; {ADVICE}")
    return job_of(row)


def _update_row(connection: sqlite3.Connection, job: Job) -> None:
    columns = ", ".join(f"{name} = ?" for name in JOB_COLUMNS.split(", "))
    connection.execute(f"UPDATE jobs SET {columns} WHERE id = ?", (*job_values(job), job.id))


def _refuse_taken_name(connection: sqlite3.Connection, job: Job) -> None:
    others = connection.execute("SELECT id, name FROM jobs WHERE id <> ?", (job.id,)).fetchall()
    # Compared like lookups do; SQLite folds the case of ASCII letters only.
    taken = next((number for number, name in others if name.casefold() == job.name.casefold()), "")
    if taken:
        raise JobError(
            f"a job named {job.name!r} already exists; choose another `name`, or update that one (id `{taken}`)"
        )


def _refuse_running(connection: sqlite3.Connection, job: Job) -> None:
    row = connection.execute("SELECT owner FROM runs WHERE job = ? AND state = 'running'", (job.id,)).fetchone()
    if row is not None:
        raise JobError(
            f"the job {job.name!r} is running in process {pid_of(row[0])}; wait until `toolcrib cron show {job.id}` "
            "shows that it has ended"
        )


def _dead_runs(connection: sqlite3.Connection) -> list[JobRun]:
    rows = connection.execute(f"SELECT {RUN_COLUMNS} FROM runs WHERE state = 'running'").fetchall()
    return [run for run in map(run_of, rows) if not is_alive(run.owner)]


def _schedulers(connection: sqlite3.Connection) -> Sequence[str]:
    return [row[0] for row in connection.execute("SELECT owner FROM schedulers").fetchall()]


def _with_lost_state(run: JobRun) -> JobRun:
    if run.state != "running" or is_alive(run.owner):
        return run
    return msgspec.structs.replace(run, state="lost", error=LOST)
