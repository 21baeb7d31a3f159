"""Rules that others add at run time as `(regex, description)`, matched within bounds.

Python's regexes can take exponential time, so an added one is looked at first: a repetition inside a repetition, or a
repetition of alternatives, is refused and makes every command *ask*, because a rule that cannot be honoured must not
silently let commands pass. What remains is matched on at most 4,096 characters of the command.
"""

from __future__ import annotations

import re
from functools import lru_cache

from toolcrib.approval.shell.model import Finding

MAX_MATCHED = 4096
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{\d*,\d*\})")
_REPEAT = re.compile(r"(?<!\\)(?:[*+]|\{\d*,\d*\}|\|)")
MAX_REPEATS = 6


@lru_cache(maxsize=256)
def bounded(pattern: str) -> re.Pattern[str] | None:
    """The compiled pattern; None when it is no regex, or one whose matching time has no sure bound."""
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
