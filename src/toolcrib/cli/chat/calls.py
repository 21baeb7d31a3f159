"""Finished calls: their line on the screen, the output or diff below it, and the full output on request."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from toolcrib.agent.events import CallFinished
from toolcrib.agent.tool_calls import summary_of
from toolcrib.cli.chat.status import RunningCall
from toolcrib.cli.chat.symbols import Symbols, fitted, short_duration
from toolcrib.cli.output import cell_width, clean, one_line, plural
from toolcrib.core.approvals import USER_DENIED
from toolcrib.core.messages import Message
from toolcrib.core.types import JsonObject, ResultStatus

MAX_DIFF_LINES = 60
MAX_OUTPUT_LINES = 20
MAX_EXPANDED_LINES = 2_000
MAX_EXPANDED_BYTES = 1_000_000
MAX_HANDLES = 1_000
MAX_ERROR_CHARS = 400
MIN_SUMMARY_COLUMNS = 12
CHUNK_BYTES = 1 << 20
WRAPPED = "Tool execution failed: "
"""The prefix of tool errors, which is meant for the model."""
_DIFF_KEYS = ("diff", "patch")
_TEXT_KEYS = ("output", "content", "text", "result")
_WORDS = {"ok": "", "error": "failed", "blocked": "blocked", "cancelled": "interrupted", "timeout": "timed out"}
_EXIT_CODE = re.compile(r'"exit_code": (-?\d+)')
_NOT_AN_ERROR = "(not an error)"
_INTERRUPTED, _TIMED_OUT = "[Command interrupted]", "[Command timed out after "
_STYLES = {"done": "green", "failed": "red", "stopped": "yellow"}


class CallOutcome(Struct, frozen=True):
    """How a call ended, for the person: a command that failed is no success, although its tool worked."""

    kind: Literal["done", "failed", "stopped"]
    words: str = ""

    @classmethod
    def of(cls, status: ResultStatus, text: str) -> CallOutcome:
        if status == "cancelled":
            return cls("stopped", _WORDS[status])
        if status == "blocked" and USER_DENIED in text:
            return cls("failed", "denied")
        if status != "ok":
            return cls("failed", _WORDS[status])
        result = _object(text)
        output = result.get("output")
        last = output.rpartition("\n")[2] if isinstance(output, str) else ""
        if last == _INTERRUPTED:
            return cls("stopped", "interrupted")
        if last.startswith(_TIMED_OUT):
            return cls("failed", "timed out")
        code = _exit_code(result, text)
        if not code:
            return cls("done")
        meaning = str(result.get("exit_code_meaning") or "")
        if _NOT_AN_ERROR in meaning:
            return cls("done", f"exit {code}, {meaning.replace(_NOT_AN_ERROR, '').strip()}")
        return cls("failed", f"exit {code}" if code > 0 else "failed")

    def sign(self, symbols: Symbols) -> str:
        return {"done": symbols.done, "failed": symbols.failed, "stopped": symbols.stopped}[self.kind]


def _exit_code(result: JsonObject, text: str) -> int:
    if "exit_code" in result:
        return result["exit_code"] if isinstance(result["exit_code"], int) else 0
    # A result that was too long for the model is a preview, which is no JSON any more.
    found = _EXIT_CODE.search(text) if text.startswith('{"output": ') and not result else None
    return int(found[1]) if found else 0


def finished_lines(call: RunningCall, event: CallFinished, columns: int, symbols: Symbols) -> list[RenderableType]:
    """Emoji, name, main argument, outcome and duration; an error that does not fit goes on the next line."""
    outcome = CallOutcome.of(event.status, event.text)
    sign = outcome.sign(symbols)
    amount = _amount(event.text, symbols) if outcome.kind == "done" else ""
    time_taken = symbols.dot.join(part for part in (amount, short_duration(event.duration_ms / 1000)) if part)
    ending = f"{symbols.dot}{time_taken}" + (f"{symbols.dot}{outcome.words}" if outcome.words else "")
    room = columns - cell_width(f"{sign} {call.label}") - cell_width(ending) - 3
    summary = fitted(call.summary, max(room, MIN_SUMMARY_COLUMNS), symbols.ellipsis)
    style = _STYLES[outcome.kind]
    line = Text.assemble(
        (sign, style),
        (f" {call.label}", "bold"),
        f"  {summary}" if summary else "",
        (symbols.dot + time_taken, "dim"),
        (f"{symbols.dot}{outcome.words}" if outcome.words else "", "dim" if outcome.kind == "done" else style),
    )
    # The person who stopped or denied it knows why, and the output of a command says why it failed.
    is_known = event.status in ("ok", "cancelled") or outcome.words == "denied"
    problem = "" if is_known else _problem(event)
    if not problem and outcome.words == "failed":
        problem = one_line(str(_object(event.text).get("error") or ""))[:MAX_ERROR_CHARS]
    if not problem:
        return [line]
    if cell_width(line.plain) + cell_width(problem) + 2 <= columns:
        return [line.append(f": {problem}", "red")]
    return [line, Padding(Text(problem, "red"), (0, 0, 0, 4))]


def _amount(text: str, symbols: Symbols) -> str:
    """How much a file tool read or changed."""
    diff = diff_of(text)
    if diff:
        rows = [row for row in diff.splitlines() if not row.startswith(("+++", "---"))]
        added, removed = (sum(row.startswith(sign) for row in rows) for sign in "+-")
        return f"+{added} {symbols.minus}{removed}"
    result = _object(text)
    lines = result.get("lines")
    return plural(lines, "line") if isinstance(lines, int) and "content" in result else ""


def _problem(event: CallFinished) -> str:
    first = next((row for row in (event.error_message or event.text).splitlines() if row.strip()), "")
    return one_line(first).removeprefix(WRAPPED)[:MAX_ERROR_CHARS]


def diff_of(text: str) -> str:
    """The unified diff in a tool's result; empty if there is none."""
    found = _member(_object(text), _DIFF_KEYS)
    return found if "@@" in found or found.startswith(("---", "diff ")) else ""


def output_of(text: str) -> str:
    """The output in a tool's result, without the JSON around it."""
    result = _object(text)
    if not result:
        return text
    found = _member(result, _TEXT_KEYS)
    return found or ("(no output)" if result.get("output") == "" else text)


def is_command(text: str) -> bool:
    """Whether a result is that of a command or a script, whose output people expect to see."""
    result = _object(text)
    return isinstance(result.get("output"), str) and ("exit_code" in result or "error" in result)


def _object(text: str) -> JsonObject:
    if not text.lstrip().startswith("{"):
        return {}
    try:
        result: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return result if isinstance(result, dict) else {}


def _member(result: JsonObject, keys: tuple[str, ...]) -> str:
    return next((result[key] for key in keys if isinstance(result.get(key), str) and result[key].strip()), "")


def coloured_diff(diff: str, symbols: Symbols, limit: int = MAX_DIFF_LINES) -> Text:
    """The diff in colour; cuts a long one."""
    lines = clean(diff.replace("\r\n", "\n")).rstrip("\n").split("\n")
    shown = Text()
    for line in lines[:limit]:
        shown.append(f"  {line}\n", _diff_style(line))
    if len(lines) > limit:
        shown.append(f"  {symbols.ellipsis} {len(lines) - limit} more lines (Ctrl-O)\n", "dim")
    shown.right_crop(1)
    return shown


def _diff_style(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "bold"
    if line.startswith("@@"):
        return "cyan"
    return {"+": "green", "-": "red"}.get(line[:1], "dim")


def shown_output(text: str, symbols: Symbols) -> Text:
    """The first lines of a tool's result, indented."""
    lines = _lines(output_of(text))
    shown = Text("\n".join(f"  {line}" for line in lines[:MAX_OUTPUT_LINES]), "dim")
    if len(lines) > MAX_OUTPUT_LINES:
        shown.append(f"\n  {symbols.ellipsis} {len(lines) - MAX_OUTPUT_LINES} more lines (Ctrl-O)", "dim")
    return shown


def latest_lines(text: str, count: int, columns: int, symbols: Symbols, number: int) -> Text:
    """The last lines of a command's output, with how many there are above them; nothing for no output."""
    result = _object(text)
    output = str(result.get("output") or "")
    for ending in (_INTERRUPTED, _TIMED_OUT):
        # The line of the call says that.
        head, _, last = output.rpartition("\n")
        output = head if last.startswith(ending) else output
    lines = _lines(output) if output.strip() else []
    saved = result.get("full_output")
    total = len(lines) if not isinstance(saved, str) else max(len(lines), count_lines(saved))
    shown = lines[-count:] if count else []
    rows = list(shown)
    if hidden := total - len(shown):
        noun = "line" if hidden == 1 else "lines"
        rows.insert(0, f"{symbols.ellipsis} {hidden:,} more {noun} (Ctrl-O, /show {number})")
    room = max(columns - 5, MIN_SUMMARY_COLUMNS)
    return Text("\n".join(f"  {symbols.bar} {fitted(row, room, symbols.ellipsis)}" for row in rows), "dim")


def _lines(text: str) -> list[str]:
    return clean(text.replace("\r\n", "\n")).strip("\n").expandtabs(4).split("\n")


def count_lines(path: str) -> int:
    """The lines of a file; 0 if it cannot be read."""
    count = 0
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                count += chunk.count(b"\n")
    except OSError:
        return 0
    return count


class CallHandle(Struct, frozen=True):
    """How to find a finished call again: its result is in the session, not in memory."""

    number: int
    session_id: str
    call_id: str
    head: str
    """Emoji, name and main argument."""


class CallHistory:
    """The finished calls of a chat, as handles. Only the latest result is in memory, until the next one."""

    def __init__(self, stored: Callable[[str, str], str]) -> None:
        """`stored` finds the text of a result by session and call id; empty if there is none."""
        self._stored = stored
        self._handles: deque[CallHandle] = deque(maxlen=MAX_HANDLES)
        self._count = 0
        self._latest_text = ""

    def add(self, session_id: str, call: RunningCall, text: str) -> int:
        """The number of the call, counted from 1."""
        self._count += 1
        self._handles.append(CallHandle(self._count, session_id, call.id, f"{call.label}  {call.summary}".rstrip()))
        self._latest_text = text
        return self._count

    def load(self, session_id: str, messages: Sequence[Message]) -> None:
        """Number the calls of a resumed session, so that they can be shown too."""
        for call in (call for message in messages for call in message.tool_calls):
            summary = one_line(summary_of(call.arguments))
            self.add(session_id, RunningCall(call.id, one_line(call.name), summary, 0.0), "")

    def latest(self, count: int) -> list[CallHandle]:
        return list(self._handles)[-count:]

    def find(self, number: int) -> CallHandle | None:
        """The call with this number; None if there is none, or if it was too long ago."""
        return next((one for one in self._handles if one.number == number), None)

    def text(self, handle: CallHandle) -> str:
        """The result of a call as the model got it; empty if it is gone."""
        if handle.number == self._count and self._latest_text:
            return self._latest_text
        return self._stored(handle.session_id, handle.call_id)

    def expanded(self, handle: CallHandle, symbols: Symbols) -> list[RenderableType]:
        """The call with all of its output or diff, up to a limit."""
        text = self.text(handle)
        head = Text(f"{handle.number}. {clean(handle.head)}", "bold")
        if not text:
            return [head, Text("  the result is no longer in this session", "dim")]
        diff = diff_of(text)
        if diff:
            return [head, coloured_diff(diff, symbols, MAX_EXPANDED_LINES)]
        saved = _object(text).get("full_output")
        lines, above, source = _all_lines(text, saved if isinstance(saved, str) else "")
        rows = [f"  {symbols.bar} {line}".rstrip() for line in lines]
        if above:
            where = f"; all of it is in {source}" if source else ""
            rows.insert(0, f"  {symbols.ellipsis} {above:,} earlier lines not shown{where}")
        return [head, Text("\n".join(rows), "dim")]


def _all_lines(text: str, saved: str) -> tuple[list[str], int, str]:
    """The last lines of an output, how many come before them, and the file that holds all of them."""
    if saved:
        total = count_lines(saved)
        lines = _lines(_end_of(saved))
        if total:
            shown = lines[-MAX_EXPANDED_LINES:]
            return shown, max(0, total - len(shown)), saved
    lines = _lines(output_of(text))
    shown = lines[-MAX_EXPANDED_LINES:]
    return shown, len(lines) - len(shown), ""


def _end_of(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_EXPANDED_BYTES))
            data = file.read()
    except OSError:
        return ""
    text = data.decode(errors="replace")
    return text.partition("\n")[2] if size > MAX_EXPANDED_BYTES else text
