"""The record of approvals as the commands show it: finding one request, and saying in words what became of it."""

from __future__ import annotations

import click

from toolcrib.approval.approvers.escape import shortened, visible
from toolcrib.approval.entries import Grant, suggest
from toolcrib.approval.grants import Grants
from toolcrib.approval.log import ApprovalLog, Record
from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import hint, local_time, note, print_json, print_line, print_pairs, print_table
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home, find_home
from toolcrib.core.approvals import Answer, ApprovalRequest, Danger
from toolcrib.core.errors import UnknownName, UsageError
from toolcrib.core.types import JsonObject

group = CommandGroup("approvals")

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


def find_record(log: ApprovalLog, wanted: str) -> Record:
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


def outcome(record: Record) -> str:
    """What became of a request, in two or three words."""
    if record.answer is None:
        return "not answered yet"
    return "blocked" if record.answer.decided_by == "block" else DECIDED[record.answer.choice]


def explanation(record: Record) -> list[str]:
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


def record_as_json(record: Record) -> JsonObject:
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
    return matching_names(lambda: [LAST, *(record.id for record in reversed(open_log().records()))], incomplete)


def complete_grants(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Permanent grants for the shell."""
    return matching_names(lambda: load_settings().command_allowlist, incomplete)


def _wanted(request: ApprovalRequest) -> str:
    return f"run `{visible(request.command)}`" if request.command else "act"


def _because(answer: Answer) -> str:
    return REASONS.get(answer.decided_by, answer.reason or answer.decided_by or "the record does not say why")


@group.command("list")
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(min=0), help="How many requests.")
@click.option("--pending", is_flag=True, help="Only requests that wait for an answer.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def list_approvals(count: int, pending: bool, as_json: bool) -> None:
    """List what you allowed for good, and the latest requests.

    The object of --json has the keys grants (lines of `command_allowlist` in the config) and requests (newest first;
    each with id, asked_at, tool, command, sha256, dangers, session_key, cwd, backend, entry_point, outcome, answer).
    """
    settings = load_settings()
    records = [record for record in reversed(open_log(settings.home).records()) if not pending or record.answer is None]
    records = records[:count]
    if as_json:
        print_json({"grants": settings.command_allowlist, "requests": [record_as_json(record) for record in records]})
        return
    if not pending:
        print_line("Allowed for good:" if settings.command_allowlist else "Nothing is allowed for good.")
        for text in settings.command_allowlist:
            print_line(f"  {text}")
        print_line()
    if not records:
        print_line("Nothing waits for an answer." if pending else "Nothing was asked or denied so far.")
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
    hint("`toolcrib approvals explain ID` says why; `toolcrib approvals revoke GRANT` takes a permission back.")


@group.command("show")
@click.argument("request_id", metavar="ID", shell_complete=complete_requests)
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def show_request(request_id: str, as_json: bool) -> None:
    """Show one request and its answer.

    ID is that of `toolcrib approvals list`, or its beginning; `last` is the newest. Secrets are masked in the record;
    sha256 is that of the exact command. The object of --json is one of `approvals list --json`.
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
        ("dangers", [f"{in_words(danger)}: {danger.reason}" for danger in request.dangers] or "-"),
        ("would touch", [path for danger in request.dangers for path in danger.paths] or "-"),
        ("folder", request.cwd or "-"),
        ("backend", request.backend),
        ("came from", request.entry_point),
        ("session", request.session_key or "-"),
        ("outcome", outcome(record)),
    ]
    if answer is not None:
        pairs += [
            ("decided by", answer.decided_by or "-"),
            ("reason given", answer.reason or "-"),
            ("answered", local_time(record.answered_at)),
        ]
    print_pairs(pairs)


@group.command("explain")
@click.argument("request_id", metavar="[ID]", default="last", shell_complete=complete_requests)
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def explain_request(request_id: str, as_json: bool) -> None:
    """Say why a call was asked about, allowed, denied or blocked.

    ID is that of `toolcrib approvals list`, or its beginning; without one, or with `last`, the newest is meant. The
    object of --json is one of `approvals list --json` with the key explanation, a list of sentences.
    """
    record = find_record(open_log(), request_id)
    if as_json:
        print_json({**record_as_json(record), "explanation": explanation(record)})
        return
    for sentence in explanation(record):
        print_line(sentence)
    hint(f"`toolcrib approvals suggest {record.id}` says what would allow it for good.")


@group.command("suggest")
@click.argument("request_id", metavar="[ID]", default="last", shell_complete=complete_requests)
@click.option("--add", is_flag=True, help="Write the lines to the config, as the answer `always` does.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def suggest_grants(request_id: str, add: bool, as_json: bool) -> int:
    """Say what would allow a call, and others like it, for good.

    Prints one line for each danger of the call, as `command_allowlist` in the config holds them. Exit code 1 means
    that it cannot be allowed for good.

    The object of --json has the keys id, grants (the lines), added and why_not.
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
        note(f"This call cannot be allowed for good: {_why_not(record)}.")
    else:
        for text in grants:
            print_line(text)
        done = "They are in the config now." if add else f"`toolcrib approvals suggest {record.id} --add` allows it."
        note(done)
    return 0 if grants else 1


def _why_not(record: Record) -> str:
    """Why no grant would help; empty when one would."""
    decided_by = record.answer.decided_by if record.answer else ""
    if decided_by in ("block", "sensitive_path"):
        return "nothing lifts a block"
    if decided_by == "user_rule" and record.answer is not None and not record.answer.allows:
        return "a rule in your config denies it; change approvals.rules or approvals.deny"
    if not record.request.dangers:
        return "nothing about it was dangerous"
    return "" if suggest(record.request) else "what it does may be something else the next time"


class UnknownGrant(UnknownName):
    kind = "grant"


@group.command("revoke")
@click.argument("grant", metavar="GRANT", shell_complete=complete_grants)
def revoke_grant(grant: str) -> None:
    """Take back what you allowed for good.

    GRANT is a line of `toolcrib approvals list`. Sessions that run already keep what they know; new ones ask again.

    \b
    Example:
      toolcrib approvals revoke 'recursive delete (inside the workspace)'
    """
    settings = load_settings()
    if not Grants(settings.home, settings.command_allowlist).revoke(grant):
        raise UnknownGrant(grant, settings.command_allowlist, advice="`toolcrib approvals list` shows all of them")
    print_line(f"Took back {grant!r}; new sessions ask about it again.")


group.lazy("test", "approvals_test:test_command", "Show what would happen to a command, without running any of it.")
