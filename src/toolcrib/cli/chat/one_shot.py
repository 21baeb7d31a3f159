"""`toolcrib chat -q`: one question. The answer goes to stdout, progress to stderr; the exit code is the outcome."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import (
    AnyEvent,
    CallFinished,
    CallProgressed,
    CallStarted,
    Compressed,
    Notified,
    ReasoningStreamed,
    RunResult,
    SubagentProgressed,
    TextStreamed,
    TurnStarted,
)
from toolcrib.cli.chat.attachments import Attachment, compose, piped_text
from toolcrib.cli.chat.images import save_images
from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.chat.start import ask_to_trust, default_model_notice, open_agent, open_host
from toolcrib.cli.chat.symbols import symbols_for
from toolcrib.cli.console import ConsoleAsker, ProgressLines, console_approver
from toolcrib.cli.output import clean, error_line, is_interactive, note, one_line
from toolcrib.config.settings import Settings

SECOND_INTERRUPT = 130
BUDGET = "budget"
"""The kind of notice that the end of the run repeats."""


class ProgressPrinter:
    """Prints what the agent does, line by line."""

    def __init__(self, write: Callable[[str], None], *, outputs: Callable[[str], None] | None = None) -> None:
        self._write = write
        self._outputs = outputs
        """Gets the raw output of each tool, for models too small to repeat it reliably."""
        self._emoji = symbols_for(sys.stderr.encoding).emoji
        self._progress = ProgressLines(write)
        self._names: dict[str, str] = {}

    def on_event(self, event: AnyEvent) -> None:
        if isinstance(event, CallStarted):
            sign = f"{event.emoji} " if self._emoji else ""
            self._names[event.call.id] = event.shown_name
            self._write(one_line(f"{sign}{event.shown_name} {event.summary}"))
        elif isinstance(event, CallProgressed):
            self._progress(event.message)
        elif isinstance(event, CallFinished):
            self._finished(event)
        elif isinstance(event, Notified):
            if event.kind != BUDGET:
                self._write(one_line(event.message))
        elif isinstance(event, Compressed):
            self._write(f"context compressed: {event.messages} messages replaced by a summary")
        elif isinstance(event, SubagentProgressed):
            self._write("  " + one_line(f"{event.child_id} {event.state}: {event.what or event.goal}"))

    def _finished(self, event: CallFinished) -> None:
        if event.status != "ok":
            name = self._names.get(event.call_id, event.name)
            self._write("  " + one_line(f"{name}: {event.error_message or event.status}"))
        if self._outputs is not None:
            self._outputs(event.text)


class WaitingLine:
    """Shows on a terminal for how long the model has been working; not while tools run or a question is open."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._is_thinking = False
        self._is_shown = False

    def follow(self, event: AnyEvent) -> None:
        """A turn starts, or something that the model said ends it."""
        if isinstance(event, TurnStarted):
            self._is_thinking = True
        elif not isinstance(event, TextStreamed | ReasoningStreamed | Notified):
            self._is_thinking = False
        if not isinstance(event, TextStreamed | ReasoningStreamed):
            self.clear()

    async def tick(self) -> None:
        """Redraw the line every second until cancelled."""
        try:
            while True:
                await asyncio.sleep(1.0)
                if not self._is_thinking:
                    continue
                self._is_shown = True
                sys.stderr.write(f"\rthinking, {time.monotonic() - self._began:.0f} s; Ctrl-C stops\x1b[K")
                sys.stderr.flush()
        finally:
            self.clear()

    def clear(self) -> None:
        """Remove the line before something else is printed."""
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class ResultPrinter:
    """Prints results to stdout; if the reader is gone, stops the agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.problem: OSError | None = None

    def __call__(self, text: str) -> None:
        if self.problem is not None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            self.problem = error
            self._agent.interrupt()


async def answer_once(options: ChatOptions, settings: Settings) -> int:
    """Ask the agent one question; returns the exit code."""
    approver = console_approver(settings)
    asker = ConsoleAsker(approver) if is_interactive() else None
    piped = piped_text()
    if asker is not None and not options.quiet and not options.as_json:
        await ask_to_trust(options, settings, approver.ask_line)
    host = open_host(options, approver, asker, settings)
    try:
        agent = open_agent(host, options)
        try:
            if notice := default_model_notice(agent.provider, options, host):
                note(notice)
            for warning in agent.warnings:
                note(warning)
            result = await _run(agent, options, piped)
        finally:
            await agent.close()
        if not options.as_json:
            _print_end(agent, result, options)
        return result.exit_code
    finally:
        await host.close()


async def _run(agent: Agent, options: ChatOptions, piped: Attachment | None) -> RunResult:
    _stop_at_first_interrupt(agent, asyncio.get_running_loop())
    folder = Path(options.cwd) if options.cwd else None
    question = await compose(agent, options.query or "", folder, [piped] if piped else [])
    for line in question.notes:
        if not options.quiet or "not attached" in line:
            note(line)
    printer = ResultPrinter(agent)
    watch = _watcher(agent, options, printer)
    waiting = WaitingLine()

    def watch_on_terminal(event: AnyEvent) -> None:
        waiting.follow(event)
        watch(event)

    is_shown = sys.stderr.isatty() and not options.quiet and not options.as_json
    ticking = asyncio.create_task(waiting.tick()) if is_shown else None
    try:
        result = await agent.run(question.message, on_event=watch_on_terminal if is_shown else watch)
    finally:
        if ticking is not None:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
    if printer.problem is not None:
        raise printer.problem
    return result


def _watcher(agent: Agent, options: ChatOptions, printer: ResultPrinter) -> Callable[[AnyEvent], None]:
    if options.as_json:
        return lambda event: printer(msgspec.json.encode(event).decode() + "\n")
    write: Callable[[str], None] = (lambda _: None) if options.quiet else note
    if options.dry_run:
        return lambda event: _print_planned(event, printer, write)
    small = agent.provider.profile(agent.model).small
    return ProgressPrinter(write, outputs=(lambda text: printer(_command_output(text))) if small else None).on_event


def _print_planned(event: AnyEvent, printer: ResultPrinter, write: Callable[[str], None]) -> None:
    if isinstance(event, CallStarted):
        printer(clean(f"would call {event.call.name} {event.call.arguments}") + "\n")
    elif isinstance(event, Notified):
        write(one_line(event.message))


def _command_output(text: str) -> str:
    """The output of a command without the JSON around it; any other text unchanged."""
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        result = None
    is_command = isinstance(result, dict) and "exit_code" in result and isinstance(result.get("output"), str)
    return clean(result["output"] if is_command else text).rstrip("\n") + "\n"


def _print_end(agent: Agent, result: RunResult, options: ChatOptions) -> None:
    if result.answer:
        sys.stdout.write(clean(result.answer).rstrip("\n") + "\n")
        sys.stdout.flush()
    for path in save_images(result.images, agent.host.settings.home):
        sys.stdout.write(f"{path}\n")
    if result.problem:
        error_line(f"{result.problem}; resume with `toolcrib chat --resume {agent.session_id}`")
    elif options.dry_run and not result.answer and not options.quiet:
        note("Dry run: nothing was done.")


def _stop_at_first_interrupt(agent: Agent, loop: asyncio.AbstractEventLoop) -> None:
    """The first Ctrl-C stops the work and keeps the session; the second exits at once."""
    asked = 0

    def interrupted() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            loop.remove_signal_handler(signal.SIGINT)
            raise SystemExit(SECOND_INTERRUPT)
        agent.interrupt()

    loop.add_signal_handler(signal.SIGINT, interrupted)
