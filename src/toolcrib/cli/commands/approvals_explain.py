"""`toolcrib approvals explain ID`."""

from __future__ import annotations

import click

from toolcrib.cli.approval_records import complete_requests, explanation, find_record, open_log, record_as_json
from toolcrib.cli.output import hint, print_json, print_line


@click.command(name="explain")
@click.argument("request_id", metavar="[ID]", default="last", shell_complete=complete_requests)
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(request_id: str, as_json: bool) -> None:
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
