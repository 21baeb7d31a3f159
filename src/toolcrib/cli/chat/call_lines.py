"""A finished call as people read it: one line, and the change that it made to a file."""

from __future__ import annotations

import json
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from toolcrib.agent.events import CallFinished
from toolcrib.cli.chat.spinner import RunningCall
from toolcrib.cli.chat.symbols import Symbols, fitted, seconds_in_words
from toolcrib.cli.output import cell_width, clean, one_line
from toolcrib.core.types import JsonObject

MAX_DIFF_LINES = 60
MAX_OUTPUT_LINES = 20
MAX_ERROR_CHARS = 400
MIN_SUMMARY_COLUMNS = 12
WRAPPED = "Tool execution failed: "
"""What the error of a tool begins with for the model, and a person need not read."""
_DIFF_KEYS = ("diff", "patch")
_TEXT_KEYS = ("output", "content", "text", "result")
_WORDS = {"ok": "", "error": "failed", "blocked": "blocked", "cancelled": "stopped", "timeout": "out of time"}


def finished_lines(call: RunningCall, event: CallFinished, columns: int, symbols: Symbols) -> list[RenderableType]:
    """Emoji, name, main argument, duration and how it ended; an error that does not fit follows below."""
    ok = event.status == "ok"
    sign = symbols.done if ok else symbols.failed
    time_taken = seconds_in_words(event.duration_ms / 1000)
    word = _WORDS[event.status]
    ending = f"{symbols.dot}{time_taken}" + (f"{symbols.dot}{word}" if word else "")
    head = f"{sign} {call.label}"
    room = columns - cell_width(head) - cell_width(ending) - 3
    summary = fitted(call.summary, max(room, MIN_SUMMARY_COLUMNS), symbols.ellipsis)
    line = Text.assemble(
        (sign, "green" if ok else "red"),
        (f" {call.label}", "bold"),
        f"  {summary}" if summary else "",
        (symbols.dot + time_taken, "dim"),
        (f"{symbols.dot}{word}" if word else "", "red"),
    )
    # Whoever stopped it knows why.
    problem = "" if ok or event.status == "cancelled" else _problem(event)
    if not problem:
        return [line]
    if cell_width(line.plain) + cell_width(problem) + 2 <= columns:
        return [line.append(f": {problem}", "red")]
    return [line, Padding(Text(problem, "red"), (0, 0, 0, 4))]


def _problem(event: CallFinished) -> str:
    first = next((row for row in (event.error_message or event.text).splitlines() if row.strip()), "")
    return one_line(first).removeprefix(WRAPPED)[:MAX_ERROR_CHARS]


def diff_of(text: str) -> str:
    """The unified diff in a tool's result; empty when there is none."""
    found = _member(_object(text), _DIFF_KEYS)
    return found if "@@" in found or found.startswith(("---", "diff ")) else ""


def output_of(text: str) -> str:
    """What a tool printed or found, without the JSON around it."""
    result = _object(text)
    if not result:
        return text
    found = _member(result, _TEXT_KEYS)
    return found or ("(no output)" if result.get("output") == "" else text)


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


def coloured_diff(diff: str, symbols: Symbols) -> Text:
    """A diff with its added and removed lines in colour; a long one is cut."""
    lines = clean(diff.replace("\r\n", "\n")).rstrip("\n").split("\n")
    shown = Text()
    for line in lines[:MAX_DIFF_LINES]:
        shown.append(f"  {line}\n", _diff_style(line))
    if len(lines) > MAX_DIFF_LINES:
        shown.append(f"  {symbols.ellipsis} {len(lines) - MAX_DIFF_LINES} more lines\n", "dim")
    shown.right_crop(1)
    return shown


def _diff_style(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "bold"
    if line.startswith("@@"):
        return "cyan"
    return {"+": "green", "-": "red"}.get(line[:1], "dim")


def shown_output(text: str, symbols: Symbols) -> Text:
    """The beginning of a tool's output, indented."""
    lines = clean(output_of(text).replace("\r\n", "\n")).strip("\n").split("\n")
    shown = Text("\n".join(f"  {line}" for line in lines[:MAX_OUTPUT_LINES]), "dim")
    if len(lines) > MAX_OUTPUT_LINES:
        shown.append(f"\n  {symbols.ellipsis} {len(lines) - MAX_OUTPUT_LINES} more lines", "dim")
    return shown
