"""`toolcrib sessions delete`."""

from __future__ import annotations

import time

import click

from toolcrib.cli.commands.sessions import age_in_seconds, complete_sessions, find_session, opened_store
from toolcrib.cli.output import (
    local_time,
    note,
    one_line,
    person_present,
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
    help="All that were not used for so long: 30d, 12h, 2w.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def delete_sessions(session_ids: tuple[str, ...], older_than: float | None, yes: bool, dry_run: bool) -> None:
    """Delete conversations for good.

    With a conversation go those of the helpers that it sent out, and the copies that undo keeps of its files. A
    conversation that another process works on right now is refused.

    \b
    Examples:
      toolcrib sessions delete 20260314_101500_a1b2c3
      toolcrib sessions delete --older-than 90d --yes
    """
    if bool(session_ids) == (older_than is not None):
        raise UsageError("give either ids or an age, as in `toolcrib sessions delete --older-than 30d`")
    with opened_store() as store:
        doomed = _doomed(store, session_ids, older_than)
        if not doomed:
            print_line("No conversation is that old; nothing was deleted.")
            return
        for session in doomed[:SHOWN]:
            print_line(f"{session.id}  {local_time(session.updated_at)[:16]}  {one_line(session.title) or '-'}")
        if len(doomed) > SHOWN:
            print_line(f"and {len(doomed) - SHOWN} more")
        if dry_run:
            print_line(f"{plural(len(doomed), 'conversation')} would be deleted; nothing was deleted.")
            return
        if not yes and not _agreed(len(doomed)):
            note("Nothing was deleted.")
            return
        history = FileHistory(load_settings().home.undo_dir)
        for session in doomed:
            store.delete(session.id)
            history.forget(session.id)
    print_line(f"Deleted {plural(len(doomed), 'conversation')}.")


def _agreed(count: int) -> bool:
    if not person_present():
        raise UsageError("nothing was deleted, because nobody can be asked; add `--yes`")
    return click.confirm(f"Delete {plural(count, 'conversation')} for good?", err=True)


def _doomed(store: SessionStore, ids: tuple[str, ...], older_than: float | None) -> list[Session]:
    """What is to be deleted, the helpers of each with it."""
    named = [find_session(store, wanted) for wanted in ids]
    everything = store.list(limit=EVERY_SESSION, include_hidden=True) if store.database.exists else []
    if older_than is not None:
        limit = time.time() - older_than
        # One that is being worked on is not old, whatever its last message says.
        return [one for one in everything if one.updated_at < limit and not working_process(store, one.id)]
    doomed = {session.id: session for session in named}
    # From the newest parent to the deepest helper: a helper is always younger than who sent it.
    for session in sorted(everything, key=lambda one: one.created_at):
        if session.parent_kind == "delegate" and session.parent_id in doomed:
            doomed[session.id] = session
    for session in doomed.values():
        process = working_process(store, session.id)
        if process:
            raise UsageError(f"process {process} works on session {session.id!r}; end it, then type this again")
    return list(doomed.values())
