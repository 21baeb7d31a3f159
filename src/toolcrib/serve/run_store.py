"""The server's database: runs and their events, answers of the Responses API, and which session a chat belongs to."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.sessions.database import Database, Migration

RunState = Literal["working", "answered", "failed", "budget", "denied", "interrupted"]
DAY_SECONDS = 86_400.0
LASTING = "lasting:"
"""How an idempotency key begins that is kept when its run is deleted."""

STEPS = (
    Migration(
        (
            """CREATE TABLE runs (
                id TEXT PRIMARY KEY,
                session TEXT NOT NULL,
                state TEXT NOT NULL,
                created_at REAL NOT NULL,
                ended_at REAL,
                problem TEXT NOT NULL DEFAULT '',
                cost_usd REAL NOT NULL DEFAULT 0,
                idempotency_key TEXT UNIQUE,
                digest TEXT NOT NULL DEFAULT ''
            )""",
            "CREATE INDEX runs_by_time ON runs (created_at)",
            "CREATE INDEX runs_by_session ON runs (session)",
            """CREATE TABLE events (
                run TEXT NOT NULL,
                number INTEGER NOT NULL,
                at REAL NOT NULL,
                body TEXT NOT NULL,
                PRIMARY KEY (run, number)
            ) WITHOUT ROWID""",
            # What a client has seen of a conversation, so that a full history finds its session again.
            "CREATE TABLE transcripts (digest TEXT PRIMARY KEY, session TEXT NOT NULL, created_at REAL NOT NULL)",
            """CREATE TABLE responses (
                id TEXT PRIMARY KEY,
                session TEXT NOT NULL,
                message INTEGER NOT NULL,
                created_at REAL NOT NULL,
                body TEXT NOT NULL
            )""",
        )
    ),
    Migration(
        (
            # Where a conversation stood when its answer was complete: a client may go on from an earlier answer.
            "ALTER TABLE runs ADD COLUMN last_message INTEGER",
            "ALTER TABLE transcripts ADD COLUMN run TEXT NOT NULL DEFAULT ''",
        )
    ),
    Migration(
        (
            "ALTER TABLE runs ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        )
    ),
    Migration(
        (
            # What remains of a run that somebody could ask for again at any time: its key, its id, its request.
            "CREATE TABLE lasting_keys (key TEXT PRIMARY KEY, run TEXT NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID",
        )
    ),
)
_RUN_COLUMNS = "id, session, state, created_at, ended_at, problem, cost_usd, digest, owner"


class RunStoreError(ToolcribError):
    """The server's database cannot be used."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as it is listed."""

    id: str
    session_id: str
    state: RunState
    created_at: float
    ended_at: float | None = None
    problem: str = ""
    cost_usd: float = 0.0
    digest: str = ""
    """Of the request that started it, to recognise a repeated one."""
    owner: str = ""
    """Whose run it is; empty for the owner of the home."""


class StoredEvent(msgspec.Struct, frozen=True):
    """One event of a run; `number` counts from 1 and is the id in the event stream."""

    number: int
    at: float
    body: str
    """As JSON."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the Responses API, and the last message of the session that belongs to it; 0 for one that a run gave
    while it waited for a person."""

    id: str
    session_id: str
    message_id: int
    body: str
    owner: str = ""


class RunStore:
    """Thread-safe; opened on first use."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._database = Database(path, steps=STEPS, what="database of the server", error=RunStoreError)
        self.clock = clock

    def unfinished(self) -> Sequence[RunRecord]:
        """The runs that the last server left unfinished."""
        with self._database.read() as connection:
            left = connection.execute(f"SELECT {_RUN_COLUMNS} FROM runs WHERE state = 'working'").fetchall()
        return [_run(row) for row in left]

    def delete_before(self, moment: float) -> int:
        """Delete runs that ended before this moment, with their events, and as old answers; returns how many runs."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO lasting_keys SELECT idempotency_key, id, digest FROM runs "
                "WHERE ended_at < ? AND idempotency_key GLOB ?",
                (moment, f"{LASTING}*"),
            )
            connection.execute("DELETE FROM events WHERE run IN (SELECT id FROM runs WHERE ended_at < ?)", (moment,))
            deleted = connection.execute("DELETE FROM runs WHERE ended_at < ?", (moment,)).rowcount
            connection.execute("DELETE FROM transcripts WHERE created_at < ?", (moment,))
            connection.execute("DELETE FROM responses WHERE created_at < ?", (moment,))
        return deleted

    def delete_sessions(self, session_ids: Iterable[str]) -> None:
        """Delete what runs of these sessions did and answered. Of a run remain its cost and its idempotency key."""
        rows = [(one,) for one in session_ids]
        with self._database.write() as connection:
            connection.executemany("DELETE FROM events WHERE run IN (SELECT id FROM runs WHERE session = ?)", rows)
            connection.executemany("UPDATE runs SET session = '', problem = '' WHERE session = ?", rows)
            connection.executemany("DELETE FROM transcripts WHERE session = ?", rows)
            connection.executemany("DELETE FROM responses WHERE session = ?", rows)

    def sessions(self) -> set[str]:
        """The sessions that runs worked on."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT DISTINCT session FROM runs WHERE session != ''").fetchall()
        return {row[0] for row in rows}

    def by_key(self, idempotency_key: str) -> RunRecord | None:
        """The run that was started with this key, also if only a lasting key is left of it."""
        with self._database.read() as connection:
            row = connection.execute(
                f"SELECT {_RUN_COLUMNS} FROM runs WHERE idempotency_key = ?", (idempotency_key,)
            ).fetchone()
            if row is None:
                kept = "SELECT run, '', 'answered', 0.0, NULL, '', 0.0, digest, '' FROM lasting_keys WHERE key = ?"
                row = connection.execute(kept, (idempotency_key,)).fetchone()
        return None if row is None else _run(row)

    def add(self, run: RunRecord, idempotency_key: str | None = None) -> None:
        """Store a new run."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO runs (id, session, state, created_at, idempotency_key, digest, owner) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (run.id, run.session_id, run.state, run.created_at, idempotency_key, run.digest, run.owner),
            )

    def end(
        self, run_id: str, state: RunState, problem: str = "", cost_usd: float = 0.0, last_message: int | None = None
    ) -> None:
        with self._database.write() as connection:
            connection.execute(
                "UPDATE runs SET state = ?, ended_at = ?, problem = ?, cost_usd = ?, last_message = ? WHERE id = ?",
                (state, self.clock(), problem, cost_usd, last_message, run_id),
            )

    def get(self, run_id: str, owner: str) -> RunRecord | None:
        """The run with this id, if it belongs to this owner and has a session."""
        with self._database.read() as connection:
            row = connection.execute(
                f"SELECT {_RUN_COLUMNS} FROM runs WHERE id = ? AND owner = ? AND session != ''", (run_id, owner)
            ).fetchone()
        return None if row is None else _run(row)

    def list(self, *, owner: str, session_id: str | None = None, limit: int = 50) -> Sequence[RunRecord]:
        """The runs of an owner that have a session, newest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT {_RUN_COLUMNS} FROM runs WHERE owner = ?1 AND session != '' AND (?2 IS NULL OR session = ?2) "
                "ORDER BY created_at DESC LIMIT ?3",
                (owner, session_id, limit),
            ).fetchall()
        return [_run(row) for row in rows]

    def add_cost(self, cost_usd: float, owner: str) -> None:
        """Count what a request without a run has cost."""
        run = RunRecord(
            id=f"run_{secrets.token_hex(12)}", session_id="", state="working", created_at=self.clock(), owner=owner
        )
        self.add(run)
        self.end(run.id, "answered", "", cost_usd)

    def cost_since(self, moment: float, owner: str | None = None) -> float:
        """What the runs since a moment have cost, of one owner or of all."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT total(cost_usd) FROM runs WHERE created_at >= ?1 AND (?2 IS NULL OR owner = ?2)",
                (moment, owner),
            ).fetchone()
        cost: float = row[0]
        return cost

    def add_events(self, events: Iterable[tuple[str, StoredEvent]]) -> None:
        """Store events of several runs in one transaction."""
        with self._database.write() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?)",
                [(run_id, event.number, event.at, event.body) for run_id, event in events],
            )

    def events(self, run_id: str, after: int = 0) -> Sequence[StoredEvent]:
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT number, at, body FROM events WHERE run = ? AND number > ? ORDER BY number", (run_id, after)
            ).fetchall()
        return [StoredEvent(*row) for row in rows]

    def session_for(self, digest: str) -> tuple[str, int | None] | None:
        """The session of the conversation whose visible part has this digest, and its last message at that time; no
        message if the run is still working."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT transcripts.session, last_message FROM transcripts LEFT JOIN runs ON runs.id = run "
                "WHERE transcripts.digest = ?",
                (digest,),
            ).fetchone()
        return None if row is None else (row[0], row[1])

    def remember_transcript(self, digest: str, session_id: str, run_id: str) -> None:
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO transcripts (digest, session, created_at, run) VALUES (?, ?, ?, ?)",
                (digest, session_id, self.clock(), run_id),
            )

    def add_response(self, response: StoredResponse) -> None:
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?)",
                (
                    response.id,
                    response.session_id,
                    response.message_id,
                    self.clock(),
                    response.body,
                    response.owner,
                ),
            )

    def response(self, response_id: str, owner: str) -> StoredResponse | None:
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT id, session, message, body FROM responses WHERE id = ? AND owner = ?", (response_id, owner)
            ).fetchone()
        return None if row is None else StoredResponse(id=row[0], session_id=row[1], message_id=row[2], body=row[3])

    def delete_response(self, response_id: str, owner: str) -> bool:
        with self._database.write() as connection:
            deleted = connection.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response_id, owner))
            return deleted.rowcount > 0

    def close(self) -> None:
        self._database.close()


def _run(row: tuple[str, str, RunState, float, float | None, str, float, str, str]) -> RunRecord:
    id, session, state, created, ended, problem, cost, digest, owner = row
    return RunRecord(
        id=id, session_id=session, state=state, created_at=created, ended_at=ended, problem=problem, cost_usd=cost,
        digest=digest, owner=owner,
    )  # fmt: skip
