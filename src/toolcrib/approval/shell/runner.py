"""The port through which handlers of single commands ask the evaluator to look further."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from toolcrib.approval.shell.model import Data, ExpandedWord, Severity
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.state import State


class Site(msgspec.Struct, frozen=True):
    """Where a command stands: its text and its span in the original command line."""

    text: str
    span: tuple[int, int]


class Runner(Protocol):
    hooks: set[tuple[str, str]]
    """The variables that are run as code, with the values that were judged already."""

    def invoke(self, words: list[ExpandedWord], state: State, stdin: Data | None, site: Site) -> Data:
        """Judge one command given by its words; gives what it prints."""

    def run_text(self, text: str, state: State, stdin: Data | None, site: Site) -> Data:
        """Judge a shell script given as text."""

    def feed(self, path: str, data: Data, state: State) -> Data:
        """Judge the script behind `>( … )` with what is written to it; gives what it prints."""

    def define_alias(self, name: str, text: str, site: Site) -> None:
        """Remember an alias, which is judged at the end unless it is called before."""

    def spend(self, steps: int) -> None:
        """Count work beyond one look at a command; raises NotUnderstood when the command line is worth no more.

        A step stands for about 50 microseconds.
        """

    def report(
        self, key: str, reason: str, site: Site, *, severity: Severity = "ask", paths: tuple[str, ...] = ()
    ) -> None:
        """Add a finding of one class of danger."""


Handler = Callable[[Runner, CommandCall, Site], Data | None]
"""Looks into one command; gives what it prints, or None when nothing special is known about that."""
