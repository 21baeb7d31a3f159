"""Approvals, questions and progress on the console, for commands outside the chat."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import TextIO

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.approval.approvers.question import wants_colour
from toolcrib.approval.grants import suggest
from toolcrib.cli.output import is_interactive, one_line
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.context import NO_ANSWER, ToolContext
from toolcrib.core.errors import UsageError

SECONDS_BETWEEN_LINES = 1.0


def console_approver(settings: Settings | None = None) -> ConsoleApprover:
    """An approver that asks on stderr, because stdout carries only results; without a terminal it denies."""
    return ConsoleApprover(
        sys.stdin,
        sys.stderr,
        timeout_seconds=(settings or load_settings()).approvals.timeout,
        colour=wants_colour(environment()),
        written=suggest,
        edit=lambda command: edit_command(command, sys.stderr),
    )


async def edit_command(command: str, terminal: TextIO) -> str | None:
    """The command as the person changed it at the terminal; None if they gave up."""
    # Only this needs an editor of lines, which takes a while to import.
    from toolcrib.cli.chat.terminal import edit_line  # noqa: PLC0415

    return await edit_line(command, terminal)


class ConsoleAsker:
    """Asks a tool's questions on stderr, one at a time, and never during an approval."""

    def __init__(self, console: ConsoleApprover) -> None:
        self._console = console

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        """The person's answer: one of the choices, or free text."""
        if not is_interactive():
            raise UsageError("nobody can answer: there is no terminal to ask at")
        rows = [question, *(f"  {number}. {one_line(choice)}" for number, choice in enumerate(choices, 1))]
        answer = ((await self._console.ask_line("\n".join([*_wrapped(rows), "> "]))) or NO_ANSWER).strip()
        return chosen(answer, choices)


def chosen(answer: str, choices: Sequence[str]) -> str:
    """The choice that an answer names by its number or in its words; the answer itself if it names none."""
    # Python refuses to read numbers with thousands of digits.
    is_number = answer.isascii() and answer.isdigit() and len(answer) < 10
    if is_number and 1 <= int(answer) <= len(choices):
        return choices[int(answer) - 1]
    said = answer.lower()
    # "yes" and "no" name the first choice that begins with them.
    word = {"y": "yes", "yes": "yes", "n": "no", "no": "no"}.get(said, "")
    begun = (choice for choice in choices if word and _first_word(choice) == word)
    return next((choice for choice in choices if choice.lower() == said), next(begun, answer))


def _first_word(text: str) -> str:
    return text.lower().replace(",", " ").partition(" ")[0]


def _wrapped(rows: list[str]) -> list[str]:
    """The rows wrapped to the width of the terminal."""
    columns = shutil.get_terminal_size().columns
    lines = [line for row in rows for line in row.splitlines() or [""]]
    return [part for line in lines for part in wrap(line, columns, drop_whitespace=True) or [""]]


class ProgressLines:
    """Prints a call's progress, at most one line per second: a tool may report a thousand times."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._next = 0.0

    def __call__(self, text: str) -> None:
        now = self._clock()
        if text.strip() and now >= self._next:
            self._next = now + SECONDS_BETWEEN_LINES
            self._write("  " + one_line(text))
