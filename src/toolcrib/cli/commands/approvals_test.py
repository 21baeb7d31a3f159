"""`toolcrib approvals test`: the verdict on a command, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import click

from toolcrib.approval.approvers.escape import visible
from toolcrib.approval.approvers.smart import NoApprover
from toolcrib.approval.build import build_policy
from toolcrib.approval.calls import CommandReading
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.grants import Grant, suggest
from toolcrib.approval.options import GateOptions
from toolcrib.approval.policy import Action, Decision, Policy, decide
from toolcrib.approval.shell.findings import Finding
from toolcrib.cli.commands.approvals import REASONS, danger_as_json, describe_danger
from toolcrib.cli.output import print_json, print_line, print_pairs
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import ApprovalRequest, EntryPoint
from toolcrib.core.types import Effect, EffectKind, JsonObject
from toolcrib.environments.specs import ALIASES, BUILT_IN, isolates

EXIT_CODES = {"allow": 0, "ask": 1, "deny": 3}
"""2 means wrong usage, as in every command."""
# Where a person can be asked; the other entry points have only their policy.
ATTENDED = ("interactive", "gateway")
MEANINGS = {
    "allow": "it runs without approval",
    "ask": "it needs your approval",
    "deny": "it does not run, and you are not asked",
}


@click.command(name="test")
@click.argument("line", metavar="CMD")
@click.option(
    "--backend",
    default="local",
    show_default=True,
    type=click.Choice([*BUILT_IN, *ALIASES]),
    help="The backend it would run in.",
)
@click.option("--host-mounts", is_flag=True, help="The backend can reach folders on this machine.")
@click.option("--cwd", type=click.Path(file_okay=False, path_type=Path), help="The working directory.")
@click.option(
    "--entry-point",
    default="interactive",
    show_default=True,
    type=click.Choice(get_args(EntryPoint)),
    help="Where the call would come from.",
)
@click.option(
    "--effect",
    default="exec",
    show_default=True,
    type=click.Choice(get_args(EffectKind)),
    help="Judge CMD as the target of this effect: a path, an address or a record.",
)
@click.option("--tool", default="terminal", show_default=True, help="The tool that would be called.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def test_command(
    line: str,
    backend: str,
    host_mounts: bool,
    cwd: Path | None,
    entry_point: str,
    effect: str,
    tool: str,
    as_json: bool,
) -> int:
    """Show what would happen to a command, without running any of it.

    The verdict comes from the function that decides about real calls, with your settings and your permanent grants.
    Exit code 0: allowed; 1: needs approval; 3: denied or blocked.

    \b
    Examples:
      toolcrib approvals test 'rm -rf build'
      toolcrib approvals test 'rm -rf build' --entry-point cron
      toolcrib approvals test s3://backups/2026 --effect delete --tool bucket_delete

    --json prints an object with the keys command, verdict (allow, ask or deny), blocked, decided_by, reasons, dangers
    (those that are open or decided it), findings (everything the analyser found), grants (yours that cover them),
    suggest (what would always allow it) and not_understood.
    """
    settings = load_settings()
    folder = str((cwd or current_folder()).absolute())
    policy = _policy(settings, cast("EntryPoint", entry_point), backend, folder, isolated=not host_mounts)
    reading = read_command(line if effect == "exec" else "", cwd=folder, home=policy.home)
    action = Action(tool=tool, effects=(Effect(cast("EffectKind", effect), line),), cwd=folder)
    grants = [Grant(text) for text in settings.command_allowlist]
    decision = decide(policy, action, grants, read_command)
    asked_without = decide(policy, action, (), read_command)
    used = [
        grant.text for grant in grants if any(grant.covers(danger, action.command) for danger in asked_without.dangers)
    ]
    report = _report(line, decision, reading, used)
    if as_json:
        print_json(report)
    else:
        _print(report, decision, policy)
    return EXIT_CODES[decision.outcome]


def _policy(settings: Settings, entry_point: EntryPoint, backend: str, folder: str, *, isolated: bool) -> Policy:
    return build_policy(
        GateOptions(
            settings=settings,
            workspace=folder,
            entry_point=entry_point,
            # Stands in for the person; this command asks nobody.
            approver=NoApprover() if entry_point in ATTENDED else None,
            yolo=settings.yolo,
            backend=backend,
            isolated=isolated and isolates(backend),
        )
    )


def _report(line: str, decision: Decision, reading: CommandReading, used: list[str]) -> JsonObject:
    request = ApprovalRequest(id="", tool="terminal", command=line, dangers=decision.dangers)
    return {
        "command": line,
        "verdict": decision.outcome,
        "blocked": decision.decided_by == "block",
        "decided_by": decision.decided_by,
        "reasons": list(decision.reasons),
        "dangers": [danger_as_json(danger) for danger in decision.dangers],
        "findings": [_finding_as_json(finding) for finding in reading.assessment.findings],
        "grants": used,
        "suggest": list(suggest(request)) if decision.outcome == "ask" else [],
        "not_understood": list(reading.assessment.not_understood),
    }


def _finding_as_json(finding: Finding) -> JsonObject:
    return {
        "rule": finding.rule,
        "description": finding.description,
        "severity": finding.severity,
        "subcommand": finding.subcommand,
        "span": list(finding.span),
        "scope": finding.scope,
        "reason": finding.reason,
        "paths": list(finding.paths),
    }


def _print(report: JsonObject, decision: Decision, policy: Policy) -> None:
    verdict = "blocked" if report["blocked"] else decision.outcome
    print_line(f"{verdict}: {MEANINGS[decision.outcome]}")
    pairs: list[tuple[str, str | list[str]]] = []
    if decision.outcome != "ask":
        pairs.append(("because", _because(report, decision, policy)))
    if decision.dangers:
        pairs.append(("dangers", [f"{describe_danger(danger)}: {danger.reason}" for danger in decision.dangers]))
    for finding in report["findings"] if not decision.dangers else ():
        pairs.append(
            ("finding", f"{finding['description']} in `{visible(finding['subcommand'])}`: {finding['reason']}")
        )
    if report["grants"]:
        pairs.append(("covered by", report["grants"]))
    if decision.outcome == "ask" and policy.mode == "smart":
        pairs.append(("first", "a model may approve the kinds listed in approvals.smart_classes"))
    if decision.outcome == "ask":
        pairs.append(("always allow", report["suggest"] or "not offered: it may do something else next time"))
    print_pairs(pairs)


def _because(report: JsonObject, decision: Decision, policy: Policy) -> str:
    if decision.decided_by == "entry_point":
        return f"approvals.policies.{policy.entry_point} in your config is {policy.answer}"
    if decision.decided_by == "nothing":
        return "your rules allow what is dangerous about it" if report["findings"] else "nothing dangerous was found"
    return REASONS.get(decision.decided_by, decision.decided_by)
