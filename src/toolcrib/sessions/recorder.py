"""Records the calls of sessions: "started" before an effect, "finished" with the result after it."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable

from toolcrib.core.context import ToolContext
from toolcrib.core.messages import tool_message
from toolcrib.core.types import Effect, JsonObject, ToolEntry, ToolResult
from toolcrib.process_identity import Identity, identity_of
from toolcrib.process_identity import is_alive as process_is_alive
from toolcrib.sessions.database import Database
from toolcrib.sessions.records import encoded_effects, encoded_result


def own_owner() -> str:
    """This process's name in the records."""
    return _named(os.getpid())


def is_alive(owner: str) -> bool:
    """Whether the process with this name still runs; a new process with the same pid does not count."""
    pid, _, started = owner.partition(":")
    return pid.isdigit() and process_is_alive(Identity(int(pid), started))


def pid_of(owner: str) -> int:
    """The process id in an owner's name; 0 if there is none."""
    pid = owner.partition(":")[0]
    return int(pid) if pid.isdigit() else 0


@functools.lru_cache(maxsize=1)  # Checked for every answer with calls; a different pid means that we were forked.
def _named(pid: int) -> str:
    identity = identity_of(pid) or Identity(pid)
    return f"{pid}:{identity.started}" if identity.started else str(pid)


_START = """INSERT INTO calls (session, call_id, tool, arguments, effects, owner, started_at)
    SELECT number, ?, ?, ?, ?, ?, ? FROM sessions WHERE id = ?"""
_START_AGAIN = "UPDATE calls SET arguments = ?, effects = ? WHERE number = ?"
_FINISH = "UPDATE calls SET finished_at = ?, status = ?, result = ? WHERE number = ?"


class SessionRecorder:
    """Records the calls of sessions in one database; ignores a call that belongs to no session."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        # Keyed by the identity of the context, which stays the same for one call; calls that a tool makes have their
        # own context but the same call id. Hold the context so that its identity is not reused.
        self._running: dict[int, tuple[ToolContext, int]] = {}
        # Of a session deleted since then the insert finds nothing, which is slower but right.
        self._known: set[str] = set()

    def started(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...], ctx: ToolContext, /
    ) -> None:
        """Record the start; returns once it would survive a power cut, raises SessionError if it cannot be written."""
        if not self._belongs(ctx.session_id):
            return
        given, touched = json.dumps(arguments, default=repr), encoded_effects(effects)
        running = self._running.get(id(ctx))
        with self._database.write(durable=True) as connection:
            if running is not None:
                # Something between us and the handler changed the arguments since the first call.
                connection.execute(_START_AGAIN, (given, touched, running[1]))
                return
            values = (ctx.call_id, entry.name, given, touched, own_owner(), self._clock(), ctx.session_id)
            cursor = connection.execute(_START, values)
            number = cursor.lastrowid if cursor.rowcount else None
        if number is not None:
            with self._lock:
                self._running[id(ctx)] = (ctx, number)

    def finished(self, entry: ToolEntry, result: ToolResult, ctx: ToolContext, /) -> None:
        """Store the result, so that it isn't lost before the conversation contains it."""
        with self._lock:
            running = self._running.pop(id(ctx), None)
        if running is None:
            return
        kept = encoded_result(tool_message(result))
        with self._database.write() as connection:
            connection.execute(_FINISH, (self._clock(), result.status, kept, running[1]))

    def running_numbers(self) -> frozenset[int]:
        """The records of the calls that are running in this store."""
        with self._lock:
            return frozenset(number for _, number in self._running.values())

    def _belongs(self, session_id: str) -> bool:
        if session_id in self._known:
            return True
        if not session_id or not self._database.exists:
            return False
        with self._database.read() as connection:
            found = connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None
        if found:
            self._known.add(session_id)
        return found
