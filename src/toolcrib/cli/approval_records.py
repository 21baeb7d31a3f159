"""The record of approvals as the commands show it: finding one request, and saying in words what became of it."""

from __future__ import annotations

import time

import click

from toolcrib.approval.approvers.escape import shortened, visible
from toolcrib.approval.audit_log import ApprovalLog, ApprovalRecord
from toolcrib.cli.output import silence
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home, find_home
from toolcrib.core.approvals import Answer, ApprovalRequest, Danger
from toolcrib.core.errors import ToolcribError, UnknownName, UsageError
from toolcrib.core.types import JsonObject

LAST = "last"
SHOWN_COMMAND_CHARS = 60

DECIDED = {
    "once": "allowed once",
    "session": "allowed for the session",
    "always": "allowed for good",
    "deny": "denied",
    "timeout": "not answered in time",
    "cancelled": "cancelled",
}
# Who or what decided, by the words that the gate and the approvers put on record.
REASONS = {
    "block": "it is catastrophic: nothing and nobody can allow it",
    "user_rule": "a rule in your config speaks about it (approvals.rules, approvals.deny)",
    "sensitive_path": "it would change a file that no tool may change: keys, shell profiles, toolcrib's own settings",
    "grant": "you allowed this kind in this scope before; `toolcrib approvals list` shows what you allowed",
    "yolo": "questions were switched off for that process (--yolo or TOOLCRIB_YOLO=1)",
    "mode": "approvals.mode is off in your config",
    "backend": "it ran in an isolated backend, and what it does cannot leave that",
    "entry_point": "approvals.policies in your config says so for where the call came from",
    "nobody": "nobody could be asked where the call came from",
    "policy": "the policy of that session decided it",
    "user": "a person answered",
    "smart": "a model looked at it and found it harmless, which approvals.mode smart lets it say",
    "timeout": "nobody answered within approvals.timeout seconds",
}


class UnknownRequest(UnknownName):
    kind = "request"


def open_log(home: Home | None = None) -> ApprovalLog:
    return ApprovalLog((home or find_home()).approvals_file)


def find_record(log: ApprovalLog, wanted: str) -> ApprovalRecord:
    """The record with that id, or whose id alone starts so; `last` is the newest. Raises UnknownRequest."""
    found = log.last() if wanted == LAST else log.find(wanted)
    exact = [record for record in found if record.id == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if found:
        advice = f"{len(found)} ids start so: {', '.join(record.id for record in found[:3])} …; type more of it"
        raise UnknownRequest(wanted, (), advice=advice)
    known = [record.id for record in log.records()]
    if not known:
        raise UsageError("nothing was asked or denied here so far; `toolcrib approvals test CMD` tries a command")
    raise UnknownRequest(wanted, known, advice="`toolcrib approvals list` shows all of them")


def outcome(record: ApprovalRecord) -> str:
    """What became of a request, in two or three words."""
    if record.answer is None:
        return "not answered yet"
    return "blocked" if record.answer.decided_by == "block" else DECIDED[record.answer.choice]


def explanation(record: ApprovalRecord) -> list[str]:
    """Why a call was asked about, allowed, denied or blocked, a sentence each."""
    request, answer = record.request, record.answer
    lines = [f"{request.title or request.tool} wanted to {_wanted(request)}."]
    lines += [f"That is {in_words(danger)}: {danger.reason}." for danger in request.dangers]
    if answer is None:
        return [*lines, "It was asked about and is still waiting for an answer; nothing has run."]
    lines.append(f"It was {outcome(record)}: {_because(answer)}.")
    if answer.reason and answer.reason not in _because(answer):
        lines.append(f"The reason given: {answer.reason}")
    if not answer.allows:
        lines.append("Nothing of it has run.")
    return lines


def in_words(danger: Danger) -> str:
    return f"{danger.description} ({danger.scope})" if danger.scope else danger.description


def short_command(request: ApprovalRequest) -> str:
    """The command on one line, with nothing in it that a terminal would obey."""
    return visible(shortened(request.command, SHOWN_COMMAND_CHARS))


def local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def record_as_json(record: ApprovalRecord) -> JsonObject:
    """The object that the commands print for programs; keys are only ever added."""
    request, answer = record.request, record.answer
    return {
        "id": record.id,
        "asked_at": request.asked_at,
        "tool": request.tool,
        "command": request.command,
        "sha256": record.digest,
        "dangers": [danger_as_json(danger) for danger in request.dangers],
        "session_key": request.session_key,
        "cwd": request.cwd,
        "backend": request.backend,
        "entry_point": request.entry_point,
        "outcome": outcome(record),
        "answer": None
        if answer is None
        else {
            "choice": answer.choice,
            "decided_by": answer.decided_by,
            "reason": answer.reason,
            "every_scope": answer.every_scope,
            "answered_at": record.answered_at,
        },
    }


def danger_as_json(danger: Danger) -> JsonObject:
    return {
        "rule": danger.rule,
        "description": danger.description,
        "scope": danger.scope,
        "reason": danger.reason,
        "span": list(danger.span) if danger.span else None,
        "paths": list(danger.paths),
    }


def complete_requests(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of requests for the shell, newest first."""
    with silence():
        try:
            ids = [record.id for record in reversed(open_log().records())]
        except (ToolcribError, OSError):
            return []
    return [name for name in (LAST, *ids) if name.startswith(incomplete)]


def complete_grants(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Permanent grants for the shell."""
    with silence():
        try:
            return [text for text in load_settings().command_allowlist if text.startswith(incomplete)]
        except (ToolcribError, OSError):
            return []


def _wanted(request: ApprovalRequest) -> str:
    return f"run `{visible(request.command)}`" if request.command else "act"


def _because(answer: Answer) -> str:
    return REASONS.get(answer.decided_by, answer.reason or answer.decided_by or "the record does not say why")
