"""The port through which command handlers ask the evaluator to look further."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from toolcrib.approval.shell.model import ExpandedWord, Severity, StreamData
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.state import ShellState, Value


class CommandLocation(msgspec.Struct, frozen=True):
    """The location of a command: its text and its span in the original command line."""

    text: str
    span: tuple[int, int]


class Runner(Protocol):
    hooks: set[tuple[str, str]]
    """The variables that are run as code, with the values already judged."""

    def invoke(
        self, words: list[ExpandedWord], state: ShellState, stdin: StreamData | None, site: CommandLocation
    ) -> StreamData:
        """Judge one command given as words; returns what it prints."""

    def run_text(self, text: str, state: ShellState, stdin: StreamData | None, site: CommandLocation) -> StreamData:
        """Judge a shell script given as text."""

    def suspects(
        self,
        command: str | list[ExpandedWord],
        state: ShellState,
        site: CommandLocation,
        only: frozenset[str] = frozenset(),
    ) -> bool:
        """Whether a text or words would be dangerous if they ran as a command; reports nothing.

        `only` restricts it to some dangers, and to what is blocked.
        """

    def feed(self, path: str, data: StreamData, state: ShellState) -> StreamData:
        """Judge the script in `>( … )` with what is written to it; returns what it prints."""

    def define_alias(self, name: str, text: str, site: CommandLocation) -> None:
        """Remember an alias; it is judged at the end unless something calls it first."""

    def assign(self, name: str, value: Value, state: ShellState) -> None:
        """Set a variable by a name that may have a subscript, which the shell evaluates."""

    def calculate(self, expression: str, state: ShellState) -> None:
        """Judge the commands that the shell runs when it calculates an expression."""

    def spend(self, steps: int) -> None:
        """Count work beyond judging one command; raises NotUnderstood when the budget is used up.

        A step takes about 50 microseconds.
        """

    def report(
        self, key: str, reason: str, site: CommandLocation, *, severity: Severity = "ask", paths: tuple[str, ...] = ()
    ) -> None:
        """Report a finding of one danger class."""


Handler = Callable[[Runner, CommandCall, CommandLocation], StreamData | None]
"""Judges one command; returns what it prints, or None if that is not known."""
