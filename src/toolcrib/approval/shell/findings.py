"""Collects what was found in one command line, and counts the work that it took."""

from __future__ import annotations

from msgspec.structs import replace

from toolcrib.approval.shell.model import MAX_STEPS, UNKNOWN, Finding, NotUnderstood, Severity
from toolcrib.approval.shell.rules.table import DANGERS
from toolcrib.approval.shell.runner import Site


class Findings:
    """The findings of one command line, each reported once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.reported: set[Finding] = set()
        self.not_understood: list[str] = []
        self.steps = 0
        self.source = ""
        self.workspace = "//"
        self.site: Site | None = None

    def report(
        self, key: str, reason: str, site: Site, *, severity: Severity = "ask", paths: tuple[str, ...] = ()
    ) -> None:
        danger = DANGERS[key]
        finding = Finding(
            rule=key,
            description=danger.description,
            severity=severity,
            subcommand=site.text[:500],
            span=site.span,
            paths=tuple(path.replace(UNKNOWN, "…") for path in paths),
            scope=self.scope(danger.scope, paths),
            reason=reason,
        )
        if finding not in self.reported:
            self.reported.add(finding)
            self.findings.append(finding)

    def scope(self, usual: str, paths: tuple[str, ...]) -> str:
        """What a grant would cover: the workspace where every path is known to lie in it, else something wider."""
        if usual != "inside the workspace":
            return usual
        if not paths or any(UNKNOWN in path for path in paths):
            return "files that are only known at run time"
        inside = all(
            path.startswith(self.workspace) if path.startswith("/") else not path.startswith("..") for path in paths
        )
        return usual if inside else "outside the workspace"

    def whole_site(self) -> Site:
        return self.site or Site(self.source.strip(), (0, len(self.source)))

    def soften(self, first: int) -> None:
        """Turn blocks into questions for code that is only defined."""
        for number in range(first, len(self.findings)):
            if self.findings[number].severity == "block":
                # Whoever runs the same code later still gets the block.
                self.reported.discard(self.findings[number])
                self.findings[number] = replace(self.findings[number], severity="ask")

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise NotUnderstood("the command line holds too many commands")
