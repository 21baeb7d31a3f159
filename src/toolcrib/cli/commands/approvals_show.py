"""`toolcrib approvals show ID`."""

from __future__ import annotations

import click

from toolcrib.approval.approvers.escape import visible
from toolcrib.cli.approval_records import (
    complete_requests,
    find_record,
    in_words,
    local_time,
    open_log,
    outcome,
    record_as_json,
)
from toolcrib.cli.output import print_json, print_pairs


@click.command(name="show")
@click.argument("request_id", metavar="ID", shell_complete=complete_requests)
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(request_id: str, as_json: bool) -> None:
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
