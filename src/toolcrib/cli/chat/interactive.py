"""`toolcrib chat` without a question on the command line: the chat itself."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from rich.text import Text

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.approval.approvers.question import wants_colour
from toolcrib.approval.entries import suggest
from toolcrib.cli.chat.completion import ChatCompleter
from toolcrib.cli.chat.farewell import farewell, greeting, resumed, warnings
from toolcrib.cli.chat.front import Front
from toolcrib.cli.chat.images import save_images
from toolcrib.cli.chat.lines import LineFront
from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.chat.questions import ChatApprover, ChatAsker
from toolcrib.cli.chat.screen import Screen
from toolcrib.cli.chat.spinner import Activity
from toolcrib.cli.chat.start import DEFAULT_MODEL_LINE, is_default_model, open_agent, open_workshop
from toolcrib.cli.chat.status import Status
from toolcrib.cli.chat.stray_output import stray_output_to
from toolcrib.cli.chat.symbols import symbols_for
from toolcrib.cli.chat.talk import Talk
from toolcrib.cli.chat.terminal import TerminalFront
from toolcrib.cli.output import clean
from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings


async def run_interactive(options: ChatOptions, settings: Settings) -> int:
    """Talk with the person until he leaves; returns the exit code."""
    with ExitStack() as undo:
        return await _Opening(options, settings, undo).run()


class _Opening:
    """Puts a chat together, in the order in which the parts need each other."""

    def __init__(self, options: ChatOptions, settings: Settings, undo: ExitStack) -> None:
        self._options = options
        self._settings = settings
        self._colour = wants_colour(environment())
        symbols = symbols_for(sys.stdout.encoding or "")
        self._status = Status(symbols, Activity(symbols))
        self._talk: Talk | None = None
        self._terminal: TextIO = sys.stderr
        self._attended = sys.stdin.isatty()
        self._front = self._make_front(undo)
        home = self._settings.home
        self._screen = Screen(self._front, self._status, lambda images: save_images(images, home))

    def _make_front(self, undo: ExitStack) -> Front:
        if not (self._attended and sys.stdout.isatty() and environment().get("TERM", "dumb") not in ("", "dumb")):
            return LineFront(self._status)
        loop = asyncio.get_running_loop()

        def hand_over(line: str) -> None:
            loop.call_soon_threadsafe(self._show_stray, line)

        self._terminal = undo.enter_context(stray_output_to(hand_over))
        completer = ChatCompleter(lambda: self._talk, lambda: Path(self._talk.folder if self._talk else "."))
        return TerminalFront(
            self._terminal, self._status, completer, self._settings.home.chat_history_file, colour=self._colour
        )

    def _show_stray(self, line: str) -> None:
        if self._terminal.closed:
            sys.stderr.write(f"{clean(line)}\n")
        elif line.strip():
            self._front.show(Text(clean(line.rstrip()), "dim"))

    async def run(self) -> int:
        approver = ChatApprover(self._console_approver(), self._front, self._stop)
        asker = ChatAsker(self._front, self._status, attended=self._attended)
        host = open_workshop(self._options, approver, asker, self._settings)
        try:
            agent = open_agent(host, self._options)
            talk = self._talk = Talk(self._options, host, self._front, self._screen, asker, agent)
            self._greet(talk)
            try:
                await talk.run()
                rows = [] if self._options.quiet else await farewell(talk)
                if rows:
                    self._front.show(*rows, gap=True)
            finally:
                await talk.agent.close()
        finally:
            await host.close()
        return talk.exit_code

    def _greet(self, talk: Talk) -> None:
        if not self._options.quiet and self._attended:
            self._front.show(*greeting(talk.agent, talk.folder, self._status.symbols, self._front.columns))
        if is_default_model(talk.agent.provider, self._options, talk.host) and not self._options.quiet:
            self._screen.say(DEFAULT_MODEL_LINE, "yellow")
        if self._options.resume is not None:
            self._front.show(*resumed(talk.agent, self._status.symbols), gap=True)
        else:
            self._front.show(*warnings(talk.agent))

    def _stop(self) -> None:
        if self._talk is not None:
            self._talk.stop_work()

    def _console_approver(self) -> ConsoleApprover:
        return ConsoleApprover(
            sys.stdin,
            self._terminal,
            timeout_seconds=self._settings.approvals.timeout,
            colour=self._colour,
            written=suggest,
        )
