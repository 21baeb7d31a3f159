"""Imports the sessions of a Hermes Agent home, old or new, and leaves nothing behind in it."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.core.messages import Message, Part, RequestedCall, Role, Text, parts_of
from toolcrib.core.models import Usage
from toolcrib.sessions.database import BUSY_SECONDS
from toolcrib.sessions.records import Session, State
from toolcrib.sessions.recovery import repair_rows
from toolcrib.sessions.store import SessionStore, add_usage, insert_message, insert_session, set_state
from toolcrib.sessions.transcript import check_transcript

SESSION_COLUMNS = (
    "id", "source", "model", "parent_session_id", "started_at", "ended_at", "end_reason", "title", "cwd",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens",
    "estimated_cost_usd", "actual_cost_usd",
)  # fmt: skip
MESSAGE_COLUMNS = (
    "id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "timestamp", "reasoning",
    "reasoning_content", "active", "compacted",
)  # fmt: skip
WAL_FORMAT = 2
"""The value of byte 18 of a file in write-ahead mode."""

Row = dict[str, Any]


class HermesDatabase(Struct, frozen=True):
    """One database of sessions. Each read opens it briefly, so as never to get in the way of Hermes."""

    address: str | None
    """The address of a private copy; None reads the file itself."""
    file: Path

    def ids(self) -> list[tuple[int, str]]:
        """The sessions, oldest first: row and id of each."""
        with self._connection() as connection:
            columns = _columns(connection, "sessions")
            if "id" not in columns:
                return []
            order = "ORDER BY started_at, rowid" if "started_at" in columns else "ORDER BY rowid"
            found = connection.execute(f"SELECT rowid, id FROM sessions WHERE typeof(id) = 'text' AND id <> '' {order}")
            return found.fetchall()

    def session(self, row_id: int) -> tuple[Row, list[Row]]:
        """A session and its messages in stored order; columns that an old file lacks are absent."""
        with self._connection() as connection:
            (session,) = _rows(connection, "sessions", SESSION_COLUMNS, "rowid = ?", row_id) or ({},)
            if not session or "session_id" not in _columns(connection, "messages"):
                return session, []
            of_session = "session_id = (SELECT id FROM sessions WHERE rowid = ?)"
            return session, _rows(connection, "messages", MESSAGE_COLUMNS, of_session, row_id)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        address = self.address or _address(self.file)
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.text_factory = _text
            # One transaction, so that what we read of a session is consistent even while Hermes writes it.
            connection.execute("BEGIN")
            yield connection


@contextmanager
def open_database(file: Path) -> Iterator[HermesDatabase]:
    """Open the database in a file. Raises sqlite3.Error or OSError, now or later, if it cannot be read."""
    file = file.resolve()
    log = _beside(file, "-wal")
    if not (_uses_wal(file) and _has_content(log) and not _beside(file, "-shm").exists()):
        yield HermesDatabase(None, file)
        return
    # No process has it open, but the latest messages are only in the log. SQLite reads the log only with an index
    # beside it, which it would create there; so read a copy.
    with tempfile.TemporaryDirectory(prefix="toolcrib-import-") as folder:
        copy = Path(folder) / file.name
        shutil.copyfile(file, copy)
        shutil.copyfile(log, _beside(copy, "-wal"))
        yield HermesDatabase(f"file:{quote(str(copy))}?mode=rw", file)


def _address(file: Path) -> str:
    """How to open the file itself without creating anything beside it."""
    in_use = _beside(file, "-wal").exists() and _beside(file, "-shm").exists()
    mode = "immutable=1" if _uses_wal(file) and not in_use else "mode=ro"
    return f"file:{quote(str(file))}?{mode}"


def _beside(file: Path, ending: str) -> Path:
    return file.with_name(file.name + ending)


def _uses_wal(file: Path) -> bool:
    with file.open("rb") as reading:
        return reading.read(19)[18:] == bytes([WAL_FORMAT])


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _rows(connection: sqlite3.Connection, table: str, wanted: Sequence[str], condition: str, row_id: int) -> list[Row]:
    present = _columns(connection, table)
    names = [name for name in wanted if name in present]
    found = connection.execute(f"SELECT {', '.join(names)} FROM {table} WHERE {condition} ORDER BY rowid", (row_id,))
    return [dict(zip(names, row, strict=True)) for row in found]


STRUCTURED = "\x00json:"
"""The prefix of structured content; the rest is JSON."""
PART_TYPES = frozenset({"text", "input_text", "output_text", "image", "image_url", "input_image"})
AGENT_BEGAN = "(The agent spoke first.)"
ROLES: tuple[Role, ...] = get_args(Role)


class UnreadableMessage(ValueError):
    """A message that cannot be read; the text says which and why."""


class ImportedMessage(Struct, frozen=True):
    """One message, its time, and whether it is still part of the conversation."""

    message: Message
    created_at: float
    state: State


def read_messages(rows: Iterable[Row], started_at: float) -> list[ImportedMessage]:
    """The messages of one session. Rows that are not messages are left out; raises UnreadableMessage."""
    return _alternating(_read_message(rows, started_at))


def as_number(value: Any) -> float | None:
    """A finite number or None; a database may contain anything in any column."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _read_message(rows: Iterable[Row], started_at: float) -> Iterator[ImportedMessage]:
    # Compacting copies the last messages, so an id may occur once in each state.
    calls: dict[State, _Calls] = {"live": _Calls(), "folded": _Calls(), "undone": _Calls()}
    now = started_at
    for row in rows:
        role = next((role for role in ROLES if role == row.get("role")), None)
        if role is None:
            continue
        time = as_number(row.get("timestamp"))
        now = now if time is None else time
        state = _state(row)
        yield ImportedMessage(_message(row, role, calls[state]), now, state)


def _state(row: Row) -> State:
    active = row.get("active")
    if active is None or active:
        return "live"
    return "folded" if row.get("compacted") else "undone"


def _message(row: Row, role: Role, calls: _Calls) -> Message:
    content = _content(row.get("content"))
    if role == "tool":
        call = calls.answer(as_text(row.get("tool_call_id")), as_text(row.get("tool_name")))
        return Message(role=role, content=content, call_id=call.id, name=call.name)
    if role == "assistant":
        reasoning = as_text(row.get("reasoning") or row.get("reasoning_content"))
        return Message(role=role, content=content, tool_calls=calls.ask(row), reasoning=reasoning)
    return Message(role=role, content=content)


def _content(value: Any) -> str | tuple[Part, ...]:
    text = as_text(value)
    if text.startswith(STRUCTURED):
        text = text.removeprefix(STRUCTURED)
        structured = _json(text)
        if isinstance(structured, dict):
            structured = structured.get("content")
        return structured if isinstance(structured, str) else tuple(parts_of(structured)) or text
    if text.startswith("["):
        blocks = _json(text)
        if isinstance(blocks, list) and blocks and all(_is_part(block) for block in blocks):
            return tuple(parts_of(blocks))
    return text


def _is_part(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in PART_TYPES


def _json(text: str) -> Any:
    """The parsed JSON; None if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _Calls(Struct):
    """The calls so far: each gets a unique id, and each result the id of its call."""

    given: set[str] = field(default_factory=set)
    waiting: list[tuple[frozenset[str], RequestedCall]] = field(default_factory=list)
    """The calls of the last message that has any, with the ids that their results may use."""

    def ask(self, row: Row) -> tuple[RequestedCall, ...]:
        written = row.get("tool_calls")
        found = _json(as_text(written)) if written else []
        if not isinstance(found, list):
            raise UnreadableMessage(f"the tool calls of message {row.get('id')} are not a JSON list")
        if not found:
            return ()
        self.waiting = [self._requested(call, row) for call in found]
        return tuple(call for _, call in self.waiting)

    def answer(self, id: str, tool: str) -> RequestedCall:
        """The call that a result belongs to. An old result without an id belongs to the next call of its tool."""
        for index, (names, call) in enumerate(self.waiting):
            if id in names if id else tool in ("", call.name):
                del self.waiting[index]
                return msgspec.structs.replace(call, name=tool or call.name)
        return RequestedCall(id=id, name=tool, arguments="")

    def _requested(self, call: Any, row: Row) -> tuple[frozenset[str], RequestedCall]:
        function = call.get("function", call) if isinstance(call, dict) else {}
        name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else ("", "")
        if not isinstance(name, str) or not name:
            raise UnreadableMessage(f"a tool call of message {row.get('id')} names no tool")
        if not isinstance(arguments, str):
            arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
        names = [as_text(call.get(key)) for key in ("id", "call_id") if call.get(key)]
        id = self._own_id(names[0] if names else "call")
        return frozenset(names), RequestedCall(id=id, name=name, arguments=arguments)

    def _own_id(self, wanted: str) -> str:
        id, number = wanted, 1
        while id in self.given:
            number += 1
            id = f"{wanted}-{number}"
        self.given.add(id)
        return id


def _alternating(messages: Iterable[ImportedMessage]) -> list[ImportedMessage]:
    """The messages, with no answer first or after another answer; results don't count, because repair moves them."""
    turns: list[ImportedMessage] = []
    last: int | None = None
    for one in messages:
        if one.state == "live" and one.message.role in ("user", "assistant"):
            if one.message.role == "assistant" and last is None:
                turns.append(ImportedMessage(Message(role="user", content=AGENT_BEGAN), one.created_at, "live"))
            elif one.message.role == "assistant" and last is not None and _is_answer(turns[last].message):
                one = replace(one, message=_joined(turns.pop(last).message, one.message))
            last = len(turns)
        turns.append(one)
    return turns


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def _joined(first: Message, second: Message) -> Message:
    """Two consecutive answers as one."""
    if isinstance(first.content, str) and isinstance(second.content, str):
        content: str | tuple[Part, ...] = _paragraphs(first.content, second.content)
    else:
        content = (*_parts(first), *_parts(second))
    reasoning = _paragraphs(first.reasoning, second.reasoning)
    return msgspec.structs.replace(second, content=content, reasoning=reasoning)


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _parts(message: Message) -> tuple[Part, ...]:
    if isinstance(message.content, str):
        return (Text(message.content),) if message.content else ()
    return message.content


DATABASE_NAME = "state.db"
MOST_TOKENS = 2**53
_FINISH = "UPDATE sessions SET updated_at = ?, ended_at = ?, end_reason = ? WHERE number = ?"


class SessionImport(Struct, frozen=True):
    """What can be imported. Finding it out changes nothing."""

    new: int = 0
    known: int = 0
    """Sessions whose ids already exist here."""
    unreadable: list[str] = field(default_factory=list)
    """A sentence for each session that cannot be imported."""


class _SourceSession(Struct, frozen=True):
    """A session of the old home: its content, or why it cannot be read; neither if it already exists here."""

    session: Session | None = None
    messages: tuple[ImportedMessage, ...] = ()
    problem: str = ""


def plan_sessions(source: Path, store: SessionStore) -> SessionImport:
    """Count the sessions of a Hermes Agent home that would be imported into a store; only reads."""
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
    """Import every session that is not here yet; returns a sentence for each that failed."""
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


def _find(source: Path, known: Collection[str]) -> Iterator[_SourceSession]:
    """The sessions of the old home one by one, oldest first."""
    file = source / DATABASE_NAME
    if not os.path.lexists(file):
        return
    if not file.is_file():
        # Opening a pipe, for example, would never end.
        yield _SourceSession(problem=f"cannot read the sessions in {str(file)!r}: it is not a file")
        return
    try:
        with open_database(file) as database:
            for row_id, id in database.ids():
                yield _SourceSession() if id in known else _read(database, row_id, id)
    except (sqlite3.Error, OSError) as error:
        yield _SourceSession(problem=f"cannot read the sessions in {str(file)!r} ({error}); the file stays unchanged")


def _read(database: HermesDatabase, row_id: int, id: str) -> _SourceSession:
    try:
        row, message_rows = database.session(row_id)
        messages = tuple(read_messages(message_rows, as_number(row.get("started_at")) or 0.0))
    except (sqlite3.Error, OSError, UnreadableMessage) as error:
        return _SourceSession(problem=f"cannot import session {id!r} ({error}); it stays where it is")
    if not row:
        return _SourceSession(problem=f"cannot import session {id!r}: it has been deleted since")
    return _SourceSession(session=_session(id, row, messages), messages=messages)


def _session(id: str, row: Row, messages: tuple[ImportedMessage, ...]) -> Session:
    """The facts about a session; not its system prompt, which describes another program's tools."""
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
        # Hermes counts only uncached tokens as input.
        input_tokens=_tokens(row, "input_tokens") + cached + written,
        output_tokens=_tokens(row, "output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=_tokens(row, "reasoning_tokens"),
        cost_usd=actual or (actual if estimated is None else estimated),
    )


def _tokens(row: Row, column: str) -> int:
    return min(max(int(as_number(row.get(column)) or 0), 0), MOST_TOKENS)


def _write(store: SessionStore, session: Session, messages: tuple[ImportedMessage, ...]) -> None:
    """Store one session, all of it or none, unless another process has stored it first."""
    with store.database.write() as connection:
        if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).fetchone():
            return
        number = insert_session(connection, session)
        _write_messages(connection, number, messages)
        connection.execute(
            "UPDATE sessions SET message_count = ?, next_position = ?, call_count = ? WHERE number = ?",
            (session.message_count, len(messages), session.call_count, number),
        )
        add_usage(connection, session.id, session.usage)
        if check_transcript(one.message for one in messages if one.state == "live"):
            repair_rows(connection, session.id, frozenset(), session.updated_at)
        connection.execute(_FINISH, (session.updated_at, session.ended_at, session.end_reason, number))


def _write_messages(connection: sqlite3.Connection, number: int, messages: tuple[ImportedMessage, ...]) -> None:
    others: dict[State, list[int]] = defaultdict(list)
    for position, one in enumerate(messages):
        id = insert_message(connection, number, position, one.message, created_at=one.created_at)
        if one.state != "live":
            others[one.state].append(id)
    for state, ids in others.items():
        set_state(connection, ids, state)
