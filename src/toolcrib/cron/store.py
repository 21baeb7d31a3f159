"""The jobs of one home and their runs, in one SQLite file for all processes.

A run is begun in the same transaction that moves its job on to the next moment, so that each moment has exactly one
run, whoever looks at the same time. The run of a process that was ended is lost: it is said, and never run again.
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
            # No moment of a schedule can be run twice, whatever a scheduler does.
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
    """The database of scheduled jobs; opened on first use, for the owner alone."""
    return Database(path, steps=STEPS, what="database of scheduled jobs", error=JobError)


def job_values(job: Job) -> tuple[Any, ...]:
    """A job as the values of JOB_COLUMNS."""
    fields = msgspec.to_builtins(job)
    live = [fields.pop(name) for name in ("id", "name", *LIVE_FIELDS)]
    # With escapes: a path may hold bytes that are no characters.
    return (*live, json.dumps(fields))


def job_of(row: tuple[Any, ...]) -> Job:
    """The job in a row of JOB_COLUMNS."""
    live = dict(zip(("id", "name", *LIVE_FIELDS), row[:-1], strict=True))
    return msgspec.convert({**json.loads(row[-1]), **live}, Job)


def run_of(row: tuple[Any, ...]) -> JobRun:
    """The run in a row of RUN_COLUMNS."""
    return msgspec.convert(dict(zip(JobRun.__struct_fields__, row, strict=True)), JobRun)


LATE_SECONDS = 60.0
"""Who comes later than this has missed the moment."""
MAX_COUNTED = 10_000

_FREE = "NOT EXISTS (SELECT 1 FROM runs WHERE job = jobs.id AND runs.state = 'running')"
_DUE = "(asked_at IS NOT NULL OR (state = 'active' AND next_run <= ?))"


class Claim(msgspec.Struct, frozen=True):
    """A run that has begun, and its job."""

    run: JobRun
    job: Job


def is_anything_due(connection: sqlite3.Connection, now: float) -> bool:
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
    connection: sqlite3.Connection, now: float, default: MissedPolicy, max_parallel: int, owner: str
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
            begun.append(begin_manual_run(connection, job, job.asked_at, now, owner))
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


def begin_manual_run(connection: sqlite3.Connection, job: Job, asked_at: float, now: float, owner: str) -> Claim:
    """Begin a run that somebody asked for; the schedule stays as it is."""
    connection.execute("UPDATE jobs SET asked_at = NULL WHERE id = ?", (job.id,))
    return Claim(_begin(connection, job, asked_at, now, owner, trigger="manual"), job)


def _begin_due(connection: sqlite3.Connection, job: Job, now: float, default: MissedPolicy, owner: str) -> Claim | None:
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
ADVICE = "`toolcrib cron list` shows all of them"


class JobStore:
    """All jobs of one home. Opened on first use, safe from any thread, shared with other processes."""

    def __init__(self, path: Path) -> None:
        self.database = open_database(path)

    # Jobs

    def add(self, job: Job) -> Job:
        """Keep a new job, under an id of its own; raises JobError where its name is taken."""
        with self.database.write(durable=True) as connection:
            job = msgspec.structs.replace(job, id=_new_id(connection))
            _refuse_taken_name(connection, job)
            marks = ", ".join("?" * len(job_values(job)))
            connection.execute(f"INSERT INTO jobs ({JOB_COLUMNS}) VALUES ({marks})", job_values(job))
        return job

    def replace(self, job: Job, before: Job) -> Job:
        """Keep a job in the place of what it was; raises JobError where it changed in between."""
        with self.database.write(durable=True) as connection:
            found = _find_id(connection, job.id)
            if found != before:
                raise JobError(f"the job {before.name!r} was changed by somebody else just now; look at it again")
            _refuse_taken_name(connection, job)
            _put(connection, job)
        return job

    def remove(self, job: Job) -> None:
        """Delete a job and what is kept of its runs; one that is running is refused."""
        with self.database.write(durable=True) as connection:
            self._mark_lost(connection, None)
            _refuse_running(connection, job)
            connection.execute("DELETE FROM jobs WHERE id = ?", (job.id,))
            connection.execute("DELETE FROM runs WHERE job = ?", (job.id,))

    def jobs(self) -> list[Job]:
        """All jobs: those that come next first, then those that rest."""
        if not self.database.exists:
            return []
        with self.database.read() as connection:
            rows = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs ORDER BY next_run IS NULL, next_run, name")
            return [job_of(row) for row in rows.fetchall()]

    def find(self, wanted: str) -> Job:
        """The job with that id or name, or the only one whose id or name begins so; raises UnknownJob."""
        known, text = self.jobs(), wanted.strip().casefold()
        exact = [job for job in known if text in (job.id, job.name.casefold())]
        near = [job for job in known if text and (job.id.startswith(text) or job.name.casefold().startswith(text))]
        found = exact or near
        if len(found) == 1:
            return found[0]
        if found:
            names = " and ".join(repr(job.name) for job in found[:3])
            raise UnknownJob(
                wanted, (), advice=f"{names} begin so; write more of it, or its id, as `toolcrib cron list` shows it"
            )
        advice = ADVICE if known else "there are no jobs yet; `toolcrib cron create` makes one"
        raise UnknownJob(wanted, [name for job in known for name in (job.name, job.id)], advice=advice)

    # Runs

    def runs(self, job: Job, limit: int = 10) -> list[JobRun]:
        """The latest runs of a job, the newest first. One whose process was ended is lost, marked so or not yet."""
        if not self.database.exists:
            return []
        with self.database.read() as connection:
            rows = connection.execute(
                f"SELECT {RUN_COLUMNS} FROM runs WHERE job = ? ORDER BY number DESC LIMIT ?", (job.id, limit)
            ).fetchall()
        return [_as_it_is(run_of(row)) for row in rows]

    def latest_runs(self) -> dict[str, JobRun]:
        """The latest run of each job that has one, by the job's id; without the outputs, which may be large."""
        if not self.database.exists:
            return {}
        columns = RUN_COLUMNS.replace("output", "'' AS output")
        with self.database.read() as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM runs WHERE number IN (SELECT max(number) FROM runs GROUP BY job)"
            ).fetchall()
        return {run.job: _as_it_is(run) for run in map(run_of, rows)}

    def last_output(self, job_id: str) -> JobRun | None:
        """The latest run of a job that went well."""
        with self.database.read() as connection:
            row = connection.execute(
                f"SELECT {RUN_COLUMNS} FROM runs WHERE job = ? AND state = 'ok' ORDER BY number DESC LIMIT 1", (job_id,)
            ).fetchone()
        return None if row is None else run_of(row)

    def claim_due(self, now: float, *, missed: MissedPolicy, max_parallel: int) -> list[Claim]:
        """Begin the runs that are due, as many as may run at once. They are this process's to finish."""
        if not self.database.exists:
            return []
        # Looked at first without the right to write, which other processes would have to wait for.
        with self.database.read() as connection:
            if not is_anything_due(connection, now):
                return []
        with self.database.write(durable=True) as connection:
            self._mark_lost(connection, now)
            return claim_due(connection, now, missed, max_parallel, own_owner())

    def claim_now(self, job: Job, now: float) -> Claim:
        """Begin a run that somebody asked for; refused while the job is running."""
        with self.database.write(durable=True) as connection:
            self._mark_lost(connection, now)
            found = _find_id(connection, job.id)
            _refuse_running(connection, found)
            return begin_manual_run(connection, found, now, now, own_owner())

    def ask_for_run(self, job: Job, now: float) -> None:
        """Let the next scheduler that looks run a job at once, also one that is paused."""
        with self.database.write(durable=True) as connection:
            connection.execute("UPDATE jobs SET asked_at = ? WHERE id = ?", (now, job.id))

    def finish(self, run: JobRun, report: RunOutcome, now: float, *, keep_runs: int) -> None:
        """Say how a run went, and forget the oldest ones. A run of ours that was thought lost counts again."""
        output = report.output
        if len(output) > MAX_OUTPUT_CHARS:
            output = f"{output[:MAX_OUTPUT_CHARS]}\n… ({len(report.output):,} characters in all)"
        note = "; ".join(part for part in (run.note, report.note) if part)
        with self.database.write(durable=True) as connection:
            connection.execute(
                "UPDATE runs SET state = ?, finished_at = ?, output = ?, error = ?, session_id = ?, note = ? "
                "WHERE number = ? AND owner = ? AND state IN ('running', 'lost')",
                (report.state, now, *map(sendable, (output, report.error)), report.session_id, sendable(note),
                 run.number, run.owner),
            )  # fmt: skip
            connection.execute(
                "DELETE FROM runs WHERE job = ?1 AND state <> 'running' AND number NOT IN "
                "(SELECT number FROM runs WHERE job = ?1 ORDER BY number DESC LIMIT ?2)",
                (run.job, keep_runs),
            )

    def count_anew(self, now: float) -> list[Job]:
        """The jobs whose next moment is nearer now, because the clock was set back."""
        if not self.database.exists:
            return []
        with self.database.read() as connection:
            if not count_anew(connection, now):
                return []
        with self.database.write(durable=True) as connection:
            found = count_anew(connection, now)
            for job in found:
                _put(connection, job)
        return found

    def next_moment(self) -> float | None:
        """When the next job is due that is not running; in the past while one waits for its turn."""
        if not self.database.exists:
            return None
        with self.database.read() as connection:
            return next_moment(connection)

    def mark_lost(self, now: float) -> list[JobRun]:
        """The runs whose process was ended, which are marked as lost now."""
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
        """While a scheduler of this process looks after the jobs, others can see that."""
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
        """The process id of a scheduler that looks after the jobs; 0 when there is none."""
        if not self.database.exists:
            return 0
        with self.database.read() as connection:
            return next((pid_of(owner) for owner in _schedulers(connection) if is_alive(owner)), 0)

    @property
    def version(self) -> int:
        """A number that changes when another process wrote something."""
        if not self.database.exists:
            return 0
        with self.database.read() as connection:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self.database.close()


def rescheduled(job: Job, now: float) -> Job:
    """The job, active from now on, with the next moment of its schedule."""
    following = schedule_of(job).next_after(now)
    exhausted = following is None or (job.repeat is not None and job.run_count >= job.repeat)
    return msgspec.structs.replace(
        job, state="done" if exhausted else "active", next_run=None if exhausted else following
    )


def _new_id(connection: sqlite3.Connection) -> str:
    while True:
        made = secrets.token_hex(ID_BYTES)
        # Hex digits alone could be taken for a number, or for a name.
        if not made.isdigit() and not connection.execute("SELECT 1 FROM jobs WHERE id = ?", (made,)).fetchone():
            return made


def _find_id(connection: sqlite3.Connection, job_id: str) -> Job:
    row = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise UnknownJob(job_id, (), advice=f"it was removed; {ADVICE}")
    return job_of(row)


def _put(connection: sqlite3.Connection, job: Job) -> None:
    columns = ", ".join(f"{name} = ?" for name in JOB_COLUMNS.split(", "))
    connection.execute(f"UPDATE jobs SET {columns} WHERE id = ?", (*job_values(job), job.id))


def _refuse_taken_name(connection: sqlite3.Connection, job: Job) -> None:
    others = connection.execute("SELECT id, name FROM jobs WHERE id <> ?", (job.id,)).fetchall()
    # Compared as they are looked for; SQLite knows the case of ASCII letters alone.
    taken = next((number for number, name in others if name.casefold() == job.name.casefold()), "")
    if taken:
        raise JobError(f"there is a job {job.name!r} already; choose another `name`, or update that one (id `{taken}`)")


def _refuse_running(connection: sqlite3.Connection, job: Job) -> None:
    row = connection.execute("SELECT owner FROM runs WHERE job = ? AND state = 'running'", (job.id,)).fetchone()
    if row is not None:
        raise JobError(
            f"the job {job.name!r} is running in process {pid_of(row[0])}; wait until `toolcrib cron show {job.id}` "
            "says that it has ended"
        )


def _dead_runs(connection: sqlite3.Connection) -> list[JobRun]:
    rows = connection.execute(f"SELECT {RUN_COLUMNS} FROM runs WHERE state = 'running'").fetchall()
    return [run for run in map(run_of, rows) if not is_alive(run.owner)]


def _schedulers(connection: sqlite3.Connection) -> Sequence[str]:
    return [row[0] for row in connection.execute("SELECT owner FROM schedulers").fetchall()]


def _as_it_is(run: JobRun) -> JobRun:
    if run.state != "running" or is_alive(run.owner):
        return run
    return msgspec.structs.replace(run, state="lost", error=LOST)
