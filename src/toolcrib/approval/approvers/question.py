"""The approval question as shown at a terminal: the command, its dangers, the files it would touch, the keys."""

from __future__ import annotations

import os
import stat
import textwrap
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath

import msgspec

from toolcrib.approval.approvers.escape import pieces, shortened, visible, width
from toolcrib.core.approvals import ApprovalRequest, Danger

Span = tuple[int, int]

# A command up to this size is shown whole; a longer one shows its beginning, its end and the dangerous parts.
WHOLE_CHARS = 800
WHOLE_LINES = 14
HEAD_CHARS, HEAD_LINES = 400, 6
TAIL_CHARS, TAIL_LINES = 200, 4
CONTEXT_CHARS = 60
MAX_MARKED_CHARS = 300
MAX_MARKED_SPANS = 8


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How the question highlights text: with colour, or with characters alone."""

    colour: bool = False
    compact: bool = False
    """Erase the answers from the screen once one is given."""

    def danger(self, text: str) -> str:
        return f"\x1b[1;31m{text}\x1b[0m" if self.colour else text

    def escape(self, text: str) -> str:
        return f"\x1b[7m{text}\x1b[0m" if self.colour else text

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def selected(self, text: str) -> str:
        return f"\x1b[1;36m{text}\x1b[0m" if self.colour else text

    def diff(self, text: str, sign: str) -> str:
        code = {"+": "32", "-": "31", "@": "36"}.get(sign)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code else text


def marked_spans(dangers: Iterable[Danger], length: int) -> list[Span]:
    """The parts of a command that the dangers refer to, in order; overlapping ones are joined."""
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
    """The parts of a command to show at first: all of it if it is short."""
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
    """The rows that show a command. A new line starts with "|", a wrapped one with ":", a gap with "..."."""
    spans = marked_spans(dangers, len(command))
    rows: list[str] = []
    last = 0
    for start, end in [(0, len(command))] if whole else windows(command, spans):
        if start > last:
            rows.append(f"  ... {start - last:,} characters hidden, press e to show them ...")
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
    """One line of the command, wrapped, with a row of ^ under marked words if there is no colour."""
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
    # Spans are sorted and disjoint, so even a command of a million lines visits each span about once.
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
    """Where the first `lines` lines end, at most `most` characters in."""
    at = -1
    for _ in range(lines):
        at = command.find("\n", at + 1, most)
        if at < 0:
            return min(most, len(command))
    return at


def _before_lines(command: str, most: int, lines: int) -> int:
    """Where the last `lines` lines begin, at most `most` characters from the end."""
    lowest = max(0, len(command) - most)
    at = len(command)
    for _ in range(lines):
        at = command.rfind("\n", lowest, at)
        if at < 0:
            return lowest
    return at + 1


MAX_SENTENCE_CHARS = 300
MAX_DANGERS = 12
MAX_GRANTS = 6
DIFF_LINES = 40


def wants_colour(environment: Mapping[str, str]) -> bool:
    """Whether to use colour: NO_COLOR is unset and the terminal supports it."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "dumb") not in ("", "dumb")


def question(
    request: ApprovalRequest, touched: Sequence[str], columns: int, style: Style, *, whole: bool = False
) -> str:
    """The call, its dangers and what it would touch, wrapped to that many columns."""
    # A change names its file, which may be anywhere; a command depends on its folder.
    where = [f"in {_sentence(request.cwd)}"] if request.cwd and not request.diff else []
    if request.backend != "local":
        where.append(f"on {_sentence(request.backend)}")
    verb = "asks to make this change" if request.diff else "asks to run"
    head = " ".join([f"{_sentence(request.title or request.tool)} {verb}", *where])
    rows = ["", *_folded(f"{head}:", columns, style, bold=True)]
    if request.diff:
        rows += diff_rows(request.diff, columns, style, whole=whole)
    else:
        rows += command_rows(request.command, request.dangers, columns, style, whole=whole)
    if _has_escapes((request.diff or request.command).replace("\n", "").replace("\t", "")):
        rows += _folded(r"Hidden and control characters appear as \x1b, \u200b and so on.", columns, style)
    shown = request.dangers if whole else request.dangers[:MAX_DANGERS]
    for number, danger in enumerate(shown, 1):
        rows += _folded(_danger_line(number, danger), columns, style, indent="   ")
    if len(request.dangers) > len(shown):
        rows += _folded(f"and {len(request.dangers) - len(shown)} more dangers; press e to show them", columns, style)
    for line in touched:
        rows += _folded(f"-> {visible(line)}", columns, style, indent="   ")
    return "\n".join(rows) + "\n"


def diff_rows(diff: str, columns: int, style: Style, *, whole: bool) -> list[str]:
    """The rows that show a change, in the colours of a diff."""
    lines = diff.rstrip("\n").split("\n")
    shown = lines if whole or len(lines) <= DIFF_LINES else lines[:DIFF_LINES]
    room = max(8, columns - 5)
    rows: list[str] = []
    for line in shown:
        text = visible(line.replace("\t", "    "))
        is_header = line.startswith(("+++ ", "--- "))
        rows += [style.diff(f"  | {part}", "" if is_header else line[:1]) for part in _cut_by_width(text, room)]
    if len(lines) > len(shown):
        rows.append(f"  ... {len(lines) - len(shown):,} more lines, press e to show them ...")
    return rows


def _cut_by_width(text: str, room: int) -> list[str]:
    parts, used = [""], 0
    for character in text:
        wide = width(character)
        if used + wide > room:
            parts.append("")
            used = 0
        parts[-1] += character
        used += wide
    return parts


class AnswerChoice(msgspec.Struct, frozen=True):
    """One answer that the person can choose, by its key or with the arrow keys."""

    key: str
    text: str


def answer_choices(request: ApprovalRequest, written: Sequence[str]) -> list[AnswerChoice]:
    """The answers that this call allows, in plain words; `written` is what "always" would add to the config."""
    found = [
        AnswerChoice("y", "Yes, make this change" if request.diff else "Yes, run it once"),
        AnswerChoice("s", f"Yes, and allow {describe_scopes(request)} for the rest of the session"),
    ]
    if has_scope(request):
        found.append(
            AnswerChoice("k", f"Yes, and allow {_quoted(kinds(request))} anywhere for the rest of the session")
        )
    if request.may_be_permanent:
        always = f"Yes, always; adds to command_allowlist in config.yaml: {_some(written)}"
        found.append(AnswerChoice("a", always))
    if request.can_be_edited:
        found.append(AnswerChoice("c", "Edit the command, then run it"))
    return [*found, AnswerChoice("n", "No"), AnswerChoice("r", "No, and say why")]


def choice_rows(found: Sequence[AnswerChoice], selected: int | None, columns: int, style: Style) -> list[str]:
    """The answers and how to give one; `selected` is the one that Enter gives."""
    rows: list[str] = []
    for number, choice in enumerate(found):
        is_selected = number == selected
        folded = _folded(f"[{choice.key}] {choice.text}", columns - 2, style, indent="    ")
        marked = [f"{'> ' if is_selected and at == 0 else '  '}{row}" for at, row in enumerate(folded)]
        rows += [style.selected(row) for row in marked] if is_selected else marked
    return rows + _folded(
        "Press a key, or choose with the arrow keys and Enter. [e] everything  [?] help", columns, style
    )


def help_text(request: ApprovalRequest, written: Sequence[str], columns: int, style: Style) -> str:
    """What each key does for this call."""
    lines = {
        "y": "run it this once",
        "s": f"run it, and don't ask again in this session about {describe_scopes(request)}",
        "k": f"run it, and don't ask again in this session about {_quoted(kinds(request))} anywhere",
        "a": f"run it, and never ask again; adds to command_allowlist in config.yaml: {_some(written)}",
        "c": "edit the command, then run it as you wrote it",
        "n": "don't run it",
        "r": "don't run it, and tell the model why: type the reason, then press Enter",
        "e": "show the whole command and every danger",
        "?": "show this help; Esc denies; Ctrl-C cancels the call; Enter gives the answer that the arrow keys chose",
    }
    if not request.can_be_edited:
        del lines["c"]
    if not request.may_be_permanent:
        del lines["a"]
    if not has_scope(request):
        del lines["k"]
    rows = [row for key, does in lines.items() for row in _folded(f"{key}  {does}", columns, style, indent="   ")]
    return "".join(row + "\n" for row in rows)


def has_scope(request: ApprovalRequest) -> bool:
    """Whether the person can allow more than this one call."""
    return any(danger.scope for danger in request.dangers)


def kinds(request: ApprovalRequest) -> list[str]:
    """The kinds of danger, regardless of scope."""
    return list(dict.fromkeys(danger.description for danger in request.dangers))


def describe_scopes(request: ApprovalRequest) -> str:
    """What "for the rest of the session" would allow."""
    return _some(list(dict.fromkeys(describe_grant(danger) for danger in request.dangers)))


def describe_grant(danger: Danger) -> str:
    """A danger and its scope: `"recursive delete" (inside the workspace)`."""
    scope = f" ({_sentence(danger.scope)})" if danger.scope else ""
    return f'"{_sentence(danger.description)}"{scope}'


def _quoted(texts: Sequence[str]) -> str:
    return _some([f'"{text}"' for text in texts])


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - MAX_GRANTS} more" if len(texts) > MAX_GRANTS else ""
    return "; ".join(_sentence(text) for text in texts[:MAX_GRANTS]) + more


def _danger_line(number: int, danger: Danger) -> str:
    scope = f" ({danger.scope})" if danger.scope else ""
    return f"{number}. {_sentence(danger.description + scope)}: {_sentence(danger.reason)}"


def _has_escapes(text: str) -> bool:
    # The quick test misses characters that look blank; search for those only as far as a person would read.
    return not text.isprintable() or any(escaped for _, escaped in pieces(text[:20_000]))


def _sentence(text: str) -> str:
    """Text from a request on one line, escaped and shortened."""
    return visible(shortened(text, MAX_SENTENCE_CHARS))


def _folded(line: str, columns: int, style: Style, *, indent: str = "", bold: bool = False) -> list[str]:
    room = max(16, columns - 1)
    if width(line) == len(line):
        rows = textwrap.wrap(line, room, subsequent_indent=indent, break_on_hyphens=False) or [""]
    else:
        rows = _folded_by_width(line, room, indent)
    return [style.bold(row) for row in rows] if bold else rows


def _folded_by_width(line: str, room: int, indent: str) -> list[str]:
    """Wraps anywhere, because text with wide characters rarely has spaces to wrap at."""
    rows, used = [""], 0
    for character in line:
        wide = width(character)
        if used + wide > room:
            rows.append(indent)
            used = len(indent)
        rows[-1] += character
        used += wide
    return rows


MAX_ENTRIES = 20_000
MAX_SECONDS = 0.2
MAX_PATHS_SHOWN = 4
MAX_PATHS_LOOKED_AT = 200

Clock = Callable[[], float]


class _Count(msgspec.Struct):
    files: int = 0
    folders: int = 0
    size: int = 0


class _Budget:
    """The entries and the time that the paths of one question share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries = MAX_ENTRIES
        self._deadline = clock() + MAX_SECONDS

    def spend(self) -> bool:
        """Count one more entry; False when the budget is used up."""
        self._entries -= 1
        return self._entries >= 0 and self._clock() < self._deadline


def preview(request: ApprovalRequest, clock: Clock = time.monotonic) -> tuple[str, ...]:
    """One line for each existing path that the call would touch; none if it runs on another backend."""
    if request.backend != "local":
        return ()
    budget = _Budget(clock)
    lines: list[str] = []
    more = 0
    for path, verb in _paths(request):
        if not os.path.lexists(path):
            continue
        if len(lines) == MAX_PATHS_SHOWN:
            more += 1
            continue
        count = _Count()
        complete = _walk(path, count, budget)
        lines.append(f"{verb} {_amount(count, complete)}: {shortened(visible(path), 120)}")
    if more:
        lines.append(f"and {more} more {'path' if more == 1 else 'paths'}")
    return tuple(lines)


def _paths(request: ApprovalRequest) -> list[tuple[str, str]]:
    """Each path once, with what would happen to it; paths inside another path are left out."""
    verbs: dict[str, str] = {}
    for danger in request.dangers:
        deletes = "delete" in danger.rule or "delete" in danger.description
        for path in danger.paths[:MAX_PATHS_LOOKED_AT]:
            if not path.startswith("/") or "\0" in path:
                continue
            normalised = os.path.normpath(path)
            verbs[normalised] = "would delete" if deletes else verbs.get(normalised, "would touch")
    return [(path, verb) for path, verb in verbs.items() if not _inside_any(path, verbs)]


def _inside_any(path: str, others: Iterable[str]) -> bool:
    parents = {str(parent) for parent in PurePath(path).parents}
    return any(other in parents for other in others)


def _walk(top: str, count: _Count, budget: _Budget) -> bool:
    """Count what is below a path without following links; False if the budget ran out first."""
    try:
        status = Path(top).lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        count.files += 1
        count.size += status.st_size
        return True
    folders = [top]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if not budget.spend():
                        return False
                    _add(entry, count, folders)
        except OSError:
            # We can't read this folder, and the call probably can't either; the rest is still worth showing.
            continue
    return True


def _add(entry: os.DirEntry[str], count: _Count, folders: list[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        count.folders += 1
        folders.append(entry.path)
        return
    count.files += 1
    count.size += entry.stat(follow_symlinks=False).st_size


def _amount(count: _Count, complete: bool) -> str:
    files = f"{count.files:,} {'file' if count.files == 1 else 'files'}"
    if not count.files and complete:
        return "no files" if not count.folders else f"no files, {count.folders:,} empty folders"
    return f"{files}, {size(count.size)}" if complete else f"more than {files}, {size(count.size)}"


def size(count: int) -> str:
    """Bytes in readable units: 38 MB, 4.1 KB."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    units = ["TB", "GB", "MB", "KB"]
    amount = count / 1000
    while amount >= 999.5 and len(units) > 1:
        units.pop()
        amount /= 1000
    return f"{amount:.1f} {units[-1]}" if amount < 9.95 else f"{amount:,.0f} {units[-1]}"
