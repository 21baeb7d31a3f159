"""Brings the sessions of a Hermes Agent home over: each whole or not at all, and none that is here already."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.core.models import Usage
from toolcrib.sessions import rows, session_rows
from toolcrib.sessions.hermes_database import HermesDatabase, Row, opened
from toolcrib.sessions.hermes_messages import Said, UnreadableMessage, as_number, as_text, read_messages
from toolcrib.sessions.pairing import check_transcript
from toolcrib.sessions.records import Session, State
from toolcrib.sessions.recovery import repair_rows
from toolcrib.sessions.store import SessionStore

DATABASE_NAME = "state.db"
MOST_TOKENS = 2**53
_FINISH = "UPDATE sessions SET updated_at = ?, ended_at = ?, end_reason = ? WHERE number = ?"


@dataclass(frozen=True)
class SessionImport:
    """What there is to bring over. Finding it out changed nothing."""

    new: int = 0
    known: int = 0
    """Sessions whose ids exist here already."""
    unreadable: list[str] = field(default_factory=list)
    """A sentence for each session that cannot be brought."""


@dataclass(frozen=True)
class _Found:
    """A session of the old home: what was said in it, or why that cannot be read; neither for one that is known."""

    session: Session | None = None
    messages: tuple[Said, ...] = ()
    problem: str = ""


def plan_sessions(source: Path, store: SessionStore) -> SessionImport:
    """How many sessions of a Hermes Agent home would be brought into a store; only reads, both here and there."""
    new = known = 0
    unreadable = []
    for found in _find(source, _known_ids(store)):
        if found.problem:
            unreadable.append(found.problem)
        elif found.session is None:
            known += 1
        else:
            new += 1
    return SessionImport(new, known, unreadable)


def import_sessions(source: Path, store: SessionStore) -> list[str]:
    """Bring every session over that is not here yet; returns a sentence for each that could not be brought."""
    problems = []
    for found in _find(source, _known_ids(store)):
        if found.problem:
            problems.append(found.problem)
        elif found.session is not None:
            _write(store, found.session, found.messages)
    return problems


def _known_ids(store: SessionStore) -> frozenset[str]:
    if not store.database.exists:
        return frozenset()
    with store.database.read() as connection:
        return frozenset(id for (id,) in connection.execute("SELECT id FROM sessions"))


def _find(source: Path, known: Collection[str]) -> Iterator[_Found]:
    """The sessions of the old home one by one, the oldest first."""
    file = source / DATABASE_NAME
    if not file.exists():
        return
    try:
        with opened(file) as database:
            for place, id in database.ids():
                yield _Found() if id in known else _read(database, place, id)
    except (sqlite3.Error, OSError) as error:
        yield _Found(problem=f"the sessions in {str(file)!r} cannot be read ({error}); the file stays as it is")


def _read(database: HermesDatabase, place: int, id: str) -> _Found:
    try:
        row, message_rows = database.session(place)
        messages = tuple(read_messages(message_rows, as_number(row.get("started_at")) or 0.0))
    except (sqlite3.Error, OSError, UnreadableMessage) as error:
        return _Found(problem=f"session {id!r} cannot be brought over ({error}); it stays where it is")
    if not row:
        return _Found(problem=f"session {id!r} cannot be brought over, because it was deleted in the meantime")
    return _Found(session=_session(id, row, messages), messages=messages)


def _session(id: str, row: Row, messages: tuple[Said, ...]) -> Session:
    """What is known about a session; not its system prompt, which speaks of the tools of another program."""
    parent = as_text(row.get("parent_session_id"))
    started, ended = as_number(row.get("started_at")), as_number(row.get("ended_at"))
    if started is None:
        started = messages[0].created_at if messages else ended or 0.0
    latest = messages[-1].created_at if messages else started
    return Session(
        id=id,
        title=as_text(row.get("title")),
        source=as_text(row.get("source")) or "hermes",
        model=as_text(row.get("model")),
        cwd=as_text(row.get("cwd")),
        created_at=started,
        updated_at=latest if ended is None else ended,
        ended_at=ended,
        end_reason=as_text(row.get("end_reason")),
        parent_id=parent,
        parent_kind="branch" if parent else "",
        message_count=sum(one.state != "undone" for one in messages),
        call_count=sum(len(one.message.tool_calls) for one in messages if one.state != "undone"),
        usage=_usage(row),
    )


def _usage(row: Row) -> Usage:
    cached, written = _tokens(row, "cache_read_tokens"), _tokens(row, "cache_write_tokens")
    actual, estimated = as_number(row.get("actual_cost_usd")), as_number(row.get("estimated_cost_usd"))
    return Usage(
        # There the input is only what no cache had to do with.
        input_tokens=_tokens(row, "input_tokens") + cached + written,
        output_tokens=_tokens(row, "output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=_tokens(row, "reasoning_tokens"),
        cost_usd=actual or (actual if estimated is None else estimated),
    )


def _tokens(row: Row, column: str) -> int:
    return min(max(int(as_number(row.get(column)) or 0), 0), MOST_TOKENS)


def _write(store: SessionStore, session: Session, messages: tuple[Said, ...]) -> None:
    """Put one session into the store, all of it or nothing, unless somebody else was faster."""
    with store.database.write() as connection:
        if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).fetchone():
            return
        number = session_rows.insert_session(connection, session)
        _write_messages(connection, number, messages)
        connection.execute(
            "UPDATE sessions SET message_count = ?, next_position = ?, call_count = ? WHERE number = ?",
            (session.message_count, len(messages), session.call_count, number),
        )
        rows.add_usage(connection, session.id, session.usage)
        if check_transcript(one.message for one in messages if one.state == "live"):
            repair_rows(connection, session.id, frozenset(), session.updated_at)
        connection.execute(_FINISH, (session.updated_at, session.ended_at, session.end_reason, number))


def _write_messages(connection: sqlite3.Connection, number: int, messages: tuple[Said, ...]) -> None:
    others: dict[State, list[int]] = defaultdict(list)
    for position, one in enumerate(messages):
        id = rows.insert_message(connection, number, position, one.message, created_at=one.created_at)
        if one.state != "live":
            others[one.state].append(id)
    for state, ids in others.items():
        rows.set_state(connection, ids, state)
