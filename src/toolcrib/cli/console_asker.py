"""Puts questions of tools to the person at the terminal, for commands that are no chat."""

from __future__ import annotations

import shutil
from textwrap import wrap

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.cli.output import one_line, person_present
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.mcp.client.questions import NO_ANSWER


class ConsoleAsker:
    """Asks on stderr, one question at a time, in turn with those of the gate."""

    def __init__(self, console: ConsoleApprover) -> None:
        self._console = console

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        """What the person says; one of the choices where he picks one, else his own words."""
        if not person_present():
            raise UsageError("nobody can answer here, because there is no terminal to ask at")
        rows = [question, *(f"  {number}. {one_line(choice)}" for number, choice in enumerate(choices, 1))]
        said = ((await self._console.ask_line("\n".join([*_folded(rows), "> "]))) or NO_ANSWER).strip()
        if said.isascii() and said.isdigit() and 1 <= int(said) <= len(choices):
            return choices[int(said) - 1]
        return next((choice for choice in choices if choice.lower() == said.lower()), said)


def _folded(rows: list[str]) -> list[str]:
    """The rows in lines as wide as the terminal, broken between words."""
    columns = shutil.get_terminal_size().columns
    lines = [line for row in rows for line in row.splitlines() or [""]]
    return [part for line in lines for part in wrap(line, columns, drop_whitespace=True) or [""]]
