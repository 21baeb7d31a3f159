"""Analyses shell commands: the verdict, every danger, and functions with the reference names."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace

from toolcrib.approval.shell.evaluate import Evaluator
from toolcrib.approval.shell.file_lookup import FileLookup
from toolcrib.approval.shell.findings import Assessment, Finding
from toolcrib.approval.shell.model import NotUnderstood, VerdictName
from toolcrib.approval.shell.parser import parse
from toolcrib.approval.shell.rules import DANGERS
from toolcrib.approval.shell.session import read_session
from toolcrib.approval.shell.source_text import Continuations
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import Script
from toolcrib.core.types import ShellSession

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
"""The danger classes as `(regex, description)`, for display; the verdict does not come from them.

A row that is added at run time is honoured as one more *ask* rule. Python's regexes can take exponential time, so it is
looked at first: a repetition inside a repetition, or a repetition of alternatives, is refused and makes every command
*ask*, because a rule that cannot be honoured must not silently let commands pass. What remains is matched on at most
4,096 characters of the command.
"""
_BUILT_IN = frozenset(DANGEROUS_PATTERNS)

UNKNOWN_HOME = "/home/user"
MAX_MATCHED = 4096
MAX_REPEATS = 6
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{\d*,\d*\})")
_REPEAT = re.compile(r"(?<!\\)(?:[*+]|\{\d*,\d*\}|\|)")
_DECEIVING = re.compile(
    "[\x00\x01-\x08\x0b\x0c\r\x0e-\x1f\x7f\x80-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ufdd0-\ufdef\U000e0000-\U000e0fff\U000f0000-\U0010ffff\ud800-\udfff]"
)


def analyse(command: str | Script, *, cwd: str = "", home: str = "", backend: str = "local") -> Assessment:
    """Judge a command line without running it; what cannot be understood is *ask*, never *safe*."""
    return assess(Evaluator(), command, cwd=cwd, home=home, backend=backend)


def assess(
    evaluator: Evaluator,
    command: str | Script,
    *,
    cwd: str = "",
    home: str = "",
    backend: str = "local",
    own: tuple[str, ...] = (),
    view: FileLookup | None = None,
    session: ShellSession | None = None,
) -> Assessment:
    """The same with the caller's own evaluator, for callers that need more than the verdict.

    `view` shows the files of this machine, if the command would run here; `session` is what its shell knows.
    """
    script = parse(command) if isinstance(command, str) else command
    source = script.source
    cwd = cwd.rstrip("/") or ("/" if cwd == "/" else "")
    state = ShellState(home=home.rstrip("/") or UNKNOWN_HOME, cwd=cwd, own=own, view=view)
    if session is not None:
        _enter_session(evaluator, session, state)
    if state.cwd not in ("", "/", state.home):
        evaluator.log.workspace = state.cwd + "/"
    deceiving = deceiving_characters(source)
    if deceiving:
        evaluator.not_understood.append("contains deceptive characters: " + " ".join(deceiving))
    else:
        _evaluate(evaluator, script, state)
    added = [row for row in DANGEROUS_PATTERNS if row not in _BUILT_IN]
    findings = _placed(evaluator.log.findings, script, backend)
    findings += match_added(source, added) if added else []
    findings += [_not_understood(source, reason) for reason in evaluator.not_understood]
    return Assessment(
        verdict=_verdict(findings), findings=tuple(findings), not_understood=tuple(evaluator.not_understood)
    )


def _enter_session(evaluator: Evaluator, session: ShellSession, state: ShellState) -> None:
    known = read_session(session)
    known.enter(state)
    evaluator.given = known.variables
    if known.error:
        evaluator.not_understood.append(known.error)


def _evaluate(evaluator: Evaluator, script: Script, state: ShellState) -> None:
    try:
        evaluator.run(script, state)
    except NotUnderstood as reason:
        evaluator.not_understood.append(str(reason))
    except RecursionError:
        # The analyser counts its own depth, but not the caller's frames.
        evaluator.not_understood.append("the command is nested too deeply")
    except Exception as error:  # noqa: BLE001 - a fault of ours must become a question, never a pass or a crash
        evaluator.not_understood.append(f"the analyser failed: {type(error).__name__}")


def _placed(findings: list[Finding], script: Script, backend: str) -> list[Finding]:
    """The findings with positions in the original command and the scope of its backend."""
    placed = list(findings)
    if placed and script.text != script.source:
        continuations = Continuations(script.source)
        placed = [replace(each, span=continuations.span_in_source(each.span)) for each in placed]
    if backend != "local":
        scope = f"the {backend} environment"
        placed = [replace(each, scope=scope) if each.scope == "this host" else each for each in placed]
    return placed


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
    """`(is_dangerous, pattern_key, description)`; the key is the description, and both are None for a safe command."""
    findings = analyse(command).findings
    if not findings:
        return False, None, None
    worst = next((finding for finding in findings if finding.severity == "block"), findings[0])
    return True, worst.description, worst.description


def detect_hardline_command(command: str) -> tuple[bool, str | None]:
    """`(is_catastrophic, description)` for commands that must not run even with approvals off."""
    blocked = next((finding for finding in analyse(command).findings if finding.severity == "block"), None)
    return (True, blocked.description) if blocked else (False, None)


def deceiving_characters(command: str) -> list[str]:
    """The control, bidirectional, invisible and look-alike characters in a command, as readable escapes."""
    if command.isascii() and command.isprintable():
        return []
    found = sorted({match.group() for match in islice(_DECEIVING.finditer(command), 100)})[:8]
    return [f"\\u{{{ord(character):x}}}" for character in found]


@lru_cache(maxsize=256)
def bounded(pattern: str) -> re.Pattern[str] | None:
    """The compiled pattern; None if it is not a regex, or its matching time is not bounded."""
    if _REPEATED_GROUP.search(pattern) or len(_REPEAT.findall(re.sub(r"\[[^\]]*\]", "", pattern))) > 40:
        return None
    if len(re.findall(r"(?<!\\)\.[*+]|\\[sSwWdD][*+]|\][*+]", pattern)) > MAX_REPEATS:
        return None
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except (re.error, OverflowError, RecursionError):
        return None


def match_added(command: str, rows: list[tuple[str, str]]) -> list[Finding]:
    """One finding for each added rule that the command matches."""
    findings: list[Finding] = []
    for pattern, description in rows:
        compiled = bounded(pattern)
        text = command[:MAX_MATCHED]
        if compiled is None:
            findings.append(
                _finding(
                    description,
                    f"the added rule {pattern!r} cannot be matched in bounded time",
                    (0, len(command)),
                    text,
                )
            )
            continue
        match = compiled.search(text)
        if match:
            findings.append(
                _finding(description, f"matches the added rule {description!r}", match.span(), match.group())
            )
    return findings


def _finding(description: str, reason: str, span: tuple[int, int], text: str) -> Finding:
    return Finding(
        rule=description,
        description=description,
        severity="ask",
        subcommand=text[:500],
        span=span,
        paths=(),
        scope="this host",
        reason=reason,
    )
