"""The status at the bottom of the chat: what is running, what is queued, and the status bar."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, field

from toolcrib.agent.events import CallStarted, SubagentProgressed
from toolcrib.cli.chat.renderer import BlockStream
from toolcrib.cli.chat.symbols import Symbols, fitted, short_duration
from toolcrib.cli.output import one_line

MAX_ROWS = 5
FRAMES_PER_SECOND = 10
MAX_STATUS_COLUMNS = 100
"""A wider row would wrap and leave traces when the terminal becomes narrower."""
MAX_NAME_COLUMNS = 60
"""MCP servers choose the names of their tools."""
HINT_SECONDS = 2.0
MAX_QUEUED_ROWS = 3


class RunningCall(Struct):
    """A call without a result."""

    id: str
    label: str
    """Emoji and name."""
    summary: str
    started_at: float
    progress: str = ""


class Activity(Struct):
    """What the agent is doing now, from the events of a run."""

    symbols: Symbols
    clock: Callable[[], float] = time.monotonic
    phase: str = ""
    """The current phase while no tool runs; empty if idle."""
    detail: str = ""
    """Details about the phase, on one line."""
    calls: dict[str, RunningCall] = field(default_factory=dict)
    subagents: dict[str, str] = field(default_factory=dict)
    """What the subagents are doing, by their ids."""
    _began_at: float = 0.0

    @property
    def is_idle(self) -> bool:
        return not self.phase and not self.calls

    def begin(self, phase: str) -> None:
        """Start a phase; starting the current phase again does not reset its time."""
        if phase != self.phase:
            self.phase, self.detail, self._began_at = phase, "", self.clock()

    def end(self) -> None:
        """The run has ended."""
        self.phase = self.detail = ""
        self.calls.clear()
        self.subagents.clear()

    def call_started(self, event: CallStarted) -> None:
        name = fitted(one_line(event.shown_name), MAX_NAME_COLUMNS, self.symbols.ellipsis)
        label = f"{one_line(event.emoji)} {name}" if self.symbols.emoji else name
        call = RunningCall(event.call.id, label, one_line(event.summary), self.clock())
        self.calls[call.id] = call

    def call_progressed(self, call_id: str, message: str) -> None:
        call = self.calls.get(call_id)
        if call is not None:
            call.progress = one_line(message)

    def call_finished(self, call_id: str) -> RunningCall | None:
        """Remove and return a call; None if its start was not seen."""
        call = self.calls.pop(call_id, None)
        if not self.calls:
            self._began_at = self.clock()
        return call

    def subagent_progressed(self, event: SubagentProgressed) -> None:
        if event.state in ("started", "working"):
            self.subagents[event.child_id] = one_line(f"{event.goal}: {event.what}" if event.what else event.goal)
        else:
            self.subagents.pop(event.child_id, None)

    def rows(self, columns: int) -> list[str]:
        """One row for each running thing, cut to this many columns."""
        if self.is_idle:
            return []
        room = min(columns, MAX_STATUS_COLUMNS) - 1
        frame = self.symbols.spinner[int(self.clock() * FRAMES_PER_SECOND) % len(self.symbols.spinner)]
        if not self.calls:
            dot = self.symbols.dot
            row = f"{frame} {self.phase}{dot}{self._since(self._began_at)}{dot}{self.detail or 'Ctrl-C stops'}"
            return [fitted(row, room, self.symbols.ellipsis)]
        calls = list(self.calls.values())
        shown = calls if len(calls) <= MAX_ROWS else calls[: MAX_ROWS - 1]
        rows = [self._call_row(frame, call, room) for call in shown]
        if len(calls) > len(shown):
            rows.append(fitted(f"{frame} and {len(calls) - len(shown)} more ({len(calls)} tools)", room))
        subagents = list(self.subagents.values())
        rows += [fitted(f"    {what}", room, self.symbols.ellipsis) for what in subagents[:MAX_ROWS]]
        return rows

    def _call_row(self, frame: str, call: RunningCall, room: int) -> str:
        # The time comes last and is never cut: it shows that something is still happening.
        passed = f"{self.symbols.dot}{self._since(call.started_at)}"
        details = self.symbols.dot.join(part for part in (call.summary, call.progress) if part)
        head = f"{frame} {call.label}  {details}".rstrip()
        return fitted(head, room - len(passed), self.symbols.ellipsis) + passed

    def _since(self, started_at: float) -> str:
        return short_duration(self.clock() - started_at)


class Status(Struct):
    """Written by the chat session, read by the frontend."""

    symbols: Symbols
    activity: Activity
    bar: Callable[[], str] = str
    """Model, context usage, cost."""
    blocks: BlockStream = field(default_factory=BlockStream)
    """The answer as it streams in; the incomplete block is shown while it grows."""
    queued: list[str] = field(default_factory=list)
    """Questions that wait for the current one."""
    asking: bool = False
    """The next input answers a question of the agent."""
    choices: tuple[str, ...] = ()
    """The answers that the arrow keys offer."""
    _hint: str = ""
    _hint_until: float = 0.0

    def prompt(self) -> str:
        return f"answer {self.symbols.prompt}" if self.asking else self.symbols.prompt

    def hint(self, text: str) -> None:
        """Show a message in the status bar for a moment."""
        self._hint, self._hint_until = text, self.activity.clock() + HINT_SECONDS

    @property
    def has_hint(self) -> bool:
        return bool(self._hint) and self.activity.clock() < self._hint_until

    def moves(self) -> bool:
        """Whether the display changes with time; true once more after a hint expires, to remove it."""
        if self._hint and not self.has_hint:
            self._hint = ""
            return True
        return not self.activity.is_idle

    def working_rows(self, columns: int) -> list[str]:
        return self.activity.rows(columns)

    def queued_rows(self, columns: int) -> list[str]:
        room = min(columns, MAX_STATUS_COLUMNS) - 1
        rows = [fitted(f"queued: {one_line(text)}", room, self.symbols.ellipsis) for text in self.queued]
        if len(rows) > MAX_QUEUED_ROWS:
            rows = [*rows[: MAX_QUEUED_ROWS - 1], f"and {len(rows) - MAX_QUEUED_ROWS + 1} more"]
        return rows

    def bar_row(self, columns: int) -> str:
        text = self._hint if self.has_hint else self.bar()
        return fitted(one_line(text), min(columns, MAX_STATUS_COLUMNS) - 1, self.symbols.ellipsis)
