"""`toolcrib sessions delete`."""

from __future__ import annotations

import time

import click

from toolcrib.cli.commands.sessions import age_in_seconds, complete_sessions, find_session, open_session_store
from toolcrib.cli.output import (
    is_interactive,
    local_time,
    note,
    one_line,
    plural,
    print_line,
)
from toolcrib.config.load import load_settings
from toolcrib.core.errors import UsageError
from toolcrib.sessions.records import Session
from toolcrib.sessions.recovery import working_process
from toolcrib.sessions.store import SessionStore
from toolcrib.undo.history import FileHistory

EVERY_SESSION = 1_000_000
SHOWN = 10


@click.command(name="delete")
@click.argument("session_ids", metavar="[ID]...", nargs=-1, shell_complete=complete_sessions)
@click.option(
    "--older-than",
    metavar="AGE",
    callback=age_in_seconds,
    help="Delete all sessions unused for this long: 30d, 12h, 2w.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def delete_sessions(session_ids: tuple[str, ...], older_than: float | None, yes: bool, dry_run: bool) -> None:
    """Delete sessions permanently.

    Also deletes the sessions of their subagents and their file snapshots for undo. Refuses to delete a session that
    another process is using.

    \b
    Examples:
      toolcrib sessions delete 20260314_101500_a1b2c3
      toolcrib sessions delete --older-than 90d --yes
    """
    if bool(session_ids) == (older_than is not None):
        raise UsageError("give either ids or an age, as in `toolcrib sessions delete --older-than 30d`")
    with open_session_store() as store:
        chosen = _sessions_to_delete(store, session_ids, older_than)
        if not chosen:
            print_line("No session is that old; nothing was deleted.")
            return
        for session in chosen[:SHOWN]:
            print_line(f"{session.id}  {local_time(session.updated_at)[:16]}  {one_line(session.title) or '-'}")
        if len(chosen) > SHOWN:
            print_line(f"and {len(chosen) - SHOWN} more")
        if dry_run:
            print_line(f"{plural(len(chosen), 'session')} would be deleted.")
            return
        if not yes and not _confirmed(len(chosen)):
            note("Nothing was deleted.")
            return
        history = FileHistory(load_settings().home.undo_dir)
        for session in chosen:
            store.delete(session.id)
            history.forget(session.id)
    print_line(f"Deleted {plural(len(chosen), 'session')}.")


def _confirmed(count: int) -> bool:
    if not is_interactive():
        raise UsageError("nothing was deleted: there is no terminal to confirm at; add `--yes`")
    return click.confirm(f"Permanently delete {plural(count, 'session')}?", err=True)


def _sessions_to_delete(store: SessionStore, ids: tuple[str, ...], older_than: float | None) -> list[Session]:
    """The sessions to delete, with those of their subagents."""
    named = [find_session(store, wanted) for wanted in ids]
    everything = store.list(limit=EVERY_SESSION, include_hidden=True) if store.database.exists else []
    if older_than is not None:
        limit = time.time() - older_than
        # A session in use is not old, whatever the time of its last message.
        return [one for one in everything if one.updated_at < limit and not working_process(store, one.id)]
    chosen = {session.id: session for session in named}
    # From parents to the deepest subagent: a subagent's session is always younger than its parent.
    for session in sorted(everything, key=lambda one: one.created_at):
        if session.parent_kind == "delegate" and session.parent_id in chosen:
            chosen[session.id] = session
    for session in chosen.values():
        process = working_process(store, session.id)
        if process:
            raise UsageError(f"process {process} is using session {session.id!r}; end it, then try again")
    return list(chosen.values())
