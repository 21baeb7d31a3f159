"""`toolcrib sessions list`."""

from __future__ import annotations

from pathlib import Path

import click

from toolcrib.cli.approval_records import local_time
from toolcrib.cli.output import hint, print_json, print_line, print_table
from toolcrib.cli.sessions import NO_SESSIONS, opened_store, session_as_json

TITLE_CHARS = 60


@click.command(name="list")
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--source", metavar="NAME", help="Only conversations that were begun there: cli, library, cron …")
@click.option("--here", is_flag=True, help="Only conversations of the current folder.")
@click.option("--all", "include_hidden", is_flag=True, help="Those of helpers and tools, too.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(count: int, source: str | None, here: bool, include_hidden: bool, as_json: bool) -> None:
    """List past conversations, the latest first.

    Each object of --json has the keys id, title, source, model, provider, cwd, created_at, updated_at, ended_at,
    end_reason, parent_id, parent_kind, toolsets, messages, calls and usage.
    """
    with opened_store() as store:
        cwd = str(Path.cwd()) if here else None
        found = []
        if store.database.exists:
            found = store.list(limit=count, source=source, include_hidden=include_hidden, cwd=cwd)
    if as_json:
        print_json([session_as_json(session) for session in found])
        return
    if not found:
        print_line(
            "No conversation is like that; `toolcrib sessions list` shows all." if source or here else NO_SESSIONS
        )
        return
    print_table(
        ["id", "last used", "messages", "calls", "model", "title"],
        [
            [
                session.id,
                local_time(session.updated_at)[:16],
                str(session.message_count),
                str(session.call_count),
                session.model or "-",
                session.title[:TITLE_CHARS] or "-",
            ]
            for session in found
        ],
    )
    hint("`toolcrib sessions show ID` prints one, `toolcrib sessions resume ID` goes on with it.")
