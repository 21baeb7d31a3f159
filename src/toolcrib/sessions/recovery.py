"""Repairs a conversation after a crash: every tool call gets exactly one result, which says what is known."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence

import msgspec
from msgspec import Struct, field

from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.types import TOOL_CALL, JsonObject
from toolcrib.sessions.recorder import is_alive, own_owner, pid_of
from toolcrib.sessions.records import CALL_COLUMNS, MESSAGE_COLUMNS, RecordedCall, StoredMessage, call_of, message_of
from toolcrib.sessions.store import IN_ORDER, SessionStore, insert_message, number_of, set_state
from toolcrib.sessions.transcript import check_transcript

__all__ = ["check_transcript", "is_outcome_unknown", "repair", "repair_rows", "working_process"]

ARGUMENTS_SHOWN_CHARS = 500
UNKNOWN_WORDS = "Outcome unknown"
UNKNOWN, NEVER_RUN = "unknown", "never_run"
"""The `status` of the placeholder results."""


def repair(store: SessionStore, session_id: str) -> list[Message]:
    """Give every call of the live conversation one result, in its place, and return the added messages.

    A recorded result that the conversation lacks is added to it. A call that started and never finished gets a result
    saying that its outcome is unknown; a call without a record gets one saying that it never ran. Results without a
    call, and duplicate results, are undone. Calls that a living process is working on are left alone.
    """
    with store.database.write() as connection:
        return repair_rows(connection, session_id, store.recorder().running_numbers(), store.clock())


def repair_rows(connection: sqlite3.Connection, session_id: str, running: frozenset[int], now: float) -> list[Message]:
    """The same inside the caller's transaction; `running` are the recorded calls that run in this process."""
    number = number_of(connection, session_id)
    transcript = _Transcript.read(connection, session_id, number, running)
    transcript.repair()
    transcript.write(connection, number, now)
    return [one.message for one in transcript.added]


def working_process(store: SessionStore, session_id: str) -> int:
    """The process id of another living process that is working on calls of this session; 0 if there is none."""
    with store.database.read() as connection:
        number = number_of(connection, session_id)
        transcript = _Transcript.read(connection, session_id, number, frozenset())
    owners = [owner for batch in transcript.batches() for owner in transcript.owners(batch)]
    return next((pid_of(owner) for owner in owners if _is_alive_elsewhere(owner)), 0)


class _Row(Struct, frozen=True):
    """A message and the process that wrote it; `at` is its index among all messages of the session."""

    at: int
    stored: StoredMessage
    owner: str

    @property
    def message(self) -> Message:
        return self.stored.message

    @property
    def is_live(self) -> bool:
        return self.stored.state == "live"

    @property
    def is_result(self) -> bool:
        return self.is_live and self.message.role == "tool"


class _AddedResult(Struct, frozen=True):
    """A result that was missing."""

    message: Message
    turn_id: str


class _Record(Struct, frozen=True):
    """The record of a call whose result the conversation lacks."""

    number: int
    call: RecordedCall
    runs_here: bool


class _Batch(Struct, frozen=True):
    """The calls of one message, and the results directly after it."""

    requester: _Row
    following: tuple[_Row, ...]

    @property
    def calls(self) -> dict[str, RequestedCall]:
        return {call.id: call for call in self.requester.message.tool_calls}

    @property
    def missing(self) -> list[str]:
        answered = {row.message.call_id for row in self.following}
        return [id for id in self.calls if id not in answered]


class _Transcript(Struct):
    """A session under repair, from what a crash left to what a model accepts."""

    rows: list[_Row]
    records: list[_Record]
    results: dict[int, list[_Row | _AddedResult]] = field(default_factory=dict)
    """By the index of the requesting message: its results, in the order of its calls."""
    claimed: set[int] = field(default_factory=set)
    """The indexes of the results that belong to a call."""

    @classmethod
    def read(
        cls, connection: sqlite3.Connection, session_id: str, session: int, running: frozenset[int]
    ) -> _Transcript:
        found = connection.execute(
            f"SELECT {MESSAGE_COLUMNS}, owner FROM messages WHERE session = ? {IN_ORDER}", (session,)
        )
        placed = [_Row(at, message_of(row[:-1], session_id), row[-1]) for at, row in enumerate(found)]
        recorded = connection.execute(
            f"SELECT number, {CALL_COLUMNS} FROM calls "
            "WHERE session = ? AND (status = 'started' OR result IS NOT NULL) ORDER BY number",
            (session,),
        )
        return cls(placed, [_Record(row[0], call_of(row[1:]), row[0] in running) for row in recorded])

    @property
    def added(self) -> list[_AddedResult]:
        return [one for results in self.results.values() for one in results if isinstance(one, _AddedResult)]

    def batches(self) -> list[_Batch]:
        """The messages with calls, each with the results directly after it."""
        live = [row for row in self.rows if row.is_live]
        found = []
        for index, row in enumerate(live):
            if row.message.role == "assistant" and row.message.tool_calls:
                end = index + 1
                while end < len(live) and live[end].is_result:
                    end += 1
                found.append(_Batch(row, tuple(live[index + 1 : end])))
        return found

    def owners(self, batch: _Batch) -> list[str]:
        """The processes that may still be working on the calls of a batch."""
        if not batch.missing:
            return []
        started = [record.call for record in self._records(batch.missing) if record.call.finished_at is None]
        return [batch.requester.owner, *[call.owner for call in started]]

    def repair(self) -> None:
        """Decide which results stay, where they go, and which to add."""
        batches = self.batches()
        nearest = [self._claim(batch.calls, batch.following) for batch in batches]
        for batch, found in zip(batches, nearest, strict=True):
            if self._is_in_progress(batch):
                self.results[batch.requester.at] = list(batch.following)
                self.claimed |= {row.at for row in batch.following}
                continue
            astray = {id for id in batch.calls if id not in found}
            if astray:
                elsewhere = [row for row in self.rows[batch.requester.at :] if row.is_result]
                found |= self._claim(astray, elsewhere)
            self.results[batch.requester.at] = [
                found.get(id) or _AddedResult(_result_for(call, self._records([id])), batch.requester.stored.turn_id)
                for id, call in batch.calls.items()
            ]

    def write(self, connection: sqlite3.Connection, session: int, now: float) -> None:
        """Update the rows of the session accordingly; deletes nothing."""
        undone = [row.stored.id for row in self.rows if row.is_result and row.at not in self.claimed]
        set_state(connection, undone, "undone")
        order = list(self._order())
        if order != self.rows:
            for position, one in enumerate(order):
                if isinstance(one, _Row):
                    connection.execute("UPDATE messages SET position = ? WHERE id = ?", (position, one.stored.id))
                else:
                    insert_message(connection, session, position, one.message, turn_id=one.turn_id, created_at=now)
        if order != self.rows or undone:
            connection.execute(
                "UPDATE sessions SET next_position = max(next_position, ?), updated_at = ?, "
                "message_count = message_count + ? WHERE number = ?",
                (len(order), now, len(self.added) - len(undone), session),
            )
        ended = [(record.number,) for record in self.records if _has_ended(record)]
        connection.executemany("UPDATE calls SET status = 'unknown' WHERE number = ?", ended)

    def _records(self, call_ids: Collection[str]) -> list[_Record]:
        return [record for record in self.records if record.call.call_id in call_ids]

    def _is_in_progress(self, batch: _Batch) -> bool:
        """Whether a living process is working on it."""
        runs_here = any(record.runs_here for record in self._records(batch.missing))
        return runs_here or any(_is_alive_elsewhere(owner) for owner in self.owners(batch))

    def _claim(self, call_ids: Collection[str], among: Sequence[_Row]) -> dict[str, _Row]:
        """The first unclaimed result of each call; prefers a real result to a placeholder."""
        claims: dict[str, _Row] = {}
        for row in sorted(among, key=lambda row: _is_placeholder(row.message)):
            id = row.message.call_id
            if id in call_ids and id not in claims and row.at not in self.claimed:
                claims[id] = row
                self.claimed.add(row.at)
        return claims

    def _order(self) -> Iterator[_Row | _AddedResult]:
        """All messages, with results after the calls they belong to."""
        for row in self.rows:
            if row.at not in self.claimed:
                yield row
            yield from self.results.get(row.at, ())


def _result_for(call: RequestedCall, records: Sequence[_Record]) -> Message:
    """What is known about a call without a result."""
    name = _called_tool(call)
    # A tool may call others, whose records carry the id of the outer call.
    for record in reversed(records):
        if record.call.tool == name and record.call.result is not None:
            return msgspec.structs.replace(record.call.result, call_id=call.id)
    if records:
        content = _unknown(call, name, [record.call for record in records])
        return Message(role="tool", call_id=call.id, name=name, status="error", content=content)
    explanation = {
        "error": f"There is no record that {name} ran before the process ended. A tool that declares its effects did "
        "not start: call it again if it is still needed. If it may have changed something anyway, check first.",
        "status": NEVER_RUN,
    }
    content = json.dumps(explanation, ensure_ascii=False)
    return Message(role="tool", call_id=call.id, name=name, status="cancelled", content=content)


def _unknown(call: RequestedCall, name: str, records: Sequence[RecordedCall]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(records[0].started_at))
    explanation: JsonObject = {
        "error": f"{UNKNOWN_WORDS}: {name} started at {since}, and its process ended before a result was recorded. "
        "It may or may not have happened: check before you call it again.",
        "status": UNKNOWN,
        "tool": name,
        "arguments": call.arguments[:ARGUMENTS_SHOWN_CHARS],
        "started_at": since,
        "effects": [f"{effect.kind} {effect.target}".strip() for record in records for effect in record.effects][:20],
    }
    return json.dumps(explanation, ensure_ascii=False)


def is_outcome_unknown(message: Message) -> bool:
    """Whether this result says that the call's outcome is unknown."""
    return message.text.startswith(f'{{"error": "{UNKNOWN_WORDS}') and f'"status": "{UNKNOWN}"' in message.text


def _is_placeholder(message: Message) -> bool:
    """Whether this is a placeholder instead of a real result."""
    text = message.text
    return text.startswith('{"error": ') and any(f'"status": "{status}"' in text for status in (UNKNOWN, NEVER_RUN))


def _called_tool(call: RequestedCall) -> str:
    """The tool that a call is for, even if it goes through the tool that calls others by name."""
    if call.name != TOOL_CALL:
        return call.name
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return call.name
    named = arguments.get("name") if isinstance(arguments, dict) else None
    return named if isinstance(named, str) else call.name


def _is_alive_elsewhere(owner: str) -> bool:
    return bool(owner) and owner != own_owner() and is_alive(owner)


def _has_ended(record: _Record) -> bool:
    """Whether a call that started will never finish."""
    return record.call.finished_at is None and not record.runs_here and not _is_alive_elsewhere(record.call.owner)
