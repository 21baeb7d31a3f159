"""`toolcrib approvals`: the record of requests and answers, and the permanent grants."""

from __future__ import annotations

import click
import msgspec

from toolcrib.approval.approvers.escape import shortened, visible
from toolcrib.approval.audit_log import ApprovalLog, ApprovalRecord
from toolcrib.approval.grants import Grant, Grants, suggest
from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import hint, local_time, note, print_json, print_line, print_pairs, print_table
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home, find_home
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Danger
from toolcrib.core.errors import UnknownName, UsageError
from toolcrib.core.types import JsonObject

group = CommandGroup("approvals")

LAST = "last"
SHOWN_COMMAND_CHARS = 60

DECIDED = {
    "once": "allowed once",
    "session": "allowed for the session",
    "always": "always allowed",
    "deny": "denied",
    "timeout": "not answered in time",
    "cancelled": "cancelled",
}
# By `decided_by`, as the gate and the approvers record it.
REASONS = {
    "block": "it is catastrophic, and nothing can allow it",
    "user_rule": "a rule in your config matches it (approvals.rules, approvals.deny)",
    "sensitive_path": "it would change a protected file: keys, shell profiles, toolcrib's own settings",
    "grant": "you allowed this kind in this scope before; run `toolcrib approvals list` to see your grants",
    "provenance": "all its delicate values come from you or from trusted sources (approvals.provenance)",
    "yolo": "approvals were switched off for that process (--yolo or TOOLCRIB_YOLO=1)",
    "mode": "approvals.mode is off in your config",
    "backend": "it ran in an isolated backend, and its effects cannot leave it",
    "entry_point": "approvals.policies in your config decides it for this entry point",
    "nobody": "nobody could be asked at this entry point",
    "policy": "the session's policy decided it",
    "user": "a person answered",
    "smart": "approvals.mode is smart, and a model found it harmless",
    "timeout": "nobody answered within approvals.timeout seconds",
}


class UnknownRequest(UnknownName):
    kind = "request"


def open_log(home: Home | None = None) -> ApprovalLog:
    return ApprovalLog((home or find_home()).approvals_file)


def find_record(log: ApprovalLog, wanted: str) -> ApprovalRecord:
    """The record with this id or unique prefix of an id; `last` is the newest. Raises UnknownRequest."""
    found = log.last() if wanted == LAST else log.find(wanted)
    exact = [record for record in found if record.id == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if found:
        advice = (
            f"{len(found)} ids start with that: {', '.join(record.id for record in found[:3])} …; type more of the id"
        )
        raise UnknownRequest(wanted, (), advice=advice)
    known = [record.id for record in log.records()]
    if not known:
        raise UsageError("there are no requests yet; run `toolcrib approvals test CMD` to try a command")
    raise UnknownRequest(wanted, known, advice="`toolcrib approvals list` lists them all")


def outcome(record: ApprovalRecord) -> str:
    """The outcome of a request in two or three words."""
    if record.answer is None:
        return "not answered yet"
    return "blocked" if record.answer.decided_by == "block" else DECIDED[record.answer.choice]


def explanation(record: ApprovalRecord) -> list[str]:
    """Why a call needed approval, and why it was allowed, denied or blocked, as sentences."""
    request, answer = record.request, record.answer
    lines = [f"{request.title or request.tool} wanted to {_wanted(request)}."]
    lines += [f"That is {describe_danger(danger)}: {danger.reason}." for danger in request.dangers]
    lines += [f"Provenance: {visible(str(finding))}." for finding in request.findings if finding.vouched]
    if answer is None:
        return [*lines, "It is waiting for your approval; nothing has run."]
    lines.append(f"It was {outcome(record)}: {_because(answer)}.")
    if answer.reason and answer.reason not in _because(answer):
        lines.append(f"The reason given: {answer.reason}")
    if not answer.allows:
        lines.append("Nothing ran.")
    return lines


def describe_danger(danger: Danger) -> str:
    return f"{danger.description} ({danger.scope})" if danger.scope else danger.description


def short_command(request: ApprovalRequest) -> str:
    """The command on one line, with control characters made visible."""
    return visible(shortened(request.command, SHOWN_COMMAND_CHARS))


def record_as_json(record: ApprovalRecord) -> JsonObject:
    """The object that the commands print as JSON; keys may be added, never removed."""
    request, answer = record.request, record.answer
    return {
        "id": record.id,
        "asked_at": request.asked_at,
        "tool": request.tool,
        "command": request.command,
        "sha256": record.digest,
        "dangers": [danger_as_json(danger) for danger in request.dangers],
        "findings": msgspec.to_builtins(request.findings),
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
    """Request ids for the shell, newest first."""
    return matching_names(lambda: [LAST, *(record.id for record in reversed(open_log().records()))], incomplete)


def complete_grants(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Permanent grants for the shell."""
    return matching_names(lambda: load_settings().command_allowlist, incomplete)


def _wanted(request: ApprovalRequest) -> str:
    return f"run `{visible(request.command)}`" if request.command else "act"


def _because(answer: ApprovalAnswer) -> str:
    return REASONS.get(answer.decided_by, answer.reason or answer.decided_by or "the record does not say why")


@group.command("list")
@click.option(
    "-n", "--count", default=20, show_default=True, type=click.IntRange(min=0), help="How many requests to show."
)
@click.option("--pending", is_flag=True, help="Only requests without an answer.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def list_approvals(count: int, pending: bool, as_json: bool) -> None:
    """List permanent grants and recent requests.

    --json prints an object with the keys grants (the lines of `command_allowlist` in the config) and requests (newest
    first; each with id, asked_at, tool, command, sha256, dangers, session_key, cwd, backend, entry_point, outcome and
    answer).
    """
    settings = load_settings()
    records = [record for record in reversed(open_log(settings.home).records()) if not pending or record.answer is None]
    records = records[:count]
    if as_json:
        print_json({"grants": settings.command_allowlist, "requests": [record_as_json(record) for record in records]})
        return
    if not pending:
        print_line("Always allowed:" if settings.command_allowlist else "Nothing is always allowed.")
        for text in settings.command_allowlist:
            print_line(f"  {text}")
        print_line()
    if not records:
        print_line("No request is waiting for an answer." if pending else "There are no requests yet.")
        return
    print_table(
        ["id", "when", "tool", "outcome", "danger", "command"],
        [
            [
                record.id,
                local_time(record.request.asked_at),
                record.request.tool,
                outcome(record),
                record.request.description or "-",
                short_command(record.request),
            ]
            for record in records
        ],
    )
    hint("Run `toolcrib approvals explain ID` for the reason, or `toolcrib approvals revoke GRANT` to revoke a grant.")


@group.command("show")
@click.argument("request_id", metavar="ID", shell_complete=complete_requests)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_request(request_id: str, as_json: bool) -> None:
    """Show a request and its answer.

    ID is an id from `toolcrib approvals list` or the start of one; `last` is the newest request. The record masks
    secrets; sha256 is the hash of the exact command. --json prints one object of `approvals list --json`.
    """
    record = find_record(open_log(), request_id)
    if as_json:
        print_json(record_as_json(record))
        return
    request, answer = record.request, record.answer
    pairs: list[tuple[str, str | list[str]]] = [
        ("id", record.id),
        ("asked", local_time(request.asked_at)),
        ("tool", request.tool),
        ("command", visible(request.command) or "-"),
        ("sha256", record.digest),
        ("dangers", [f"{describe_danger(danger)}: {danger.reason}" for danger in request.dangers] or "-"),
        ("affects", [path for danger in request.dangers for path in danger.paths] or "-"),
        ("folder", request.cwd or "-"),
        ("backend", request.backend),
        ("entry point", request.entry_point),
        ("session", request.session_key or "-"),
        ("outcome", outcome(record)),
    ]
    if request.findings:
        pairs.append(("origins", [visible(str(finding)) for finding in request.findings]))
    if answer is not None:
        pairs += [
            ("decided by", answer.decided_by or "-"),
            ("reason given", answer.reason or "-"),
            ("answered", local_time(record.answered_at)),
        ]
    print_pairs(pairs)


@group.command("explain")
@click.argument("request_id", metavar="[ID]", default="last", shell_complete=complete_requests)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def explain_request(request_id: str, as_json: bool) -> None:
    """Explain why a call needed approval, and why it was allowed, denied or blocked.

    ID is an id from `toolcrib approvals list` or the start of one; the default, `last`, is the newest request. --json
    prints one object of `approvals list --json` with the key explanation, a list of sentences.
    """
    record = find_record(open_log(), request_id)
    if as_json:
        print_json({**record_as_json(record), "explanation": explanation(record)})
        return
    for sentence in explanation(record):
        print_line(sentence)
    hint(f"Run `toolcrib approvals suggest {record.id}` to see how to always allow it.")


@group.command("suggest")
@click.argument("request_id", metavar="[ID]", default="last", shell_complete=complete_requests)
@click.option("--add", is_flag=True, help="Add the grants to the config, as answering `always` does.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def suggest_grants(request_id: str, add: bool, as_json: bool) -> int:
    """Suggest grants that would always allow a call and others like it.

    Prints one line for each danger of the call, in the form that `command_allowlist` in the config takes. Exit code 1
    if the call cannot always be allowed.

    --json prints an object with the keys id, grants (the lines), added and why_not.
    """
    settings = load_settings()
    record = find_record(open_log(settings.home), request_id)
    grants = () if _why_not(record) else suggest(record.request)
    if add:
        held = Grants(settings.home, settings.command_allowlist)
        for text in grants:
            held.add_permanent(Grant(text))
    if as_json:
        print_json(
            {"id": record.id, "grants": list(grants), "added": add and bool(grants), "why_not": _why_not(record)}
        )
    elif not grants:
        note(f"This call cannot always be allowed: {_why_not(record)}.")
    else:
        for text in grants:
            print_line(text)
        done = "Added to the config." if add else f"Run `toolcrib approvals suggest {record.id} --add` to add them."
        note(done)
    return 0 if grants else 1


def _why_not(record: ApprovalRecord) -> str:
    """Why no grant can allow it; empty if one can."""
    decided_by = record.answer.decided_by if record.answer else ""
    if decided_by in ("block", "sensitive_path"):
        return "nothing overrides a block"
    if decided_by == "user_rule" and record.answer is not None and not record.answer.allows:
        return "a rule in your config denies it; change approvals.rules or approvals.deny"
    if not record.request.dangers:
        return "it was not dangerous"
    return "" if suggest(record.request) else "it may do something else next time"


class UnknownGrant(UnknownName):
    kind = "grant"


@group.command("revoke")
@click.argument("grant", metavar="GRANT", shell_complete=complete_grants)
def revoke_grant(grant: str) -> None:
    """Revoke a permanent grant.

    GRANT is a line of `toolcrib approvals list`. Running sessions keep the grant; new ones ask again.

    \b
    Example:
      toolcrib approvals revoke 'recursive delete (inside the workspace)'
    """
    settings = load_settings()
    if not Grants(settings.home, settings.command_allowlist).revoke(grant):
        raise UnknownGrant(grant, settings.command_allowlist, advice="`toolcrib approvals list` lists them all")
    print_line(f"Revoked {grant!r}; new sessions ask again.")


group.lazy("test", "approvals_test:test_command", "Show what would happen to a command, without running any of it.")
group.lazy("answer", "approvals_answer:answer_request", "Answer an approval request from a running server.")
