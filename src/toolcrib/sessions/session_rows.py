"""Reading and writing the rows of sessions, on a connection that the caller holds."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from toolcrib.core.errors import SessionError, UnknownSession, nearest_names
from toolcrib.registry.results import sendable
from toolcrib.sessions.records import HIDDEN_SOURCES, SESSION_COLUMNS, Session, session_of

LATEST = "last"
"""What `get` takes for the session that was used last."""
NEAREST_AMONG = 500
NEWEST_FIRST = "ORDER BY updated_at DESC, number DESC"
VISIBLE = f"source NOT IN ({', '.join(repr(source) for source in HIDDEN_SOURCES)})"
_CREATE = """INSERT INTO sessions
    (id, title, source, model, provider, cwd, created_at, updated_at, parent_id, parent_kind, toolsets)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
# UNION keeps each once, so that a circle ends.
_FAMILY = """WITH RECURSIVE
    up (id) AS (SELECT id FROM sessions WHERE id = ?
        UNION SELECT parent_id FROM sessions JOIN up USING (id) WHERE parent_id <> ''),
    down (id) AS (SELECT id FROM sessions WHERE id = ?
        UNION SELECT sessions.id FROM sessions JOIN down ON parent_id = down.id WHERE parent_id <> '')
    SELECT id FROM up UNION SELECT id FROM down"""
_FIRST_WORDS = """SELECT substr(text, 1, 500) FROM messages
    WHERE session = (SELECT number FROM sessions WHERE id = ?) AND role = 'user' AND state <> 'undone' AND text <> ''
    ORDER BY position, id LIMIT 1"""


def insert_session(connection: sqlite3.Connection, draft: Session) -> int:
    values = (
        draft.id, sendable(draft.title), draft.source, draft.model, draft.provider, sendable(draft.cwd),
        draft.created_at, draft.updated_at, draft.parent_id, draft.parent_kind, json.dumps(draft.toolsets),
    )  # fmt: skip
    try:
        number = connection.execute(_CREATE, values).lastrowid
    except sqlite3.IntegrityError as error:
        raise SessionError(f"there is a session {draft.id!r} already; choose another id") from error
    assert number is not None
    if draft.system_prompt:
        connection.execute("INSERT INTO prompts VALUES (?, ?)", (number, sendable(draft.system_prompt)))
    return number


def new_id(connection: sqlite3.Connection, now: float) -> str:
    moment = time.strftime("%Y%m%d_%H%M%S", time.localtime(now))
    while True:
        id = f"{moment}_{secrets.token_hex(3)}"
        if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (id,)).fetchone() is None:
            return id


def select(connection: sqlite3.Connection, clause: str, values: Sequence[Any] = ()) -> list[Session]:
    """The sessions that the end of a SELECT statement chooses."""
    return [session_of(row) for row in connection.execute(f"SELECT {SESSION_COLUMNS} FROM sessions {clause}", values)]


def find(connection: sqlite3.Connection, wanted: str) -> Session:
    """The session with this id, or whose id alone begins so, or the one used last; raises SessionError."""
    if wanted == LATEST:
        found = select(connection, f"WHERE {VISIBLE} {NEWEST_FIRST} LIMIT 1")
    else:
        found = select(connection, "WHERE id = ?", (wanted,))
        if not found and wanted:
            found = select(connection, "WHERE id > ? AND id < ? ORDER BY id LIMIT 4", (wanted, wanted + "\U0010ffff"))
    if len(found) == 1:
        return found[0]
    known = connection.execute(f"SELECT id FROM sessions {NEWEST_FIRST} LIMIT {NEAREST_AMONG}")
    raise _not_one(wanted, found, [id for (id,) in known])


def lineage(connection: sqlite3.Connection, wanted: str) -> list[Session]:
    """The sessions that one came from, oldest first, and itself."""
    line = [find(connection, wanted)]
    while line[0].parent_id and line[0].parent_id not in {session.id for session in line}:
        parents = select(connection, "WHERE id = ?", (line[0].parent_id,))
        if not parents:
            break
        line = parents + line
    return line


def family(connection: sqlite3.Connection, session_id: str) -> frozenset[str]:
    """The ids of a session, of those that it came from and of those that came from it; empty if there is none."""
    return frozenset(id for (id,) in connection.execute(_FAMILY, (session_id, session_id)).fetchall())


def first_words(connection: sqlite3.Connection, session_id: str) -> str:
    """The beginning of what the user said first."""
    row = connection.execute(_FIRST_WORDS, (session_id,)).fetchone()
    return "" if row is None else " ".join(row[0].split())


def _not_one(wanted: str, found: Sequence[Session], known: Sequence[str]) -> UnknownSession:
    if found:
        ids = ", ".join(repr(session.id) for session in found[:3])
        return UnknownSession(f"several sessions begin with {wanted!r} ({ids} …); type more of the id")
    if wanted == LATEST:
        return UnknownSession("there is no session yet; begin one with `toolcrib chat`")
    nearest = nearest_names(wanted, known)
    hint = f"the latest is {known[0]!r}; " if known else ""
    if nearest:
        hint = f"did you mean {' or '.join(repr(id) for id in nearest)}? "
    return UnknownSession(f"there is no session {wanted!r}; {hint}`toolcrib sessions list` shows all")
