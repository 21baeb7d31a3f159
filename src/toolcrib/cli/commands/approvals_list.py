"""`toolcrib approvals list`."""

from __future__ import annotations

import click

from toolcrib.cli.approval_records import local_time, open_log, outcome, record_as_json, short_command
from toolcrib.cli.output import hint, print_json, print_line, print_table
from toolcrib.config.load import load_settings


@click.command(name="list")
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(min=0), help="How many requests.")
@click.option("--pending", is_flag=True, help="Only requests that wait for an answer.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(count: int, pending: bool, as_json: bool) -> None:
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
