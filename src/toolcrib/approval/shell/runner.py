"""The port through which command handlers ask the evaluator to look further."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from toolcrib.approval.shell.model import Data, ExpandedWord, Severity
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.state import State


class Site(msgspec.Struct, frozen=True):
    """The location of a command: its text and its span in the original command line."""

    text: str
    span: tuple[int, int]


class Runner(Protocol):
    hooks: set[tuple[str, str]]
    """The variables that are run as code, with the values already judged."""

    def invoke(self, words: list[ExpandedWord], state: State, stdin: Data | None, site: Site) -> Data:
        """Judge one command given as words; returns what it prints."""

    def run_text(self, text: str, state: State, stdin: Data | None, site: Site) -> Data:
        """Judge a shell script given as text."""

    def feed(self, path: str, data: Data, state: State) -> Data:
        """Judge the script in `>( … )` with what is written to it; returns what it prints."""

    def define_alias(self, name: str, text: str, site: Site) -> None:
        """Remember an alias; it is judged at the end unless something calls it first."""

    def spend(self, steps: int) -> None:
        """Count work beyond judging one command; raises NotUnderstood when the budget is used up.

        A step takes about 50 microseconds.
        """

    def report(
        self, key: str, reason: str, site: Site, *, severity: Severity = "ask", paths: tuple[str, ...] = ()
    ) -> None:
        """Report a finding of one danger class."""


Handler = Callable[[Runner, CommandCall, Site], Data | None]
"""Judges one command; returns what it prints, or None if that is not known."""
