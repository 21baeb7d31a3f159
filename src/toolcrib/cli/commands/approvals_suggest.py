"""`toolcrib approvals suggest [ID]`."""

from __future__ import annotations

import click

from toolcrib.approval.audit_log import ApprovalRecord
from toolcrib.approval.grants import Grant, Grants, suggest
from toolcrib.cli.approval_records import complete_requests, find_record, open_log
from toolcrib.cli.output import note, print_json, print_line
from toolcrib.config.load import load_settings


@click.command(name="suggest")
@click.argument("request_id", metavar="[ID]", default="last", shell_complete=complete_requests)
@click.option("--add", is_flag=True, help="Write the lines to the config, as the answer `always` does.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(request_id: str, add: bool, as_json: bool) -> int:
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


def _why_not(record: ApprovalRecord) -> str:
    """Why no grant would help; empty when one would."""
    decided_by = record.answer.decided_by if record.answer else ""
    if decided_by in ("block", "sensitive_path"):
        return "nothing lifts a block"
    if decided_by == "user_rule" and record.answer is not None and not record.answer.allows:
        return "a rule in your config denies it; change approvals.rules or approvals.deny"
    if not record.request.dangers:
        return "nothing about it was dangerous"
    return "" if suggest(record.request) else "what it does may be something else the next time"
