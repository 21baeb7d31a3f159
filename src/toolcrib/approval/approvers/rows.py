"""A command as rows of a terminal: escaped, folded at the edge, with the dangerous words marked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from toolcrib.approval.approvers.escape import pieces, width
from toolcrib.core.approvals import Danger

Span = tuple[int, int]

# A command up to this size is shown whole; of a longer one the beginning, the end and what the dangers stand on.
WHOLE_CHARS = 800
WHOLE_LINES = 14
HEAD_CHARS, HEAD_LINES = 400, 6
TAIL_CHARS, TAIL_LINES = 200, 4
CONTEXT_CHARS = 60
MAX_MARKED_CHARS = 300
MAX_MARKED_SPANS = 8


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How things are set apart: by colour, or by signs alone where colour is unwanted or unknown."""

    colour: bool = False

    def danger(self, text: str) -> str:
        return f"\x1b[1;31m{text}\x1b[0m" if self.colour else text

    def escape(self, text: str) -> str:
        return f"\x1b[7m{text}\x1b[0m" if self.colour else text

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text


def marked_spans(dangers: Iterable[Danger], length: int) -> list[Span]:
    """The parts of a command that the dangers stand on, in order, joined where they overlap."""
    spans: list[Span] = []
    for start, end in sorted(danger.span for danger in dangers if danger.span is not None):
        start, end = max(0, start), min(length, end)
        if start >= end:
            continue
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def windows(command: str, spans: Sequence[Span]) -> list[Span]:
    """The parts of a command that a first look shows: all of it if it is short."""
    if len(command) <= WHOLE_CHARS and command.count("\n") < WHOLE_LINES:
        return [(0, len(command))]
    wanted = [(0, _after_lines(command, HEAD_CHARS, HEAD_LINES))]
    for start, end in spans[:MAX_MARKED_SPANS]:
        wanted.append((max(0, start - CONTEXT_CHARS), min(len(command), end + CONTEXT_CHARS, start + MAX_MARKED_CHARS)))
    wanted.append((_before_lines(command, TAIL_CHARS, TAIL_LINES), len(command)))
    joined: list[Span] = []
    for start, end in sorted(wanted):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def command_rows(command: str, dangers: Sequence[Danger], columns: int, style: Style, *, whole: bool) -> list[str]:
    """The rows that show a command. A new line begins with "|", a folded one with ":", a gap with "..."."""
    spans = marked_spans(dangers, len(command))
    rows: list[str] = []
    last = 0
    for start, end in [(0, len(command))] if whole else windows(command, spans):
        if start > last:
            rows.append(f"  ... {start - last:,} characters not shown, press e ...")
        rows += _window_rows(command, start, end, spans, columns, style)
        last = end
    return rows


def _window_rows(command: str, start: int, end: int, spans: Sequence[Span], columns: int, style: Style) -> list[str]:
    rows: list[str] = []
    at = start
    for number, line in enumerate(command[start:end].split("\n")):
        begins_line = number > 0 or start == 0 or command[start - 1] == "\n"
        rows += _line_rows(line, at, spans, columns, style, "  | " if begins_line else "  : ")
        at += len(line) + 1
    return rows


def _line_rows(line: str, offset: int, spans: Sequence[Span], columns: int, style: Style, gutter: str) -> list[str]:
    """One line of the command, folded, with a row of ^ under marked words where there is no colour."""
    room = max(8, columns - len(gutter) - 1)
    rows: list[str] = []
    cells: list[tuple[str, bool, bool]] = []
    used = 0
    for (shown, escaped), marked in zip(pieces(line), _marks(len(line), offset, spans), strict=True):
        wide = width(shown)
        if used + wide > room:
            rows += _row(cells, gutter, style)
            gutter, cells, used = "  : ", [], 0
        cells.append((shown, escaped, marked))
        used += wide
    return rows + _row(cells, gutter, style)


def _marks(length: int, offset: int, spans: Sequence[Span]) -> list[bool]:
    marks = [False] * length
    # Spans are in order and apart, so a command of a million lines looks at each of them about once.
    at = bisect_right(spans, offset, key=lambda span: span[1])
    while at < len(spans) and spans[at][0] < offset + length:
        start, end = spans[at]
        low, high = max(0, start - offset), min(length, end - offset)
        marks[low:high] = [True] * (high - low)
        at += 1
    return marks


def _row(cells: Sequence[tuple[str, bool, bool]], gutter: str, style: Style) -> list[str]:
    text = ""
    at = 0
    while at < len(cells):
        _, escaped, marked = cells[at]
        run = at
        while run < len(cells) and cells[run][1:] == (escaped, marked):
            run += 1
        part = "".join(shown for shown, _, _ in cells[at:run])
        text += style.danger(part) if marked else style.escape(part) if escaped else part
        at = run
    if style.colour or not any(marked for _, _, marked in cells):
        return [gutter + text]
    under = "".join(("^" if marked else " ") * width(shown) for shown, _, marked in cells)
    return [gutter + text, " " * len(gutter) + under.rstrip()]


def _after_lines(command: str, most: int, lines: int) -> int:
    """Where the first `lines` lines end, or `most` characters."""
    at = -1
    for _ in range(lines):
        at = command.find("\n", at + 1, most)
        if at < 0:
            return min(most, len(command))
    return at


def _before_lines(command: str, most: int, lines: int) -> int:
    """Where the last `lines` lines begin, or `most` characters."""
    lowest = max(0, len(command) - most)
    at = len(command)
    for _ in range(lines):
        at = command.rfind("\n", lowest, at)
        if at < 0:
            return lowest
    return at + 1
