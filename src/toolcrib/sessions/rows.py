"""Writing the rows of a conversation, inside a transaction that the caller holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from toolcrib.core.errors import SessionError
from toolcrib.core.messages import Message
from toolcrib.core.models import Usage
from toolcrib.sessions.owner import own_owner
from toolcrib.sessions.records import MESSAGE_COLUMNS, StoredMessage, message_of, row_of, usage_text

IN_ORDER = "ORDER BY position, id DESC"
_TAKE_PLACE = """UPDATE sessions SET updated_at = ?, ended_at = NULL, end_reason = '',
    next_position = next_position + 1, message_count = message_count + 1, call_count = call_count + ?
    WHERE id = ? RETURNING number, next_position - 1"""
_ADD_MESSAGE = """INSERT INTO messages
    (session, position, role, created_at, turn_id, name, call_id, owner, spaceless, usage, fields, called, text)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_ADD_USAGE = """UPDATE sessions SET input_tokens = input_tokens + ?, output_tokens = output_tokens + ?,
    cached_tokens = cached_tokens + ?, cache_write_tokens = cache_write_tokens + ?,
    reasoning_tokens = reasoning_tokens + ?,
    cost_usd = CASE WHEN ?6 IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) + ?6 END WHERE id = ?7"""
# The record of a call keeps its result only until the conversation has it.
_DROP_RECORDED_RESULT = "UPDATE calls SET result = NULL WHERE session = ? AND call_id = ? AND result IS NOT NULL"


def no_session(session_id: str) -> SessionError:
    return SessionError(
        f"there is no session {session_id!r} (any more); `toolcrib sessions list` shows those there are"
    )


def number_of(connection: sqlite3.Connection, session_id: str) -> int:
    """The key that rows of a session carry."""
    row = connection.execute("SELECT number FROM sessions WHERE id = ?", (session_id,)).fetchone()
    if row is None:
        raise no_session(session_id)
    number: int = row[0]
    return number


def append_message(
    connection: sqlite3.Connection, session_id: str, message: Message, turn_id: str, usage: Usage | None, now: float
) -> int:
    """Put a message at the end of a session, and what it used on the session's account."""
    rows = connection.execute(_TAKE_PLACE, (now, len(message.tool_calls), session_id)).fetchall()
    if not rows:
        raise no_session(session_id)
    ((number, position),) = rows
    if usage is not None:
        add_usage(connection, session_id, usage)
    return insert_message(connection, number, position, message, turn_id=turn_id, usage=usage, created_at=now)


def insert_message(
    connection: sqlite3.Connection,
    session: int,
    position: int,
    message: Message,
    *,
    turn_id: str = "",
    usage: Usage | None = None,
    created_at: float,
) -> int:
    """Write one row at a position; the caller keeps the counts of the session."""
    row = row_of(message)
    values: tuple[Any, ...] = (
        session, position, row.role, created_at, turn_id, row.name, row.call_id, own_owner() if row.calls else "",
        row.spaceless, usage_text(usage), row.fields, row.called, row.text,
    )  # fmt: skip
    id = connection.execute(_ADD_MESSAGE, values).lastrowid
    if row.call_id and row.role == "tool":
        connection.execute(_DROP_RECORDED_RESULT, (session, row.call_id))
    assert id is not None
    return id


def add_usage(connection: sqlite3.Connection, session_id: str, usage: Usage) -> None:
    """Add to the totals of a session."""
    values = (
        usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens,
        usage.reasoning_tokens, usage.cost_usd, session_id,
    )  # fmt: skip
    if connection.execute(_ADD_USAGE, values).rowcount == 0:
        raise no_session(session_id)


def read_messages(
    connection: sqlite3.Connection, session_id: str, session: int, states: Sequence[str]
) -> list[StoredMessage]:
    """The messages of a session in conversation order."""
    marks = ", ".join("?" * len(states))
    rows = connection.execute(
        f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE session = ? AND state IN ({marks}) {IN_ORDER}",
        (session, *states),
    )
    return [message_of(row, session_id) for row in rows]


def newest_message(connection: sqlite3.Connection, session: int) -> int:
    row = connection.execute(
        "SELECT id FROM messages WHERE session = ? ORDER BY position DESC, id LIMIT 1", (session,)
    ).fetchone()
    return row[0] if row else 0


def set_state(connection: sqlite3.Connection, ids: Iterable[int], state: str) -> None:
    connection.executemany("UPDATE messages SET state = ? WHERE id = ?", [(state, id) for id in ids])


def live_position(connection: sqlite3.Connection, session: int, id: int, session_id: str) -> int:
    row = connection.execute(
        "SELECT position FROM messages WHERE id = ? AND session = ? AND state = 'live'", (id, session)
    ).fetchone()
    if row is None:
        raise SessionError(f"message {id} is no live message of session {session_id!r}; nothing was changed")
    position: int = row[0]
    return position
