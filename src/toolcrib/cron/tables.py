"""The tables of scheduled jobs, as the steps that lead from each version to the next, and how rows are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.cron.jobs import LIVE_FIELDS, Job, JobError, Run
from toolcrib.sessions.database import Database, Migration

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


def run_of(row: tuple[Any, ...]) -> Run:
    """The run in a row of RUN_COLUMNS."""
    return msgspec.convert(dict(zip(Run.__struct_fields__, row, strict=True)), Run)
