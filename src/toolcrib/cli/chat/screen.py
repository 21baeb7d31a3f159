"""Prints the events of a run: finished blocks of the answer, finished calls with their diffs, and notices."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from toolcrib.agent.events import (
    AnyEvent,
    CallFinished,
    CallProgressed,
    CallStarted,
    Compressed,
    MessageAdded,
    Notified,
    ReasoningStreamed,
    RunEnded,
    RunResult,
    Steered,
    SubagentProgressed,
    TextStreamed,
    TurnStarted,
)
from toolcrib.cli.chat.frontend import Frontend
from toolcrib.cli.chat.status import RunningCall, Status
from toolcrib.cli.chat.symbols import Symbols, fitted, short_count, short_duration
from toolcrib.cli.output import cell_width, clean, one_line, plural
from toolcrib.core.messages import Image, Message
from toolcrib.core.types import JsonObject

MAX_DIFF_LINES = 60
MAX_OUTPUT_LINES = 20
MAX_ERROR_CHARS = 400
MIN_SUMMARY_COLUMNS = 12
WRAPPED = "Tool execution failed: "
"""The prefix of tool errors, which is meant for the model."""
_DIFF_KEYS = ("diff", "patch")
_TEXT_KEYS = ("output", "content", "text", "result")
_WORDS = {"ok": "", "error": "failed", "blocked": "blocked", "cancelled": "stopped", "timeout": "timed out"}
THINKING = "thinking"
ANSWERING = "answering"
MAX_ECHOED_LINES = 20


def finished_lines(call: RunningCall, event: CallFinished, columns: int, symbols: Symbols) -> list[RenderableType]:
    """Emoji, name, main argument, duration and outcome; an error that does not fit goes on the next line."""
    ok = event.status == "ok"
    sign = symbols.done if ok else symbols.failed
    time_taken = short_duration(event.duration_ms / 1000)
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
    # The person who stopped it knows why.
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
    """The diff in colour; cuts a long one."""
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
    """The first lines of a tool's output, indented."""
    lines = clean(output_of(text).replace("\r\n", "\n")).strip("\n").split("\n")
    shown = Text("\n".join(f"  {line}" for line in lines[:MAX_OUTPUT_LINES]), "dim")
    if len(lines) > MAX_OUTPUT_LINES:
        shown.append(f"\n  {symbols.ellipsis} {len(lines) - MAX_OUTPUT_LINES} more lines", "dim")
    return shown


class Screen:
    """Shows the runs of the agent and the messages of the chat."""

    def __init__(
        self, frontend: Frontend, status: Status, keep_images: Callable[[tuple[Image, ...]], list[str]]
    ) -> None:
        self.frontend = frontend
        self.status = status
        self.shows_reasoning = False
        self.shows_output = False
        """Whether to show each tool's output, because the model is too small to repeat it reliably."""
        self._keep_images = keep_images
        self._blocks = status.blocks
        self._has_streamed = False
        self._reasoning = ""
        self._has_thought = False
        self._last_answer = ""
        self._last_problem = ""
        self._after_answer = False

    # Messages of the chat

    def echo(self, text: str) -> None:
        """Show what the person entered, if the frontend does not keep it on screen."""
        if self.frontend.is_live:
            symbols = self.status.symbols
            rows = clean(text).strip("\n").split("\n")
            left_out = len(rows) - MAX_ECHOED_LINES
            if left_out > 0:
                rows = [*rows[:MAX_ECHOED_LINES], f"{symbols.ellipsis} {plural(left_out, 'more line')}"]
            self.frontend.show(Text(symbols.prompt + f"\n{symbols.more}".join(rows), "bold"), gap=True)

    def say(self, text: str, style: str = "", *, gap: bool = False) -> None:
        """Print a message of the chat."""
        self.frontend.show(Text(clean(text), style), gap=gap)

    def note(self, text: str) -> None:
        """Print a dim line."""
        self.say(text, "dim")

    def problem(self, text: str) -> None:
        """Print an error and how to fix it."""
        self.say(text, "red")

    # Events of the agent

    def handle(self, event: AnyEvent) -> None:
        """Show one event of a run."""
        match event:
            case TurnStarted():
                self._begin_turn()
            case TextStreamed():
                self._take_text(event.text)
            case ReasoningStreamed():
                self._take_reasoning(event.text)
            case MessageAdded():
                self._take_message(event.message)
            case CallStarted():
                self._finish_text()
                self.status.activity.call_started(event)
            case CallProgressed():
                self.status.activity.call_progressed(event.call_id, event.message)
            case CallFinished():
                self._show_call(event)
            case RunEnded():
                self._show_end(event.result)
            case _:
                self._show_remark(event)
        self.frontend.refresh()

    def _begin_turn(self) -> None:
        self._finish_text()
        self._has_streamed = False
        self._has_thought = False
        self.status.activity.begin(THINKING)

    def _take_text(self, text: str) -> None:
        self._fold_reasoning()
        self._has_streamed = True
        self.status.activity.begin(ANSWERING)
        for block in self._blocks.feed(_plain(text)):
            self._show_block(block)

    def _take_reasoning(self, text: str) -> None:
        self._reasoning += text
        self._has_thought = True
        self.status.activity.begin(THINKING)
        if self.shows_reasoning and "\n\n" in self._reasoning:
            done, _, self._reasoning = self._reasoning.rpartition("\n\n")
            self._show_thought(done)
        # The current line of the reasoning.
        self.status.activity.detail = one_line(self._reasoning.rstrip().rpartition("\n")[2])

    def _take_message(self, message: Message) -> None:
        if message.role != "assistant":
            return
        if message.reasoning and not (self._has_thought or self._has_streamed):
            self._reasoning = message.reasoning
        if message.text and not self._has_streamed:
            self._take_text(message.text)
        self._finish_text()
        if message.text:
            self._last_answer = message.text
        for path in self._keep_images(message.images):
            self.note(f"image saved: {path}")

    def _finish_text(self) -> None:
        self._fold_reasoning()
        for block in self._blocks.finish():
            self._show_block(block)

    def _show_block(self, block: str) -> None:
        self.frontend.show_answer(block)
        self._after_answer = True

    def _fold_reasoning(self) -> None:
        """The reasoning has ended: show it as one line, or in full if the person wants that."""
        thoughts, self._reasoning = self._reasoning.strip(), ""
        if not thoughts:
            return
        if self.shows_reasoning:
            self._show_thought(thoughts)
            return
        words = len(thoughts.split())
        head = f"thought ({plural(words, 'word')}): "
        room = self.frontend.columns - len(head) - 1
        self.note(head + fitted(one_line(thoughts), room, self.status.symbols.ellipsis))

    def _show_thought(self, thoughts: str) -> None:
        self.say(_plain(thoughts).strip(), "dim italic", gap=True)

    def _show_call(self, event: CallFinished) -> None:
        activity = self.status.activity
        call = activity.call_finished(event.call_id) or RunningCall(event.call_id, one_line(event.name), "", 0.0)
        symbols = self.status.symbols
        self.frontend.show(*finished_lines(call, event, self.frontend.columns, symbols), gap=self._after_answer)
        self._after_answer = False
        self._last_problem = event.error_message
        diff = diff_of(event.text)
        if diff:
            self.frontend.show(coloured_diff(diff, symbols))
        elif self.shows_output and event.status == "ok" and event.text.strip():
            self.frontend.show(shown_output(event.text, symbols))

    def _show_remark(self, event: AnyEvent) -> None:
        match event:
            case Notified(kind="restart"):
                self._blocks.discard()
                self._has_streamed, self._reasoning = False, ""
                self.note(event.message or "the partial answer is discarded")
            case Notified(kind="loading"):
                self.status.activity.begin(one_line(event.message))
            case Notified():
                self.note(event.message)
            case Compressed():
                saved = f"{short_count(event.tokens_before)} to {short_count(event.tokens_after)} tokens"
                self.note(f"{plural(event.messages, 'older message')} replaced by a summary: {saved}")
            case Steered():
                self.note(f"steered: {one_line(event.text)}")
            case SubagentProgressed():
                self.status.activity.subagent_progressed(event)
                if event.state not in ("started", "working"):
                    self.note(f"subagent {event.state}: {one_line(event.goal)}")

    def _show_end(self, result: RunResult) -> None:
        self._finish_text()
        if result.answer.strip() and result.answer != self._last_answer:
            # A plugin has changed it.
            self._take_text(result.answer)
            self._finish_text()
        self.status.activity.end()
        if result.outcome == "interrupted":
            self.say("stopped; the session keeps what was done so far", "yellow", gap=self._after_answer)
        elif result.problem and result.problem != self._last_problem:
            self.problem(result.problem)
        self._has_streamed = False
        self._last_answer = self._last_problem = ""
        self._after_answer = False


def _plain(text: str) -> str:
    return clean(text.replace("\r", ""))
