"""The session store: conversations, their calls and their cost, in one SQLite file for all processes."""

from __future__ import annotations

import builtins
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from toolcrib.core.errors import SessionError, UnknownSession, nearest_names
from toolcrib.core.messages import Message
from toolcrib.core.models import Usage
from toolcrib.core.types import JsonObject
from toolcrib.registry.results import sendable
from toolcrib.sessions.database import Database
from toolcrib.sessions.recorder import SessionRecorder, own_owner
from toolcrib.sessions.records import (
    CALL_COLUMNS,
    HIDDEN_SOURCES,
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    ParentKind,
    RecordedCall,
    Session,
    State,
    StoredMessage,
    call_of,
    message_of,
    row_of,
    session_of,
    usage_text,
)
from toolcrib.sessions.transcript import whole_pairs

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
# The record of a call keeps its result only until the conversation contains it.
_DROP_RECORDED_RESULT = "UPDATE calls SET result = NULL WHERE session = ? AND call_id = ? AND result IS NOT NULL"


def no_session(session_id: str) -> SessionError:
    return SessionError(f"there is no session {session_id!r}; `toolcrib sessions list` shows all sessions")


def number_of(connection: sqlite3.Connection, session_id: str) -> int:
    """The key in the rows of a session."""
    row = connection.execute("SELECT number FROM sessions WHERE id = ?", (session_id,)).fetchone()
    if row is None:
        raise no_session(session_id)
    number: int = row[0]
    return number


def append_message(
    connection: sqlite3.Connection, session_id: str, message: Message, turn_id: str, usage: Usage | None, now: float
) -> int:
    """Append a message to a session and add its usage to the session's totals."""
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
    """Insert one row at a position; the caller updates the session's counts."""
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
        raise SessionError(f"message {id} is not a live message of session {session_id!r}; nothing was changed")
    position: int = row[0]
    return position


LATEST = "last"
"""The id that `get` takes for the most recently used session."""
NEAREST_AMONG = 500
NEWEST_FIRST = "ORDER BY updated_at DESC, number DESC"
VISIBLE = f"source NOT IN ({', '.join(repr(source) for source in HIDDEN_SOURCES)})"
_CREATE = """INSERT INTO sessions
    (id, title, source, model, provider, cwd, created_at, updated_at, parent_id, parent_kind, toolsets, owner)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
# UNION removes duplicates, so a cycle ends.
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
        draft.created_at, draft.updated_at, draft.parent_id, draft.parent_kind, json.dumps(draft.toolsets), draft.owner,
    )  # fmt: skip
    try:
        number = connection.execute(_CREATE, values).lastrowid
    except sqlite3.IntegrityError as error:
        raise SessionError(f"session {draft.id!r} already exists; choose another id") from error
    assert number is not None
    if draft.system_prompt:
        connection.execute("INSERT INTO prompts VALUES (?, ?)", (number, sendable(draft.system_prompt)))
    return number


def _owner_of(connection: sqlite3.Connection, session_id: str) -> str:
    row = connection.execute("SELECT owner FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return "" if row is None else str(row[0])


def new_id(connection: sqlite3.Connection, now: float) -> str:
    moment = time.strftime("%Y%m%d_%H%M%S", time.localtime(now))
    while True:
        id = f"{moment}_{secrets.token_hex(3)}"
        if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (id,)).fetchone() is None:
            return id


def select(connection: sqlite3.Connection, clause: str, values: Sequence[Any] = ()) -> list[Session]:
    """The sessions that the end of a SELECT statement selects."""
    return [session_of(row) for row in connection.execute(f"SELECT {SESSION_COLUMNS} FROM sessions {clause}", values)]


def find(connection: sqlite3.Connection, wanted: str) -> Session:
    """The session with this id or unique id prefix, or the most recently used one; raises SessionError."""
    if wanted == LATEST:
        found = select(connection, f"WHERE {VISIBLE} AND owner = '' {NEWEST_FIRST} LIMIT 1")
    else:
        found = select(connection, "WHERE id = ?", (wanted,))
        if not found and wanted:
            found = select(connection, "WHERE id > ? AND id < ? ORDER BY id LIMIT 4", (wanted, wanted + "\U0010ffff"))
    if len(found) == 1:
        return found[0]
    known = connection.execute(f"SELECT id FROM sessions {NEWEST_FIRST} LIMIT {NEAREST_AMONG}")
    raise _not_one(wanted, found, [id for (id,) in known])


def lineage(connection: sqlite3.Connection, wanted: str) -> list[Session]:
    """A session's ancestors, oldest first, and the session itself."""
    line = [find(connection, wanted)]
    while line[0].parent_id and line[0].parent_id not in {session.id for session in line}:
        parents = select(connection, "WHERE id = ?", (line[0].parent_id,))
        if not parents:
            break
        line = parents + line
    return line


def family(connection: sqlite3.Connection, session_id: str) -> frozenset[str]:
    """The ids of a session, its ancestors and its descendants; empty if it doesn't exist."""
    return frozenset(id for (id,) in connection.execute(_FAMILY, (session_id, session_id)).fetchall())


def first_words(connection: sqlite3.Connection, session_id: str) -> str:
    """The beginning of the user's first message."""
    row = connection.execute(_FIRST_WORDS, (session_id,)).fetchone()
    return "" if row is None else " ".join(row[0].split())


def _not_one(wanted: str, found: Sequence[Session], known: Sequence[str]) -> UnknownSession:
    if found:
        ids = ", ".join(repr(session.id) for session in found[:3])
        return UnknownSession(f"several sessions start with {wanted!r} ({ids} …); type more of the id")
    if wanted == LATEST:
        return UnknownSession("there are no sessions yet; start one with `toolcrib chat`")
    nearest = nearest_names(wanted, known)
    hint = f"the latest is {known[0]!r}; " if known else ""
    if nearest:
        hint = f"did you mean {' or '.join(repr(id) for id in nearest)}? "
    return UnknownSession(f"there is no session {wanted!r}; {hint}`toolcrib sessions list` shows all")


_TOTALS = """count(*), total(message_count), total(call_count), total(input_tokens), total(output_tokens),
    total(cached_tokens), sum(cost_usd)"""
_NAMES = ("sessions", "messages", "calls", "input_tokens", "output_tokens", "cached_tokens", "cost_usd")


def read_statistics(connection: sqlite3.Connection, path: Path | None) -> JsonObject:
    """Totals, totals by source and by model, calls by tool, and the bytes on disk."""
    first, last = connection.execute("SELECT min(created_at), max(updated_at) FROM sessions").fetchone()
    (totals,) = _totals(connection, "''").values()
    return {
        **totals,
        "first_at": first,
        "last_at": last,
        "by_source": _totals(connection, "source"),
        "by_model": _totals(connection, "model"),
        "by_tool": dict(
            connection.execute(
                "SELECT name, count(*) FROM messages WHERE role = 'tool' AND state <> 'undone' "
                "GROUP BY name ORDER BY 2 DESC, 1"
            ).fetchall()
        ),
        "size_bytes": 0
        if path is None
        else sum(_size(path.with_name(path.name + end)) for end in ("", "-wal", "-shm")),
    }


def _totals(connection: sqlite3.Connection, column: str) -> dict[str, JsonObject]:
    rows = connection.execute(
        f"SELECT {column}, {_TOTALS} FROM sessions GROUP BY {column} ORDER BY 2 DESC, 1"
    ).fetchall()
    if not rows and column == "''":
        rows = [("", 0, 0, 0, 0, 0, 0, None)]
    return {row[0]: {name: _whole(name, value) for name, value in zip(_NAMES, row[1:], strict=True)} for row in rows}


def _whole(name: str, value: float | None) -> float | int | None:
    return value if name == "cost_usd" or value is None else int(value)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class SessionStore:
    """All sessions of one home. Opened on first use, thread-safe, shared with other processes."""

    def __init__(self, path: Path | str | None, *, clock: Callable[[], float] = time.time) -> None:
        self.database = Database(None if path is None else Path(path))
        self.clock = clock
        self._recorder = SessionRecorder(self.database, clock)

    @classmethod
    def in_memory(cls) -> SessionStore:
        """A store that lives only as long as the process."""
        return cls(None)

    def create(
        self,
        *,
        source: str = "library",
        model: str = "",
        provider: str = "",
        cwd: str = "",
        title: str = "",
        parent_id: str = "",
        parent_kind: ParentKind = "",
        toolsets: Sequence[str] = (),
        system_prompt: str = "",
        session_id: str = "",
        owner: str = "",
    ) -> Session:
        """A new session without messages; one that another session started belongs to the same owner."""
        now = self.clock()
        with self.database.write() as connection:
            if parent_id:
                owner = _owner_of(connection, parent_id) or owner
            draft = Session(
                id=session_id or new_id(connection, now),
                title=title,
                source=source,
                model=model,
                provider=provider,
                cwd=cwd,
                created_at=now,
                updated_at=now,
                parent_id=parent_id,
                parent_kind=parent_kind,
                toolsets=tuple(toolsets),
                system_prompt=system_prompt,
                owner=owner,
            )
            insert_session(connection, draft)
        return draft

    def get(self, session_id: str) -> Session:
        """The session with this id or unique id prefix, or the `last` one."""
        with self.database.read() as connection:
            return find(connection, session_id)

    def update(
        self,
        session_id: str,
        *,
        title: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        cwd: str | None = None,
        system_prompt: str | None = None,
        toolsets: Sequence[str] | None = None,
    ) -> None:
        """Change the given fields; None leaves a field unchanged."""
        given = {
            "title": title,
            "model": model,
            "provider": provider,
            "cwd": cwd,
            "toolsets": None if toolsets is None else json.dumps(list(toolsets)),
        }
        texts = {name: sendable(value) for name, value in given.items() if value is not None}
        changes = {"updated_at": self.clock(), **texts}
        with self.database.write() as connection:
            number = number_of(connection, session_id)
            assignments = ", ".join(f"{name} = ?" for name in changes)
            connection.execute(f"UPDATE sessions SET {assignments} WHERE number = ?", (*changes.values(), number))
            if system_prompt is not None:
                connection.execute("INSERT OR REPLACE INTO prompts VALUES (?, ?)", (number, sendable(system_prompt)))

    def end(self, session_id: str, reason: str) -> None:
        """Mark a session as ended; a later message reopens it."""
        with self.database.write() as connection:
            number = number_of(connection, session_id)
            connection.execute(
                "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE number = ?", (self.clock(), reason, number)
            )

    def append(self, session_id: str, message: Message, *, turn_id: str = "", usage: Usage | None = None) -> int:
        """Append a message to the session and return its id; from here on it survives a crash."""
        with self.database.write() as connection:
            return append_message(connection, session_id, message, turn_id, usage, self.clock())

    def append_many(self, session_id: str, messages: Iterable[Message], *, turn_id: str = "") -> list[int]:
        """Append several messages: all of them or none."""
        now = self.clock()
        with self.database.write() as connection:
            return [append_message(connection, session_id, one, turn_id, None, now) for one in messages]

    def add_usage(self, session_id: str, usage: Usage, *, purpose: str) -> None:
        """Add the usage of a request that leaves no message: a summary, an approval."""
        with self.database.write() as connection:
            number = number_of(connection, session_id)
            add_usage(connection, session_id, usage)
            connection.execute(
                "INSERT INTO side_usage (session, purpose, created_at, usage) VALUES (?, ?, ?, ?)",
                (number, purpose, self.clock(), usage_text(usage)),
            )

    def messages(self, session_id: str, *, states: Sequence[State] = ("live",)) -> list[StoredMessage]:
        """The messages of a session in conversation order."""
        with self.database.read() as connection:
            return read_messages(connection, session_id, number_of(connection, session_id), states)

    def newest_message(self, session_id: str) -> int:
        """The id of the last message of the session, live or not; 0 if it has none."""
        with self.database.read() as connection:
            number = number_of(connection, session_id)
            return newest_message(connection, number)

    def fold(self, session_id: str, ids: Sequence[int], summary: Message) -> int:
        """Replace these live messages with a summary, in the place of the first; they are kept as folded."""
        with self.database.write() as connection:
            number = number_of(connection, session_id)
            places = {id: live_position(connection, number, id, session_id) for id in ids}
            if not places:
                raise SessionError(f"no messages of session {session_id!r} were given for the summary to replace")
            set_state(connection, places, "folded")
            now = self.clock()
            # As the newest message at its position it sorts before the one it replaces.
            folded = insert_message(connection, number, min(places.values()), summary, created_at=now)
            connection.execute(
                "UPDATE sessions SET message_count = message_count + 1, updated_at = ? WHERE number = ?", (now, number)
            )
            return folded

    def undo(self, session_id: str, first_id: int) -> int:
        """Undo a live message and all that follow; returns how many live messages that were."""
        with self.database.write() as connection:
            number = number_of(connection, session_id)
            position = live_position(connection, number, first_id, session_id)
            later = connection.execute(
                "SELECT id, state FROM messages WHERE session = ? AND state <> 'undone' "
                "AND (position > ? OR (position = ? AND id <= ?))",
                (number, position, position, first_id),
            ).fetchall()
            set_state(connection, [id for id, _ in later], "undone")
            connection.execute(
                "UPDATE sessions SET message_count = message_count - ?, updated_at = ? WHERE number = ?",
                (len(later), self.clock(), number),
            )
            return sum(state == "live" for _, state in later)

    def branch(self, session_id: str, *, up_to: int | None = None) -> Session:
        """A new session with a copy of the live messages; each call is copied with its result or not at all."""
        now = self.clock()
        with self.database.write() as connection:
            (parent,) = select(connection, "WHERE id = ?", (session_id,)) or (None,)
            if parent is None:
                raise no_session(session_id)
            number = number_of(connection, session_id)
            if up_to is not None:
                live_position(connection, number, up_to, session_id)
            copied = whole_pairs(read_messages(connection, session_id, number, ("live",)), up_to)
            draft = replace(
                parent,
                id=new_id(connection, now),
                created_at=now,
                updated_at=now,
                parent_id=parent.id,
                parent_kind="branch",
            )
            child = insert_session(connection, draft)
            for position, one in enumerate(copied):
                insert_message(connection, child, position, one.message, turn_id=one.turn_id, created_at=one.created_at)
            connection.execute(
                "UPDATE sessions SET message_count = ?1, next_position = ?1, call_count = ?2 WHERE number = ?3",
                (len(copied), sum(len(one.message.tool_calls) for one in copied), child),
            )
        return self.get(draft.id)

    def owners(self, session_ids: Iterable[str]) -> dict[str, str]:
        """By id, the owners of those sessions that exist, and the other owners of those that were deleted."""
        wanted = json.dumps(builtins.list(session_ids))
        with self.database.read() as connection:
            return dict(
                connection.execute(
                    "SELECT id, owner FROM sessions WHERE id IN (SELECT value FROM json_each(?1)) UNION ALL "
                    "SELECT id, owner FROM deleted_owners WHERE id IN (SELECT value FROM json_each(?1))",
                    (wanted,),
                ).fetchall()
            )

    def existing(self, session_ids: Iterable[str]) -> set[str]:
        """Those of the ids that sessions have."""
        wanted = json.dumps(builtins.list(session_ids))
        with self.database.read() as connection:
            ids = "SELECT id FROM sessions WHERE id IN (SELECT value FROM json_each(?))"
            return {row[0] for row in connection.execute(ids, (wanted,))}

    def lineage(self, session_id: str) -> builtins.list[Session]:
        """The session's ancestors, oldest first, and the session itself."""
        with self.database.read() as connection:
            return lineage(connection, session_id)

    def family(self, session_id: str) -> frozenset[str]:
        """The ids of a session, its ancestors and its descendants; empty if it doesn't exist."""
        with self.database.read() as connection:
            return family(connection, session_id)

    def session_of_message(self, message_id: int) -> Session:
        """The session that a message belongs to."""
        with self.database.read() as connection:
            found = select(connection, "WHERE number = (SELECT session FROM messages WHERE id = ?)", (message_id,))
        if not found:
            raise SessionError(f"there is no message {message_id}; search for it again")
        return found[0]

    def first_words(self, session_id: str) -> str:
        """The beginning of the user's first message, for a session without a title."""
        with self.database.read() as connection:
            return first_words(connection, session_id)

    def list(
        self,
        *,
        limit: int = 20,
        offset: int = 0,
        source: str | None = None,
        include_hidden: bool = False,
        include_empty: bool = True,
        cwd: str | None = None,
        owner: str | None = None,
    ) -> builtins.list[Session]:
        """Sessions, most recently used first; of one owner, or of all; with those that have no messages, or without."""
        conditions: dict[str, tuple[Any, ...]] = {}
        if source is not None:
            conditions["source = ?"] = (source,)
        elif not include_hidden:
            conditions[VISIBLE] = ()
        if not include_empty:
            conditions["message_count > 0"] = ()
        if cwd is not None:
            conditions["cwd = ?"] = (cwd,)
        if owner is not None:
            conditions["owner = ?"] = (owner,)
        where = "WHERE " + " AND ".join(conditions) if conditions else ""
        values = [value for given in conditions.values() for value in given]
        newest = NEWEST_FIRST
        with self.database.read() as connection:
            # Sort without the prompts, which are long.
            return select(
                connection,
                f"WHERE number IN (SELECT number FROM sessions {where} {newest} LIMIT ? OFFSET ?) {newest}",
                (*values, limit, offset),
            )

    def with_subagents(self, session_id: str) -> builtins.list[str]:
        """The ids of a session, of its subagents' sessions, and of theirs."""
        with self.database.read() as connection:
            rows = connection.execute(
                "WITH RECURSIVE found (id) AS (SELECT id FROM sessions WHERE id = ? UNION "
                "SELECT sessions.id FROM sessions JOIN found ON parent_id = found.id WHERE parent_kind = 'delegate') "
                "SELECT id FROM found",
                (session_id,),
            ).fetchall()
        return [row[0] for row in rows]

    def delete(self, session_id: str) -> None:
        """Delete a session and everything that belongs to it, except the sessions of its subagents."""
        with self.database.write() as connection:
            number = number_of(connection, session_id)
            for table in ("messages", "calls", "prompts", "side_usage"):
                connection.execute(f"DELETE FROM {table} WHERE session = ?", (number,))
            connection.execute("DELETE FROM sessions WHERE number = ?", (number,))

    def calls(self, session_id: str) -> builtins.list[RecordedCall]:
        """The recorded calls with effects of a session, in the order they started."""
        with self.database.read() as connection:
            number = number_of(connection, session_id)
            found = connection.execute(
                f"SELECT {CALL_COLUMNS} FROM calls WHERE session = ? ORDER BY number", (number,)
            ).fetchall()
        return [call_of(row) for row in found]

    def stats(self) -> JsonObject:
        """Totals: sessions, messages, calls, tokens, cost, by source, model and tool; size on disk."""
        with self.database.search() as connection:
            return read_statistics(connection, self.database.path)

    def recorder(self) -> SessionRecorder:
        """The recorder that a pipeline reports its calls to."""
        return self._recorder

    def close(self) -> None:
        """Close this process's connections. Appended messages are safe without it."""
        self.database.close()
