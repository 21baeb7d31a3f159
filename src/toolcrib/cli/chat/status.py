"""All that moves at the bottom of the chat: the answer as it grows, what runs, what waits, the bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from toolcrib.cli.chat.blocks import BlockStream
from toolcrib.cli.chat.spinner import MAX_STATUS_COLUMNS, Activity
from toolcrib.cli.chat.symbols import Symbols, fitted
from toolcrib.cli.output import one_line

HINT_SECONDS = 2.0
MAX_QUEUED_ROWS = 3


@dataclass(slots=True)
class Status:
    """Written by the chat, read by whoever draws it."""

    symbols: Symbols
    activity: Activity
    bar: Callable[[], str] = str
    """Model, share of the context, cost."""
    blocks: BlockStream = field(default_factory=BlockStream)
    """The answer as it is written; what is not complete yet is shown as it grows."""
    queued: list[str] = field(default_factory=list)
    """Questions that wait for the present one to be done with."""
    asking: bool = False
    """What is typed next answers a question of the agent."""
    _hint: str = ""
    _hint_until: float = 0.0

    def prompt(self) -> str:
        return f"answer {self.symbols.prompt}" if self.asking else self.symbols.prompt

    def hint(self, text: str) -> None:
        """Say something in the bar for a moment."""
        self._hint, self._hint_until = text, self.activity.clock() + HINT_SECONDS

    @property
    def has_hint(self) -> bool:
        return bool(self._hint) and self.activity.clock() < self._hint_until

    def moves(self) -> bool:
        """Whether what is shown changes with time; once more after a hint has run out, to take it away."""
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
