"""Prints the events of a run: finished blocks of the answer, finished calls with their diffs, and notices.

Between runs it prints what background processes report, and which tool files were reloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rich.text import Text

from toolcrib.agent.events import (
    AnyEvent,
    CallFinished,
    CallOutput,
    CallProgressed,
    CallStarted,
    Compressed,
    MessageAdded,
    ModelProgressed,
    Notified,
    ReasoningStreamed,
    RunEnded,
    RunResult,
    RunStarted,
    Steered,
    SteeringDropped,
    SubagentProgressed,
    TextStreamed,
    TurnStarted,
)
from toolcrib.agent.host import AgentHost
from toolcrib.cli.chat.calls import (
    CallHandle,
    CallHistory,
    coloured_diff,
    diff_of,
    finished_lines,
    is_command,
    latest_lines,
    shown_output,
)
from toolcrib.cli.chat.frontend import Frontend
from toolcrib.cli.chat.status import PlanItem, RunningCall, Status
from toolcrib.cli.chat.symbols import fitted, short_count
from toolcrib.cli.output import clean, one_line, plural
from toolcrib.core.messages import Image, Message
from toolcrib.processes.events import ProcessEvent
from toolcrib.registry.reload import ReloadOutcome, ToolFolderWatcher

READER = "chat"
SHOWN_EVENT_LINES = 5
THINKING = "thinking"
ANSWERING = "answering"
PLAN_TOOL = "todo"
MAX_ECHOED_LINES = 20


class Screen:
    """Shows the runs of the agent and the messages of the chat."""

    def __init__(
        self, frontend: Frontend, status: Status, keep_images: Callable[[tuple[Image, ...]], list[str]]
    ) -> None:
        self.frontend = frontend
        self.status = status
        self.shows_reasoning = False
        self.shows_output = False
        """Whether to show the output of every tool, because the model is too small to repeat it reliably."""
        self.calls = CallHistory(lambda _session, _call: "")
        self.plan: Callable[[], list[PlanItem]] = list
        """The agent's plan as it is now."""
        self._session_id = ""
        self._retry = ""
        """The problem that the current request is retried after."""
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
            case RunStarted():
                self._session_id = event.session_id
            case TurnStarted():
                self._begin_turn()
            case TextStreamed():
                self._take_text(event.text)
            case ReasoningStreamed():
                self._take_reasoning(event.text)
            case ModelProgressed():
                self.status.activity.begin(one_line(event.message))
            case MessageAdded():
                self._take_message(event.message)
            case CallStarted():
                self._finish_text()
                self.status.activity.call_started(event)
            case CallOutput():
                self.status.activity.call_printed(event.call_id, event.text, event.lines)
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
        self._retry = ""
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
        if event.edited:
            call.summary = f"{one_line(event.edited)} (edited)"
        self.frontend.show(*finished_lines(call, event, self.frontend.columns, symbols), gap=self._after_answer)
        self._after_answer = False
        self._last_problem = event.error_message
        number = self.calls.add(self._session_id, call, event.text)
        diff = diff_of(event.text)
        if diff:
            self.frontend.show(coloured_diff(diff, symbols))
        elif is_command(event.text):
            columns, count = self.frontend.columns, self.status.output_lines
            self.frontend.show(latest_lines(event.text, count, columns, symbols, number))
        elif event.name == PLAN_TOOL and event.status == "ok":
            self._show_plan()
        elif self.shows_output and event.status == "ok" and event.text.strip():
            self.frontend.show(shown_output(event.text, symbols))

    def _show_plan(self) -> None:
        """Draw the plan if it changed; the status keeps a short form of it."""
        before, self.status.plan = self.status.plan, self.plan()
        if self.status.plan and self.status.plan != before:
            self.frontend.show(Text("\n".join(self.status.plan_lines(self.frontend.columns))))

    def expand(self, handle: CallHandle) -> None:
        """Print the whole output or diff of a call."""
        self.frontend.show(*self.calls.expanded(handle, self.status.symbols), gap=True)

    def _show_remark(self, event: AnyEvent) -> None:
        match event:
            case Notified(kind="restart"):
                self._blocks.discard()
                self._has_streamed, self._reasoning = False, ""
                self.note(event.message or "the partial answer is discarded")
            case Notified(kind="retry"):
                self._retry_once_more(event.message)
            case Notified(kind="loading"):
                self.status.activity.begin(one_line(event.message))
            case Notified():
                self.note(event.message)
            case Compressed():
                saved = f"{short_count(event.tokens_before)} to {short_count(event.tokens_after)} tokens"
                self.note(f"{plural(event.messages, 'older message')} replaced by a summary: {saved}")
            case Steered():
                self.note(f"steered: {one_line(event.text)}")
            case SteeringDropped():
                self.not_delivered(event.text)
            case SubagentProgressed():
                self.status.activity.subagent_progressed(event)
                if event.state not in ("started", "working"):
                    self.note(f"subagent {event.state}: {one_line(event.goal)}")

    def not_delivered(self, text: str) -> None:
        """What the person wanted to tell the agent came too late."""
        self.say(f"Not delivered, because the agent had stopped: {one_line(text)}", "yellow")
        self.note("Ask it again if it still matters.")

    def _retry_once_more(self, message: str) -> None:
        """One line that counts: in place where the display can be redrawn, else only the first."""
        if self.frontend.is_live:
            self.status.activity.begin(one_line(message))
        elif not self._retry:
            self.note(message)
        self._retry = message

    def _show_end(self, result: RunResult) -> None:
        self._retry = ""
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


class Notifications:
    """Prints notifications while the chat is idle; holds them back while the agent works."""

    def __init__(self, host: AgentHost, screen: Screen, idle: asyncio.Event) -> None:
        self._host = host
        self._screen = screen
        self._idle = idle
        self._tools = ToolFolderWatcher(host.settings.home.tools_dir, host.runtime.registry)
        self._changed = asyncio.Event()

    def session_changed(self) -> None:
        """The chat has switched to another session."""
        self._changed.set()

    async def before_turn(self) -> None:
        """Reload the tool files that changed since the last turn."""
        # Importing a tool file may block.
        for one in await asyncio.to_thread(self._tools.refresh):
            for line in reload_lines(one):
                self._screen.note(line)
        self._changed.set()

    async def watch(self, session_id: Callable[[], str]) -> None:
        """Print the events of the session's background processes until cancelled."""
        while True:
            self._changed.clear()
            if not self._host.runtime.has_terminal:
                # No process can have started before the first turn.
                await self._changed.wait()
                await self._idle.wait()
                continue
            await self._tell(session_id())

    async def _tell(self, session: str) -> None:
        processes = self._host.runtime.terminal.processes
        waiting = asyncio.ensure_future(processes.next_events(session, READER))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([waiting, changed], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return
            events = waiting.result()
            await self._idle.wait()
            for event in events:
                for line in event_lines(event):
                    self._screen.note(line)
            await processes.acknowledge(session, READER, events)
        finally:
            waiting.cancel()
            changed.cancel()
            await asyncio.gather(waiting, changed, return_exceptions=True)


def event_lines(event: ProcessEvent) -> list[str]:
    """An event as text, with the last lines of its output."""
    head, *output = event.describe().splitlines()
    shown = [line for line in output if line.strip()][-SHOWN_EVENT_LINES:]
    return [one_line(head), *(f"  {one_line(line)}" for line in shown)]


def reload_lines(one: ReloadOutcome) -> list[str]:
    """The result of reloading a tool file."""
    if one.problem:
        return [f"tool file {one.path.name} was not reloaded: {one.problem}"]
    lines = [f"tool {name} reloaded" for name in one.tools_added]
    return lines + [f"tool {name} removed" for name in one.tools_removed]
