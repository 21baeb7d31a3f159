"""What the agent is doing at this moment, as the rows above the input line show it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from toolcrib.agent.events import CallStarted, SubagentProgressed
from toolcrib.cli.chat.symbols import Symbols, fitted, seconds_in_words
from toolcrib.cli.output import one_line

MAX_ROWS = 5
FRAMES_PER_SECOND = 10
MAX_STATUS_COLUMNS = 100
"""A wider row would be folded, and so left behind, by a terminal that is made narrower."""
MAX_NAME_COLUMNS = 60
"""Servers name their tools as they like."""


@dataclass(slots=True)
class RunningCall:
    """A call that has no result yet."""

    id: str
    label: str
    """Emoji and name."""
    summary: str
    started_at: float
    progress: str = ""


@dataclass(slots=True)
class Activity:
    """Follows the events of a run. Knows the time, but not the terminal."""

    symbols: Symbols
    clock: Callable[[], float] = time.monotonic
    phase: str = ""
    """What is going on while no tool runs; empty when nothing is."""
    detail: str = ""
    """What more is known about the phase, in a line."""
    calls: dict[str, RunningCall] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    """What the helpers that the agent sent out are doing, by their ids."""
    _began_at: float = 0.0

    @property
    def is_idle(self) -> bool:
        return not self.phase and not self.calls

    def begin(self, phase: str) -> None:
        """Something is being waited for; saying it again does not start its time anew."""
        if phase != self.phase:
            self.phase, self.detail, self._began_at = phase, "", self.clock()

    def end(self) -> None:
        """Nothing is going on any more."""
        self.phase = self.detail = ""
        self.calls.clear()
        self.helpers.clear()

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
        """The call, which runs no longer; None for one that nobody saw starting."""
        call = self.calls.pop(call_id, None)
        if not self.calls:
            self._began_at = self.clock()
        return call

    def helper_progressed(self, event: SubagentProgressed) -> None:
        if event.state in ("started", "working"):
            self.helpers[event.child_id] = one_line(f"{event.goal}: {event.what}" if event.what else event.goal)
        else:
            self.helpers.pop(event.child_id, None)

    def rows(self, columns: int) -> list[str]:
        """What to show, one row for each thing that goes on, each fitting into so many columns."""
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
        helpers = list(self.helpers.values())
        rows += [fitted(f"    {what}", room, self.symbols.ellipsis) for what in helpers[:MAX_ROWS]]
        return rows

    def _call_row(self, frame: str, call: RunningCall, room: int) -> str:
        # The time comes last and is never cut: it is what shows that something still happens.
        passed = f"{self.symbols.dot}{self._since(call.started_at)}"
        said = self.symbols.dot.join(part for part in (call.summary, call.progress) if part)
        head = f"{frame} {call.label}  {said}".rstrip()
        return fitted(head, room - len(passed), self.symbols.ellipsis) + passed

    def _since(self, started_at: float) -> str:
        return seconds_in_words(self.clock() - started_at)
