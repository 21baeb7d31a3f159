"""What a shell command would do: the verdict, every danger in it, and the functions under the reference names."""

from __future__ import annotations

from msgspec.structs import replace

from toolcrib.approval.shell.custom import match_added
from toolcrib.approval.shell.evaluate import Evaluator
from toolcrib.approval.shell.grammar import parse
from toolcrib.approval.shell.lexer import tokenize
from toolcrib.approval.shell.model import Assessment, Finding, NotUnderstood, VerdictName
from toolcrib.approval.shell.prescan import deceiving_characters, join_lines, original_positions, original_span
from toolcrib.approval.shell.rules.table import DANGERS
from toolcrib.approval.shell.state import State

__all__ = [
    "DANGEROUS_PATTERNS",
    "Assessment",
    "Finding",
    "analyse",
    "detect_dangerous_command",
    "detect_hardline_command",
]

DANGEROUS_PATTERNS: list[tuple[str, str]] = [
    (danger.pattern, danger.description) for danger in DANGERS.values() if danger.example and danger.key != "custom"
]
"""The classes of danger as `(regex, description)`, for people; the verdict does not come from them.

A row that is added at run time is honoured as one more *ask* rule, see `toolcrib.approval.shell.custom`.
"""
_BUILT_IN = frozenset(DANGEROUS_PATTERNS)

UNKNOWN_HOME = "/home/user"


def analyse(command: str, *, cwd: str = "", home: str = "", backend: str = "local") -> Assessment:
    """Judge a command line without running any of it; what cannot be understood is *ask*, never *safe*."""
    return assess(Evaluator(), command, cwd=cwd, home=home, backend=backend)


def assess(
    evaluator: Evaluator,
    command: str,
    *,
    cwd: str = "",
    home: str = "",
    backend: str = "local",
    own: tuple[str, ...] = (),
) -> Assessment:
    """The same with an evaluator of the caller's, who wants to know more than the verdict."""
    cwd = cwd.rstrip("/") or ("/" if cwd == "/" else "")
    state = State(home=home.rstrip("/") or UNKNOWN_HOME, cwd=cwd, own=own)
    if state.cwd not in ("", "/", state.home):
        evaluator.workspace = state.cwd + "/"
    joined = join_lines(command)
    deceiving = deceiving_characters(command)
    if deceiving:
        evaluator.not_understood.append("holds characters that deceive the eye: " + " ".join(deceiving))
    else:
        _evaluate(evaluator, joined, state)
    added = [row for row in DANGEROUS_PATTERNS if row not in _BUILT_IN]
    positions = None if command == joined else original_positions(command, joined)
    findings = [_placed(finding, positions, backend) for finding in evaluator.findings]
    findings += match_added(command, added) if added else []
    findings += [_not_understood(command, reason) for reason in evaluator.not_understood]
    return Assessment(
        verdict=_verdict(findings), findings=tuple(findings), not_understood=tuple(evaluator.not_understood)
    )


def _evaluate(evaluator: Evaluator, source: str, state: State) -> None:
    evaluator.source = source
    try:
        evaluator.command(parse(tokenize(source)), state, None)
        evaluator.finish(state)
    except NotUnderstood as reason:
        evaluator.not_understood.append(str(reason))
    except RecursionError:
        evaluator.not_understood.append("the command is nested too deeply")
    except Exception as error:  # noqa: BLE001 - a fault of ours must become a question, never a pass or a crash
        evaluator.not_understood.append(f"the analyser failed on it: {type(error).__name__}")


def _placed(finding: Finding, positions: list[int] | None, backend: str) -> Finding:
    """The finding with its place in the command as it was given, and with the scope of its backend."""
    if positions is None and backend == "local":
        return finding
    scope = f"the {backend} environment" if backend != "local" and finding.scope == "this host" else finding.scope
    span = finding.span if positions is None else original_span(positions, finding.span)
    return replace(finding, span=span, scope=scope)


def _verdict(findings: list[Finding]) -> VerdictName:
    if any(finding.severity == "block" for finding in findings):
        return "block"
    return "ask" if findings else "safe"


def _not_understood(command: str, reason: str) -> Finding:
    danger = DANGERS["not_understood"]
    return Finding(
        rule=danger.key,
        description=danger.description,
        severity="ask",
        subcommand=command[:500],
        span=(0, len(command)),
        paths=(),
        scope=danger.scope,
        reason=reason,
    )


def detect_dangerous_command(command: str) -> tuple[bool, str | None, str | None]:
    """`(is_dangerous, pattern_key, description)`; the key is the description, and both are None when it is safe."""
    findings = analyse(command).findings
    if not findings:
        return False, None, None
    worst = next((finding for finding in findings if finding.severity == "block"), findings[0])
    return True, worst.description, worst.description


def detect_hardline_command(command: str) -> tuple[bool, str | None]:
    """`(is_catastrophic, description)` for what must not run even with approvals switched off."""
    blocked = next((finding for finding in analyse(command).findings if finding.severity == "block"), None)
    return (True, blocked.description) if blocked else (False, None)
