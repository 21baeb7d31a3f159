"""Sessions that last: conversations, their calls and what they cost, in one SQLite file for all processes."""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from toolcrib.core.errors import SessionError
from toolcrib.core.messages import Message
from toolcrib.core.models import Usage
from toolcrib.core.types import JsonObject
from toolcrib.registry.results import sendable
from toolcrib.sessions import rows, session_rows
from toolcrib.sessions.database import Database
from toolcrib.sessions.pairing import whole_pairs
from toolcrib.sessions.recorder import SessionRecorder
from toolcrib.sessions.records import (
    CALL_COLUMNS,
    ParentKind,
    RecordedCall,
    Session,
    State,
    StoredMessage,
    call_of,
    usage_text,
)
from toolcrib.sessions.statistics import read_statistics


class SessionStore:
    """All sessions of one home. Opened on first use, safe from any thread, shared with other processes."""

    def __init__(self, path: Path | str | None, *, clock: Callable[[], float] = time.time) -> None:
        self.database = Database(None if path is None else Path(path))
        self.clock = clock
        self._recorder = SessionRecorder(self.database, clock)

    @classmethod
    def in_memory(cls) -> SessionStore:
        """A store that ends with the process."""
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
    ) -> Session:
        """A new session without messages."""
        now = self.clock()
        with self.database.write() as connection:
            draft = Session(
                id=session_id or session_rows.new_id(connection, now),
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
            )
            session_rows.insert_session(connection, draft)
        return draft

    def get(self, session_id: str) -> Session:
        """The session with this id, or whose id alone begins so, or the `last` one."""
        with self.database.read() as connection:
            return session_rows.find(connection, session_id)

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
        """Change what is given; None leaves a field as it is."""
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
            number = rows.number_of(connection, session_id)
            assignments = ", ".join(f"{name} = ?" for name in changes)
            connection.execute(f"UPDATE sessions SET {assignments} WHERE number = ?", (*changes.values(), number))
            if system_prompt is not None:
                connection.execute("INSERT OR REPLACE INTO prompts VALUES (?, ?)", (number, sendable(system_prompt)))

    def end(self, session_id: str, reason: str) -> None:
        """Say that nobody works on a session any more; a later message opens it again."""
        with self.database.write() as connection:
            number = rows.number_of(connection, session_id)
            connection.execute(
                "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE number = ?", (self.clock(), reason, number)
            )

    def append(self, session_id: str, message: Message, *, turn_id: str = "", usage: Usage | None = None) -> int:
        """Put a message at the end of the session; it survives a crash from here on. Its id is returned."""
        with self.database.write() as connection:
            return rows.append_message(connection, session_id, message, turn_id, usage, self.clock())

    def append_many(self, session_id: str, messages: Iterable[Message], *, turn_id: str = "") -> list[int]:
        """Put several messages at the end: all of them or none."""
        now = self.clock()
        with self.database.write() as connection:
            return [rows.append_message(connection, session_id, one, turn_id, None, now) for one in messages]

    def add_usage(self, session_id: str, usage: Usage, *, purpose: str) -> None:
        """Account for a request that leaves no message: a summary, an approval."""
        with self.database.write() as connection:
            number = rows.number_of(connection, session_id)
            rows.add_usage(connection, session_id, usage)
            connection.execute(
                "INSERT INTO side_usage (session, purpose, created_at, usage) VALUES (?, ?, ?, ?)",
                (number, purpose, self.clock(), usage_text(usage)),
            )

    def messages(self, session_id: str, *, states: Sequence[State] = ("live",)) -> list[StoredMessage]:
        """The messages of a session in conversation order."""
        with self.database.read() as connection:
            return rows.read_messages(connection, session_id, rows.number_of(connection, session_id), states)

    def newest_message(self, session_id: str) -> int:
        """The id of the message at the end of the session, live or not; 0 when it has none."""
        with self.database.read() as connection:
            number = rows.number_of(connection, session_id)
            return rows.newest_message(connection, number)

    def fold(self, session_id: str, ids: Sequence[int], summary: Message) -> int:
        """Let a summary stand for these live messages, in the place of the first; they are kept as folded."""
        with self.database.write() as connection:
            number = rows.number_of(connection, session_id)
            places = {id: rows.live_position(connection, number, id, session_id) for id in ids}
            if not places:
                raise SessionError(f"no messages of session {session_id!r} were named that the summary could stand for")
            rows.set_state(connection, places, "folded")
            now = self.clock()
            # As the newest message of its position it comes before the one that it replaces.
            folded = rows.insert_message(connection, number, min(places.values()), summary, created_at=now)
            connection.execute(
                "UPDATE sessions SET message_count = message_count + 1, updated_at = ? WHERE number = ?", (now, number)
            )
            return folded

    def undo(self, session_id: str, first_id: int) -> int:
        """Take back a live message and all that came after it; says how many live ones that were."""
        with self.database.write() as connection:
            number = rows.number_of(connection, session_id)
            position = rows.live_position(connection, number, first_id, session_id)
            later = connection.execute(
                "SELECT id, state FROM messages WHERE session = ? AND state <> 'undone' "
                "AND (position > ? OR (position = ? AND id <= ?))",
                (number, position, position, first_id),
            ).fetchall()
            rows.set_state(connection, [id for id, _ in later], "undone")
            connection.execute(
                "UPDATE sessions SET message_count = message_count - ?, updated_at = ? WHERE number = ?",
                (len(later), self.clock(), number),
            )
            return sum(state == "live" for _, state in later)

    def branch(self, session_id: str, *, up_to: int | None = None) -> Session:
        """A new session that begins with a copy of the live messages; calls are copied with their results or not."""
        now = self.clock()
        with self.database.write() as connection:
            (parent,) = session_rows.select(connection, "WHERE id = ?", (session_id,)) or (None,)
            if parent is None:
                raise rows.no_session(session_id)
            number = rows.number_of(connection, session_id)
            if up_to is not None:
                rows.live_position(connection, number, up_to, session_id)
            copied = whole_pairs(rows.read_messages(connection, session_id, number, ("live",)), up_to)
            draft = replace(
                parent,
                id=session_rows.new_id(connection, now),
                created_at=now,
                updated_at=now,
                parent_id=parent.id,
                parent_kind="branch",
            )
            child = session_rows.insert_session(connection, draft)
            for position, one in enumerate(copied):
                rows.insert_message(
                    connection, child, position, one.message, turn_id=one.turn_id, created_at=one.created_at
                )
            connection.execute(
                "UPDATE sessions SET message_count = ?1, next_position = ?1, call_count = ?2 WHERE number = ?3",
                (len(copied), sum(len(one.message.tool_calls) for one in copied), child),
            )
        return self.get(draft.id)

    def lineage(self, session_id: str) -> builtins.list[Session]:
        """The sessions that this one came from, oldest first, and itself."""
        with self.database.read() as connection:
            return session_rows.lineage(connection, session_id)

    def family(self, session_id: str) -> frozenset[str]:
        """The ids of a session, of those that it came from and of those that came from it; empty if there is none."""
        with self.database.read() as connection:
            return session_rows.family(connection, session_id)

    def session_of_message(self, message_id: int) -> Session:
        """The session that a message belongs to."""
        with self.database.read() as connection:
            found = session_rows.select(
                connection, "WHERE number = (SELECT session FROM messages WHERE id = ?)", (message_id,)
            )
        if not found:
            raise SessionError(f"there is no message {message_id}; search for it again")
        return found[0]

    def first_words(self, session_id: str) -> str:
        """The beginning of what the user said first, for a session without a title."""
        with self.database.read() as connection:
            return session_rows.first_words(connection, session_id)

    def list(
        self,
        *,
        limit: int = 20,
        offset: int = 0,
        source: str | None = None,
        include_hidden: bool = False,
        cwd: str | None = None,
    ) -> builtins.list[Session]:
        """Sessions, the one that was used last first."""
        conditions: dict[str, tuple[Any, ...]] = {}
        if source is not None:
            conditions["source = ?"] = (source,)
        elif not include_hidden:
            conditions[session_rows.VISIBLE] = ()
        if cwd is not None:
            conditions["cwd = ?"] = (cwd,)
        where = "WHERE " + " AND ".join(conditions) if conditions else ""
        values = [value for given in conditions.values() for value in given]
        newest = session_rows.NEWEST_FIRST
        with self.database.read() as connection:
            # Sorted without the prompts, which are long.
            return session_rows.select(
                connection,
                f"WHERE number IN (SELECT number FROM sessions {where} {newest} LIMIT ? OFFSET ?) {newest}",
                (*values, limit, offset),
            )

    def delete(self, session_id: str) -> None:
        """Remove a session with all that belongs to it."""
        with self.database.write() as connection:
            number = rows.number_of(connection, session_id)
            for table in ("messages", "calls", "prompts", "side_usage"):
                connection.execute(f"DELETE FROM {table} WHERE session = ?", (number,))
            connection.execute("DELETE FROM sessions WHERE number = ?", (number,))

    def calls(self, session_id: str) -> builtins.list[RecordedCall]:
        """The calls with effects that were recorded in a session, in the order in which they began."""
        with self.database.read() as connection:
            number = rows.number_of(connection, session_id)
            found = connection.execute(
                f"SELECT {CALL_COLUMNS} FROM calls WHERE session = ? ORDER BY number", (number,)
            ).fetchall()
        return [call_of(row) for row in found]

    def stats(self) -> JsonObject:
        """How much there is: sessions, messages, calls, tokens, cost, by source, model and tool; size on disk."""
        with self.database.search() as connection:
            return read_statistics(connection, self.database.path)

    def recorder(self) -> SessionRecorder:
        """What a pipeline tells about its calls."""
        return self._recorder

    def close(self) -> None:
        """End the connections of this process. What was appended is safe without it."""
        self.database.close()
