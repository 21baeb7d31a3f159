"""What of a run is printed, and when: finished blocks of the answer, finished calls, and what one has to know."""

from __future__ import annotations

from collections.abc import Callable

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
from toolcrib.cli.chat.call_lines import coloured_diff, diff_of, finished_lines, shown_output
from toolcrib.cli.chat.front import Front
from toolcrib.cli.chat.spinner import RunningCall
from toolcrib.cli.chat.status import Status
from toolcrib.cli.chat.symbols import count_in_words, fitted
from toolcrib.cli.output import clean, one_line, plural
from toolcrib.core.messages import Image, Message

THINKING = "thinking"
ANSWERING = "answering"
MAX_ECHOED_LINES = 20


class Screen:
    """Shows one run after another."""

    def __init__(self, front: Front, status: Status, keep_images: Callable[[tuple[Image, ...]], list[str]]) -> None:
        self.front = front
        self.status = status
        self.shows_reasoning = False
        self.shows_output = False
        """Each tool's output is shown, because the model is too small to be trusted with retelling it."""
        self._keep_images = keep_images
        self._blocks = status.blocks
        self._has_streamed = False
        self._reasoning = ""
        self._has_thought = False
        self._last_answer = ""
        self._last_problem = ""
        self._after_answer = False

    # What the chat says itself

    def echo(self, text: str) -> None:
        """What the person entered, where the terminal does not keep it."""
        if self.front.is_live:
            symbols = self.status.symbols
            rows = clean(text).strip("\n").split("\n")
            left_out = len(rows) - MAX_ECHOED_LINES
            if left_out > 0:
                rows = [*rows[:MAX_ECHOED_LINES], f"{symbols.ellipsis} {plural(left_out, 'more line')}"]
            self.front.show(Text(symbols.prompt + f"\n{symbols.more}".join(rows), "bold"), gap=True)

    def say(self, text: str, style: str = "", *, gap: bool = False) -> None:
        """A sentence of the chat's own."""
        self.front.show(Text(clean(text), style), gap=gap)

    def note(self, text: str) -> None:
        """One dim line."""
        self.say(text, "dim")

    def problem(self, text: str) -> None:
        """What went wrong and what to do."""
        self.say(text, "red")

    # What the agent does

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
        self.front.refresh()

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
        # The line that is being thought, as far as there is room for it.
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
        self.front.show_answer(block)
        self._after_answer = True

    def _fold_reasoning(self) -> None:
        """Thoughts are over: all that remains of them is a line, unless the person wants to read them."""
        thoughts, self._reasoning = self._reasoning.strip(), ""
        if not thoughts:
            return
        if self.shows_reasoning:
            self._show_thought(thoughts)
            return
        words = len(thoughts.split())
        head = f"thought ({plural(words, 'word')}): "
        room = self.front.columns - len(head) - 1
        self.note(head + fitted(one_line(thoughts), room, self.status.symbols.ellipsis))

    def _show_thought(self, thoughts: str) -> None:
        self.say(_plain(thoughts).strip(), "dim italic", gap=True)

    def _show_call(self, event: CallFinished) -> None:
        activity = self.status.activity
        call = activity.call_finished(event.call_id) or RunningCall(event.call_id, one_line(event.name), "", 0.0)
        symbols = self.status.symbols
        self.front.show(*finished_lines(call, event, self.front.columns, symbols), gap=self._after_answer)
        self._after_answer = False
        self._last_problem = event.error_message
        diff = diff_of(event.text)
        if diff:
            self.front.show(coloured_diff(diff, symbols))
        elif self.shows_output and event.status == "ok" and event.text.strip():
            self.front.show(shown_output(event.text, symbols))

    def _show_remark(self, event: AnyEvent) -> None:
        match event:
            case Notified(kind="restart"):
                self._blocks.discard()
                self._has_streamed, self._reasoning = False, ""
                self.note(event.message or "the answer begins anew")
            case Notified(kind="loading"):
                self.status.activity.begin(one_line(event.message))
            case Notified():
                self.note(event.message)
            case Compressed():
                saved = f"{count_in_words(event.tokens_before)} to {count_in_words(event.tokens_after)} tokens"
                self.note(f"{plural(event.messages, 'older message')} replaced by a summary: {saved}")
            case Steered():
                self.note(f"heard: {one_line(event.text)}")
            case SubagentProgressed():
                self.status.activity.helper_progressed(event)
                if event.state not in ("started", "working"):
                    self.note(f"helper {event.state}: {one_line(event.goal)}")

    def _show_end(self, result: RunResult) -> None:
        self._finish_text()
        if result.answer.strip() and result.answer != self._last_answer:
            # A plugin has reworded it.
            self._take_text(result.answer)
            self._finish_text()
        self.status.activity.end()
        if result.outcome == "interrupted":
            self.say("stopped; what was done so far stays in the session", "yellow", gap=self._after_answer)
        elif result.problem and result.problem != self._last_problem:
            self.problem(result.problem)
        self._has_streamed = False
        self._last_answer = self._last_problem = ""
        self._after_answer = False


def _plain(text: str) -> str:
    return clean(text.replace("\r", ""))
