"""After a crash: every tool call of a conversation gets exactly one result, and it says what is known."""

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
"""What the results say under `status` that stand in for those nobody knows."""


def repair(store: SessionStore, session_id: str) -> list[Message]:
    """Give every call of the live conversation one result, in its place, and return the messages that were added.

    A result that was recorded but not yet part of the conversation is put there. A call that was started and never
    finished gets the answer that its outcome is unknown, one without a record that it was never run. Results that
    belong to no call, or to one that has its result, are taken back. Calls that a living process works on are left
    to it.
    """
    with store.database.write() as connection:
        return repair_rows(connection, session_id, store.recorder().running_numbers(), store.clock())


def repair_rows(connection: sqlite3.Connection, session_id: str, running: frozenset[int], now: float) -> list[Message]:
    """The same inside a transaction that the caller holds; `running` are the recorded calls that run here."""
    number = number_of(connection, session_id)
    transcript = _Transcript.read(connection, session_id, number, running)
    transcript.repair()
    transcript.write(connection, number, now)
    return [one.message for one in transcript.added]


def working_process(store: SessionStore, session_id: str) -> int:
    """The process id of another living process that has calls of this session in its hands; 0 when there is none."""
    with store.database.read() as connection:
        number = number_of(connection, session_id)
        transcript = _Transcript.read(connection, session_id, number, frozenset())
    owners = [owner for batch in transcript.batches() for owner in transcript.owners(batch)]
    return next((pid_of(owner) for owner in owners if _lives_elsewhere(owner)), 0)


class _Row(Struct, frozen=True):
    """A message with the process that wrote it; `at` is its place among all messages of the session."""

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


class _Added(Struct, frozen=True):
    """A result that was missing."""

    message: Message
    turn_id: str


class _Record(Struct, frozen=True):
    """The record of a call that has no result in the conversation yet."""

    number: int
    call: RecordedCall
    runs_here: bool


class _Batch(Struct, frozen=True):
    """The calls of one message, and the results that stand right behind it."""

    asker: _Row
    behind: tuple[_Row, ...]

    @property
    def calls(self) -> dict[str, RequestedCall]:
        return {call.id: call for call in self.asker.message.tool_calls}

    @property
    def missing(self) -> list[str]:
        answered = {row.message.call_id for row in self.behind}
        return [id for id in self.calls if id not in answered]


class _Transcript(Struct):
    """A session on its way from what a crash left to what a model can be sent."""

    rows: list[_Row]
    records: list[_Record]
    results: dict[int, list[_Row | _Added]] = field(default_factory=dict)
    """By the place of the message that asks: its results, in the order of its calls."""
    claimed: set[int] = field(default_factory=set)
    """The places of the results that belong to a call."""

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
    def added(self) -> list[_Added]:
        return [one for results in self.results.values() for one in results if isinstance(one, _Added)]

    def batches(self) -> list[_Batch]:
        """The messages that ask for calls, with what stands behind each up to the next message of somebody else."""
        live = [row for row in self.rows if row.is_live]
        found = []
        for place, row in enumerate(live):
            if row.message.role == "assistant" and row.message.tool_calls:
                end = place + 1
                while end < len(live) and live[end].is_result:
                    end += 1
                found.append(_Batch(row, tuple(live[place + 1 : end])))
        return found

    def owners(self, batch: _Batch) -> list[str]:
        """The processes that may still be working on the calls of a batch."""
        if not batch.missing:
            return []
        started = [record.call for record in self._records(batch.missing) if record.call.finished_at is None]
        return [batch.asker.owner, *[call.owner for call in started]]

    def repair(self) -> None:
        """Decide which results stay, where they stand, and which are added."""
        batches = self.batches()
        nearest = [self._claim(batch.calls, batch.behind) for batch in batches]
        for batch, found in zip(batches, nearest, strict=True):
            if self._is_in_hands(batch):
                self.results[batch.asker.at] = list(batch.behind)
                self.claimed |= {row.at for row in batch.behind}
                continue
            astray = {id for id in batch.calls if id not in found}
            if astray:
                elsewhere = [row for row in self.rows[batch.asker.at :] if row.is_result]
                found |= self._claim(astray, elsewhere)
            self.results[batch.asker.at] = [
                found.get(id) or _Added(_result_for(call, self._records([id])), batch.asker.stored.turn_id)
                for id, call in batch.calls.items()
            ]

    def write(self, connection: sqlite3.Connection, session: int, now: float) -> None:
        """Bring the rows of the session to what was decided; nothing is deleted."""
        taken_back = [row.stored.id for row in self.rows if row.is_result and row.at not in self.claimed]
        set_state(connection, taken_back, "undone")
        order = list(self._order())
        if order != self.rows:
            for position, one in enumerate(order):
                if isinstance(one, _Row):
                    connection.execute("UPDATE messages SET position = ? WHERE id = ?", (position, one.stored.id))
                else:
                    insert_message(connection, session, position, one.message, turn_id=one.turn_id, created_at=now)
        if order != self.rows or taken_back:
            connection.execute(
                "UPDATE sessions SET next_position = max(next_position, ?), updated_at = ?, "
                "message_count = message_count + ? WHERE number = ?",
                (len(order), now, len(self.added) - len(taken_back), session),
            )
        ended = [(record.number,) for record in self.records if _has_ended(record)]
        connection.executemany("UPDATE calls SET status = 'unknown' WHERE number = ?", ended)

    def _records(self, call_ids: Collection[str]) -> list[_Record]:
        return [record for record in self.records if record.call.call_id in call_ids]

    def _is_in_hands(self, batch: _Batch) -> bool:
        """Whether somebody who lives works on it."""
        runs_here = any(record.runs_here for record in self._records(batch.missing))
        return runs_here or any(_lives_elsewhere(owner) for owner in self.owners(batch))

    def _claim(self, call_ids: Collection[str], among: Sequence[_Row]) -> dict[str, _Row]:
        """The first result of each call that nobody claimed before; a real one rather than what stands in for it."""
        claims: dict[str, _Row] = {}
        for row in sorted(among, key=lambda row: _stands_in(row.message)):
            id = row.message.call_id
            if id in call_ids and id not in claims and row.at not in self.claimed:
                claims[id] = row
                self.claimed.add(row.at)
        return claims

    def _order(self) -> Iterator[_Row | _Added]:
        """All messages, with the results behind the calls that they belong to."""
        for row in self.rows:
            if row.at not in self.claimed:
                yield row
            yield from self.results.get(row.at, ())


def _result_for(call: RequestedCall, records: Sequence[_Record]) -> Message:
    """What is known about a call that has no result."""
    name = _called_tool(call)
    # A tool may call others, whose records carry the id of the call that it serves.
    for record in reversed(records):
        if record.call.tool == name and record.call.result is not None:
            return msgspec.structs.replace(record.call.result, call_id=call.id)
    if records:
        content = _unknown(call, name, [record.call for record in records])
        return Message(role="tool", call_id=call.id, name=name, status="error", content=content)
    explanation = {
        "error": f"There is no record that {name} ran before the process ended. A tool that declares its effects did "
        "not begin: call it again if it is still needed. If it may have changed something all the same, look first.",
        "status": NEVER_RUN,
    }
    content = json.dumps(explanation, ensure_ascii=False)
    return Message(role="tool", call_id=call.id, name=name, status="cancelled", content=content)


def _unknown(call: RequestedCall, name: str, records: Sequence[RecordedCall]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(records[0].started_at))
    explanation: JsonObject = {
        "error": f"{UNKNOWN_WORDS}: {name} was started at {since}, and the process that ran it ended before a result "
        "was recorded. It may or may not have happened: look before you call it again.",
        "status": UNKNOWN,
        "tool": name,
        "arguments": call.arguments[:ARGUMENTS_SHOWN_CHARS],
        "started_at": since,
        "effects": [f"{effect.kind} {effect.target}".strip() for record in records for effect in record.effects][:20],
    }
    return json.dumps(explanation, ensure_ascii=False)


def is_outcome_unknown(message: Message) -> bool:
    """Whether this result says that nobody knows what became of the call."""
    return message.text.startswith(f'{{"error": "{UNKNOWN_WORDS}') and f'"status": "{UNKNOWN}"' in message.text


def _stands_in(message: Message) -> bool:
    """Whether this is no result, but the answer that there is none."""
    text = message.text
    return text.startswith('{"error": ') and any(f'"status": "{status}"' in text for status in (UNKNOWN, NEVER_RUN))


def _called_tool(call: RequestedCall) -> str:
    """The tool that a call is for, also where it goes through the tool that calls others by name."""
    if call.name != TOOL_CALL:
        return call.name
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return call.name
    named = arguments.get("name") if isinstance(arguments, dict) else None
    return named if isinstance(named, str) else call.name


def _lives_elsewhere(owner: str) -> bool:
    return bool(owner) and owner != own_owner() and is_alive(owner)


def _has_ended(record: _Record) -> bool:
    """Whether a call that was started will never be finished."""
    return record.call.finished_at is None and not record.runs_here and not _lives_elsewhere(record.call.owner)
