"""Background processes for the `process` tool, front ends and other threads, with JSON answers.

Everything here may be called on any event loop; the work happens on the loop of the registry.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from toolcrib.config.redact import redact
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import TypingTarget
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.core.types import JsonObject
from toolcrib.process_identity import readers_below
from toolcrib.processes.events import ProcessEvent
from toolcrib.processes.output import readable
from toolcrib.processes.process import InputRefused, TrackedProcess, UnknownProcess
from toolcrib.processes.registry import ProcessRegistry

T = TypeVar("T")

DEFAULT_SESSION = "default"
DEFAULT_READER = "process_tool"
DEFAULT_LOG_LINES = 200
PREVIEW_CHARS = 200
SHOWN_CHARS = 50_000
"""How much output one answer contains; `log` reads the rest."""
ANSWER_SECONDS = 0.5
"""How long before a call's deadline a wait returns, so that its answer still arrives."""
SOURCE = "process_tool"

Action = Callable[[JsonObject, str | None, float | None], Awaitable[JsonObject]]


def session_key_of(ctx: ToolContext) -> str:
    """The session that owns the processes of this call."""
    return ctx.session_id or ctx.task_id or DEFAULT_SESSION


class ProcessService:
    """The background processes of a Runtime, for callers on any loop. `session_key=None` means all sessions."""

    def __init__(
        self, registry: ProcessRegistry, loop: asyncio.AbstractEventLoop, *, mask: Callable[[str], str] = redact
    ) -> None:
        self.registry = registry
        self._loop = loop
        self._mask = mask
        self._actions: dict[str, Action] = {
            "poll": self._poll,
            "log": self._log,
            "wait": self._wait,
            "kill": self._kill,
            "write": self._write,
            "submit": self._submit,
            "close": self._close,
        }

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """The answer of the `process` tool."""
        answer = await self.act(args, session_key_of(ctx), deadline=ctx.deadline)
        return json.dumps(answer, ensure_ascii=False)

    def typing_target(self, args: JsonObject, ctx: ToolContext) -> TypingTarget | None:
        """The process that a call types into, and the programs that may read the text now."""
        try:
            tracked = self.registry.get(str(args.get("session_id")), session_key_of(ctx))
        except UnknownProcess:
            return None
        record = tracked.record
        readers = readers_below(record.identity.pid, on_terminal=record.has_terminal) if record.identity else ()
        return TypingTarget(
            command=record.command,
            readers=readers,
            typed=tracked.typed,
            forgot_typed=tracked.forgot_typed,
            has_terminal=record.has_terminal,
            cwd=record.cwd,
        )

    async def act(self, args: JsonObject, session_key: str | None, *, deadline: float | None = None) -> JsonObject:
        """Perform one action of the `process` tool; a failure is an answer with the key `error`."""
        return await self._on_loop(self._act(args, session_key, deadline))

    async def unread_events(self, session_key: str, reader: str) -> list[ProcessEvent]:
        """The events of the session's processes that this reader has not acknowledged."""
        if not self.registry.notifier.store.has_any(session_key):
            # Asked before every request to a model, and most sessions have no background process.
            return []
        return await self.next_events(session_key, reader, 0)

    async def next_events(
        self, session_key: str, reader: str, timeout_seconds: float | None = None
    ) -> list[ProcessEvent]:
        """Like `unread_events`, but waits until there is an event, or for the timeout."""
        events = await self._on_loop(self.registry.notifier.next_unread(session_key, reader, timeout_seconds))
        return [self._masked(event) for event in events]

    async def acknowledge(self, session_key: str, reader: str, events: list[ProcessEvent]) -> None:
        """Never deliver these events to this reader again."""
        if events:
            newest = max(event.number for event in events)
            await self._on_loop(self._acknowledge(session_key, reader, newest))

    async def _acknowledge(self, session_key: str, reader: str, number: int) -> None:
        self.registry.notifier.acknowledge(session_key, reader, number)

    async def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await coroutine
        # Cancelling the caller also cancels it there.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def _act(self, args: JsonObject, session_key: str | None, deadline: float | None) -> JsonObject:
        action = args.get("action")
        if action == "list":
            return {"processes": [self._listed(one) for one in self.registry.list(session_key)]}
        run = self._actions.get(str(action))
        if run is None:
            return {"error": f"unknown action {action!r}; use one of list, {', '.join(self._actions)}"}
        if not args.get("session_id"):
            return {"error": f'{action!r} needs session_id; process(action="list") shows the ids'}
        try:
            return await run(args, session_key, deadline)
        except UnknownProcess as error:
            return {"status": "not_found", "error": str(error)}
        except (InputRefused, EnvironmentFailed, OSError) as error:
            return {"session_id": args["session_id"], "error": str(error)}

    async def _poll(self, args: JsonObject, session_key: str | None, _: float | None) -> JsonObject:
        tracked = self._find(args, session_key)
        waits = await tracked.waits_for_input()
        text = tracked.new_output(str(args.get("reader") or DEFAULT_READER))
        return {**self._state(tracked), **self._shown(text), **_input_hint(waits)}

    async def _log(self, args: JsonObject, session_key: str | None, _: float | None) -> JsonObject:
        tracked = self._find(args, session_key)
        limit = max(1, int(args.get("limit") or DEFAULT_LOG_LINES))
        offset = args.get("offset")
        found = tracked.output.last_lines(limit) if offset is None else tracked.output.lines(max(0, int(offset)), limit)
        self._consume(tracked)
        last = found.first + len(found.lines)
        return {
            **self._state(tracked),
            "output": self._readable("\n".join(found.lines)),
            "total_lines": found.total,
            "offset": found.first,
            "showing": f"lines {found.first} to {last - 1} of {found.total}" if found.lines else "no lines",
            **({"note": found.note} if found.note else {}),
        }

    async def _wait(self, args: JsonObject, session_key: str | None, deadline: float | None) -> JsonObject:
        tracked = self._find(args, session_key)
        longest = self.registry.limits.max_wait_seconds
        asked = args.get("timeout")
        seconds = longest if asked is None else max(0.0, min(float(asked), longest))
        if deadline is not None:
            seconds = max(0.0, min(seconds, deadline - time.monotonic() - ANSWER_SECONDS))
        ended = await self.registry.wait(tracked, seconds)
        waits = False if ended else await tracked.waits_for_input()
        text = tracked.new_output(str(args.get("reader") or DEFAULT_READER))
        answer = {**self._state(tracked), **self._shown(text), **_input_hint(waits)}
        if ended:
            self._consume(tracked)
            return answer
        note = f"waited {seconds:g} seconds; it is still running"
        if asked is not None and float(asked) > seconds:
            note += f" (a single wait lasts at most {seconds:g} seconds; wait again)"
        return {**answer, "status": "timeout", "timeout_note": note}

    async def _kill(self, args: JsonObject, session_key: str | None, _: float | None) -> JsonObject:
        tracked = self._find(args, session_key)
        children_ran = tracked.record.children_run
        was_running = await self.registry.kill(tracked, source=SOURCE)
        self._consume(tracked)
        answer = self._state(tracked)
        if not was_running:
            children = {"children_ended": True} if children_ran else {}
            return {**answer, "status": "already_exited", **children}
        return answer

    async def _write(self, args: JsonObject, session_key: str | None, _: float | None, end: str = "") -> JsonObject:
        tracked = self._find(args, session_key)
        data = f"{args.get('data') or ''}{end}".encode("utf-8", "replace")
        await tracked.write(data, self.registry.limits)
        return {"status": "ok", "session_id": tracked.record.id, "bytes_written": len(data)}

    async def _submit(self, args: JsonObject, session_key: str | None, deadline: float | None) -> JsonObject:
        # The Enter key of a terminal sends a carriage return, and programs that read keys expect it.
        end = "\r" if self._find(args, session_key).record.has_terminal else "\n"
        return await self._write(args, session_key, deadline, end)

    async def _close(self, args: JsonObject, session_key: str | None, _: float | None) -> JsonObject:
        tracked = self._find(args, session_key)
        await tracked.close_input()
        return {"status": "ok", "session_id": tracked.record.id, "message": "its input is closed"}

    def _find(self, args: JsonObject, session_key: str | None) -> TrackedProcess:
        return self.registry.get(str(args["session_id"]), session_key)

    def _consume(self, tracked: TrackedProcess) -> None:
        """Retract the completion event: the caller knows now that the process has ended."""
        if not tracked.is_running and tracked.record.notify_on_complete:
            self.registry.notifier.store.consume(tracked.record.session_key, tracked.record.id)

    def _state(self, tracked: TrackedProcess) -> JsonObject:
        record = tracked.record
        until = self.registry.clock() if record.ended_at is None else record.ended_at
        state: JsonObject = {
            "session_id": record.id,
            "status": record.status,
            "command": self._mask(record.command),
            "pid": record.pid,
            "uptime_seconds": round(max(0.0, until - record.started_at), 1),
        }
        if not record.is_running:
            state["exit_code"] = record.exit_code
            state["completion_reason"] = record.completion_reason
            if record.termination_source:
                state["termination_source"] = record.termination_source
            if record.children_run:
                state["children_running"] = True
            if record.note:
                state["note"] = record.note
        return state

    def _listed(self, tracked: TrackedProcess) -> JsonObject:
        record = tracked.record
        listed = self._state(tracked)
        listed["cwd"] = record.cwd
        listed["started_at"] = datetime.fromtimestamp(record.started_at, UTC).isoformat(timespec="seconds")
        listed["output_preview"] = self._readable(tracked.output.tail(PREVIEW_CHARS))
        if record.notify_on_complete:
            listed["notify_on_complete"] = True
        if record.watch_patterns:
            listed["watch_patterns"] = list(record.watch_patterns)
        return listed

    def _shown(self, text: str) -> JsonObject:
        readable = self._readable(text)
        if len(readable) <= SHOWN_CHARS:
            return {"output": readable}
        left_out = len(readable) - SHOWN_CHARS
        note = f'the first {left_out} characters of the new output are omitted; process(action="log") reads them'
        return {"output": readable[-SHOWN_CHARS:], "output_note": note}

    def _masked(self, event: ProcessEvent) -> ProcessEvent:
        shown = {
            name: self._mask(value) if name in ("command", "output") else value for name, value in event.fields.items()
        }
        return replace(event, fields=shown)

    def _readable(self, text: str) -> str:
        return self._mask(readable(text))


def _input_hint(waits: bool) -> JsonObject:
    if not waits:
        return {}
    return {
        "waiting_for_input": True,
        "hint": 'it is waiting for input; answer with process(action="submit", data="…")',
    }
