"""The findings of the shell analyser: what one is, and how they are collected for a command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from toolcrib.approval.shell.model import UNKNOWN, Severity, VerdictName

if TYPE_CHECKING:
    from toolcrib.approval.shell.rules.base import DangerClass
    from toolcrib.approval.shell.runner import CommandLocation


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One danger in a command line, tied to the sub-command that causes it."""

    rule: str
    description: str
    severity: Severity
    subcommand: str
    span: tuple[int, int]
    paths: tuple[str, ...]
    scope: str
    reason: str


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a whole command line, the findings behind it, and what could not be understood."""

    verdict: VerdictName
    findings: tuple[Finding, ...] = ()
    not_understood: tuple[str, ...] = ()


class FindingLog:
    """Collects the findings of one command line, each once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.workspace = "//"
        """The workspace folder, with a trailing slash."""
        self._reported: set[Finding] = set()

    def report(
        self, danger: DangerClass, reason: str, site: CommandLocation, *, severity: Severity, paths: tuple[str, ...]
    ) -> None:
        finding = Finding(
            rule=danger.key,
            description=danger.description,
            severity=severity,
            subcommand=site.text[:500],
            span=site.span,
            paths=tuple(path.replace(UNKNOWN, "…") for path in paths),
            scope=self._scope(danger.scope, paths),
            reason=reason,
        )
        if finding not in self._reported:
            self._reported.add(finding)
            self.findings.append(finding)

    @contextmanager
    def only_prepared(self) -> Iterator[None]:
        """Inside, turn blocks into questions: the code is only defined, none of it has run yet."""
        before = len(self.findings)
        try:
            yield
        finally:
            for number in range(before, len(self.findings)):
                if self.findings[number].severity == "block":
                    # Running the same code later is still blocked.
                    self._reported.discard(self.findings[number])
                    self.findings[number] = replace(self.findings[number], severity="ask")

    @contextmanager
    def aside(self) -> Iterator[list[Finding]]:
        """Inside, findings go to the list that this gives, and nowhere else."""
        before, reported = self.findings, self._reported
        self.findings, self._reported = [], set()
        try:
            yield self.findings
        finally:
            self.findings, self._reported = before, reported

    @contextmanager
    def only_new_rules(self) -> Iterator[None]:
        """Inside, drop findings of rules that already have one."""
        known = {finding.rule for finding in self.findings}
        before = len(self.findings)
        yield
        self.findings[before:] = [each for each in self.findings[before:] if each.rule not in known]

    def _scope(self, usual: str, paths: tuple[str, ...]) -> str:
        """What a grant would cover: the workspace if every path is known to be in it, otherwise something wider."""
        if usual != "inside the workspace":
            return usual
        if not paths or any(UNKNOWN in path for path in paths):
            return "files that are only known at run time"
        inside = all(
            path.startswith(self.workspace) if path.startswith("/") else not path.startswith("..") for path in paths
        )
        return usual if inside else "outside the workspace"
