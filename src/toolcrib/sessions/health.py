"""Checks the session database without changing it: no migration, no repair, no new file."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct, field

from toolcrib.config.os_errors import ANOTHER_HOME, reason_of, remedy_for
from toolcrib.sessions.database import STEPS, has_tables
from toolcrib.sessions.recorder import is_alive

CHECK_SECONDS = 2.0
LOOK_EVERY_STEPS = 10_000
BUSY_SECONDS = 1.0
_STARTED = "SELECT s.id, c.status, c.owner FROM calls c JOIN sessions s ON s.number = c.session"


class DatabaseHealth(Struct, frozen=True, kw_only=True):
    """The result of one check of the file."""

    path: Path
    exists: bool
    size_bytes: int = 0
    sessions: int = 0
    messages: int = 0
    unknown_outcomes: Mapping[str, int] = field(default_factory=dict)
    """By session: the number of calls that started and never finished, because their process died."""
    is_checked: bool = False
    """The check covered the whole file; it gives up on a very large one after a moment."""
    problem: str = ""
    """What is wrong, as a sentence without a remedy; empty if nothing is."""
    remedy: str = ""
    """What to do about it, if the file itself is not to blame."""


def examine_database(path: Path, *, check_seconds: float = CHECK_SECONDS) -> DatabaseHealth:
    """Check the database of one home. Raises nothing: problems are part of the result."""
    log = path.with_name(f"{path.name}-wal")
    size = 0
    try:
        if not path.exists():
            return DatabaseHealth(path=path, exists=False)
        size = sum(part.stat().st_size for part in (path, log) if part.exists())
        if not log.exists():
            # Opened as immutable, so that reading leaves no log behind.
            health = _examined(path, "immutable=1", size, check_seconds)
            # A process that writes for the first time creates the log; the file changes while we read it.
            if not (health.problem and log.exists()):
                return health
        return _examined(path, "mode=ro", size, check_seconds)
    except sqlite3.Error as error:
        problem = f"cannot read the session database {str(path)!r} ({error})"
        return DatabaseHealth(path=path, exists=True, size_bytes=size, problem=problem)
    except OSError as error:
        problem = f"cannot read the session database {str(path)!r} ({reason_of(error)})"
        remedy = remedy_for(error, path, otherwise=ANOTHER_HOME)
        return DatabaseHealth(path=path, exists=True, size_bytes=size, problem=problem, remedy=remedy)


def _examined(path: Path, mode: str, size: int, check_seconds: float) -> DatabaseHealth:
    address = f"file:{quote(str(path))}?{mode}"
    with contextlib.closing(
        sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    ) as connection:
        # One transaction: a process that creates the tables between two reads would make them look foreign.
        connection.execute("BEGIN")
        return _read_health(connection, path, size, check_seconds)


def _read_health(connection: sqlite3.Connection, path: Path, size: int, check_seconds: float) -> DatabaseHealth:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(STEPS):
        problem = f"the session database {str(path)!r} was written by a newer toolcrib"
        return DatabaseHealth(path=path, exists=True, size_bytes=size, problem=problem)
    if version == 0:
        problem = f"{str(path)!r} is a database, but not toolcrib's" if has_tables(connection) else ""
        return DatabaseHealth(path=path, exists=True, size_bytes=size, is_checked=True, problem=problem)
    sessions, messages = connection.execute("SELECT count(*), total(message_count) FROM sessions").fetchone()
    found = _quick_check(connection, check_seconds)
    return DatabaseHealth(
        path=path,
        exists=True,
        size_bytes=size,
        sessions=sessions,
        messages=int(messages),
        unknown_outcomes=_unknown_outcomes(connection),
        is_checked=found is not None,
        problem=f"the session database {str(path)!r} is damaged ({found})" if found else "",
    )


def _quick_check(connection: sqlite3.Connection, seconds: float) -> str | None:
    """The first complaint of the check, empty if there is none; None if it took too long."""
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, LOOK_EVERY_STEPS)
    try:
        said: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return None
    finally:
        connection.set_progress_handler(None, 0)
    # A heading precedes the first complaint.
    return "" if said == "ok" else said.splitlines()[-1]


def _unknown_outcomes(connection: sqlite3.Connection) -> dict[str, int]:
    started = connection.execute(f"{_STARTED} WHERE c.status IN ('started', 'unknown') ORDER BY c.number DESC")
    return dict(Counter(session for session, status, owner in started if status == "unknown" or not is_alive(owner)))
