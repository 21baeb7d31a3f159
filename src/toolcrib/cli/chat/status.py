"""The status at the bottom of the chat: what is running, what is queued, and the status bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from toolcrib.agent.events import CallStarted, SubagentProgressed
from toolcrib.cli.chat.renderer import BlockStream
from toolcrib.cli.chat.symbols import Symbols, fitted, short_duration
from toolcrib.cli.output import cell_width, clean, one_line

MAX_ROWS = 5
FRAMES_PER_SECOND = 10
MAX_STATUS_COLUMNS = 100
"""A wider row would wrap and leave traces when the terminal becomes narrower."""
MIN_PHASE_COLUMNS = 24
MAX_NAME_COLUMNS = 60
"""MCP servers choose the names of their tools."""
HINT_SECONDS = 2.0
MAX_QUEUED_ROWS = 3
DEFAULT_OUTPUT_LINES = 8
MAX_PLAN_LINES = 20
STOPPING = "stopping; "
SHORT_COMMIT = 8
FINISHED = ("completed", "cancelled")


class RunningCall(Struct):
    """A call without a result."""

    id: str
    label: str
    """Emoji and name."""
    summary: str
    started_at: float
    progress: str = ""
    output: str = ""
    """The latest lines that a command has printed."""
    lines: int = 0
    """How many lines it has printed."""


PlanItem = dict[str, str]
"""An item of the agent's plan, with `content` and `status`."""


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

    def call_printed(self, call_id: str, output: str, lines: int) -> None:
        call = self.calls.get(call_id)
        if call is not None:
            call.output, call.lines = output, lines

    def call_answered(self, call_id: str, seconds: float) -> None:
        """A person took that long to approve a call; its own time starts after that."""
        call = self.calls.get(call_id)
        if call is not None:
            call.started_at += seconds

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
            phase = f"{frame} {self.phase}"
            end = f"{dot}{self._since(self._began_at)}{dot}{self.detail or 'Ctrl-C stops'}"
            if room - len(end) >= MIN_PHASE_COLUMNS:  # a long reason must not hide that the time runs
                phase = fitted(phase, room - len(end), self.symbols.ellipsis)
            return [fitted(phase + end, room, self.symbols.ellipsis)]
        calls = list(self.calls.values())
        shown = calls if len(calls) <= MAX_ROWS else calls[: MAX_ROWS - 1]
        rows = [self._call_row(frame, call, room) for call in shown]
        if len(calls) > len(shown):
            rows.append(fitted(f"{frame} and {len(calls) - len(shown)} more ({len(calls)} tools)", room))
        subagents = list(self.subagents.values())
        rows += [fitted(f"    {what}", room, self.symbols.ellipsis) for what in subagents[:MAX_ROWS]]
        return rows

    def output_rows(self, columns: int, count: int) -> list[str]:
        """The latest output of the command that started last, if one has printed anything."""
        printing = [call for call in self.calls.values() if call.output]
        if not printing or count < 1:
            return []
        call, room = printing[-1], columns - 5
        # A progress bar overwrites its line.
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in call.output.split("\n")][-count:]
        rows = [fitted(clean(line.expandtabs(4)), room, self.symbols.ellipsis) for line in lines]
        if call.lines > len(rows):
            rows.insert(0, f"{self.symbols.ellipsis} {call.lines - len(rows):,} lines above")
        return [f"  {self.symbols.bar} {row}" for row in rows]

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
    bar: Callable[[], list[str]] = list
    """The parts of the status line, most important first: model, mode, context, cost, folder."""
    blocks: BlockStream = field(default_factory=BlockStream)
    """The answer as it streams in; the incomplete block is shown while it grows."""
    queued: list[str] = field(default_factory=list)
    """Questions that wait for the current one."""
    asking: bool = False
    """The next input answers a question of the agent."""
    choices: tuple[str, ...] = ()
    """The answers that the open question offers."""
    marked: int | None = None
    """The choice that the arrow keys marked; none at first, so that a stray Enter answers nothing."""
    output_lines: int = DEFAULT_OUTPUT_LINES
    """How many of the latest lines of a command's output are shown."""
    plan: list[PlanItem] = field(default_factory=list)
    """The agent's plan as it was drawn last."""
    _how_to_answer: str = ""
    _hint: str = ""
    _hint_until: float = 0.0

    def ask(self, choices: tuple[str, ...], how: str) -> None:
        """A question is open; `how` says how to answer it."""
        self.asking, self.choices, self.marked, self._how_to_answer = True, choices, None, how

    def asked(self) -> None:
        """The question is closed."""
        self.asking, self.choices, self.marked = False, (), None

    @property
    def marked_choice(self) -> str:
        return "" if self.marked is None else self.choices[self.marked]

    def move_mark(self, step: int) -> None:
        """Mark the next choice, or the one before; goes around at both ends."""
        if self.choices:
            before = self.marked if self.marked is not None else (-1 if step > 0 else 0)
            self.marked = (before + step) % len(self.choices)

    def choice_rows(self, columns: int) -> list[str]:
        """The choices, the marked one with a mark, and how to answer."""
        room = min(columns, MAX_STATUS_COLUMNS) - 1
        rows = [
            f"{self.symbols.prompt if number == self.marked else '  '}{number + 1}. {one_line(choice)}"
            for number, choice in enumerate(self.choices)
        ]
        return [fitted(row, room, self.symbols.ellipsis) for row in [*rows, self._how_to_answer]]

    def prompt(self) -> str:
        return f"answer {self.symbols.prompt}" if self.asking else self.symbols.prompt

    def hint(self, text: str) -> None:
        """Show a message in the status bar for a moment."""
        self._hint, self._hint_until = text, self.activity.clock() + HINT_SECONDS

    def stopped(self) -> None:
        """The work has ended, so nothing is stopping any more; the rest of the hint still holds."""
        self._hint = self._hint.removeprefix(STOPPING)

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

    @property
    def has_plan(self) -> bool:
        """Whether the plan still matters: the agent works, or something is left to do."""
        return bool(self.plan) and (
            not self.activity.is_idle or any(one["status"] not in FINISHED for one in self.plan)
        )

    def plan_lines(self, columns: int) -> list[str]:
        """The plan as a checklist; a long one is cut."""
        rows = [
            fitted(f"  {self._mark(one)} {one_line(one['content'])}", columns - 1, self.symbols.ellipsis)
            for one in self.plan
        ]
        if len(rows) > MAX_PLAN_LINES:
            rows = [*rows[: MAX_PLAN_LINES - 1], f"  and {len(rows) - MAX_PLAN_LINES + 1} more (/todo)"]
        return rows

    def plan_row(self, columns: int) -> str:
        """The plan on one line: all of its items if they fit, else how far it is and what comes now."""
        room = min(columns, MAX_STATUS_COLUMNS) - 1
        everything = "   ".join(f"{self._mark(one)} {one_line(one['content'])}" for one in self.plan)
        if cell_width(everything) <= room:
            return everything
        done = sum(one["status"] in FINISHED for one in self.plan)
        left = [one for one in self.plan if one["status"] not in FINISHED]
        current = next((one for one in left if one["status"] == "in_progress"), left[0] if left else None)
        what = (
            f"{self._mark(current)} {one_line(current['content'])}" if current else f"{self.symbols.checked} all done"
        )
        return fitted(f"{done}/{len(self.plan)}  {what}", room, self.symbols.ellipsis)

    def _mark(self, item: PlanItem) -> str:
        symbols = self.symbols
        marks = {"completed": symbols.checked, "cancelled": symbols.dropped, "in_progress": symbols.current}
        return marks.get(item["status"], symbols.open)

    def queued_rows(self, columns: int) -> list[str]:
        room = min(columns, MAX_STATUS_COLUMNS) - 1
        rows = [fitted(f"queued: {one_line(text)}", room, self.symbols.ellipsis) for text in self.queued]
        if len(rows) > MAX_QUEUED_ROWS:
            rows = [*rows[: MAX_QUEUED_ROWS - 1], f"and {len(rows) - MAX_QUEUED_ROWS + 1} more"]
        return rows

    def bar_row(self, columns: int) -> str:
        room = min(columns, MAX_STATUS_COLUMNS) - 1
        parts = [self._hint] if self.has_hint else [one_line(part) for part in self.bar()]
        # A narrow terminal drops parts from the right.
        while len(parts) > 1 and cell_width(self.symbols.dot.join(parts)) > room:
            parts.pop()
        return fitted(self.symbols.dot.join(parts), room, self.symbols.ellipsis)


def git_branch(folder: str) -> str:
    """The branch that a folder's files are from, or the beginning of its commit; empty outside a repository."""
    try:
        above = Path(folder).absolute()
        for place in (above, *above.parents):
            dot_git = place / ".git"
            if dot_git.is_file():  # A worktree or a submodule names the folder with its HEAD.
                dot_git = place / dot_git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
            if dot_git.is_dir():
                head = (dot_git / "HEAD").read_text(encoding="utf-8").strip()
                named = head.removeprefix("ref: ")
                return named.removeprefix("refs/heads/") if named != head else head[:SHORT_COMMIT]
    except (OSError, UnicodeDecodeError):
        return ""
    return ""
