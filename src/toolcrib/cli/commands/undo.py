"""`toolcrib undo`: undoes and redoes the file changes of tool calls."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import click

from toolcrib.cli.output import hint, note, print_json, print_line
from toolcrib.cli.undo_output import FORCE_HINT, NOTHING, NOTHING_TO_REDO, call_lines, outcome_lines
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.config.settings import Settings
from toolcrib.core.context import TerminalPort
from toolcrib.core.errors import UnknownName, UsageError
from toolcrib.runtime import Runtime
from toolcrib.undo.history import FileHistory, UndoResult
from toolcrib.undo.records import CallRecord
from toolcrib.undo.store import DIRECT

SOMETHING_REFUSED = 1


class UnknownUndoSession(UnknownName):
    kind = "session with changes"


@click.command(name="undo")
@click.argument("count", metavar="[N]", required=False, type=click.IntRange(min=1))
@click.option("--list", "list_calls", is_flag=True, help="Only list the calls and their changes.")
@click.option("--to", "call_id", metavar="CALL", help="Undo everything back to and including this call.")
@click.option("--redo", is_flag=True, help="Redo the latest undo.")
@click.option("--session", "session_id", metavar="ID", help="The session; default: the latest one in this folder.")
@click.option("--force", is_flag=True, help="Also restore files that changed since, or that an interrupted call left.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def undo(
    count: int | None,
    list_calls: bool,
    call_id: str | None,
    redo: bool,
    session_id: str | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Undo the changes that tools made to files.

    Undoes the latest call, or the latest N calls.

    toolcrib scans the working folder before and after each command, and saves what tools and commands change or
    delete there, whatever program does it, plus all files that they name. Undo restores contents, modes and links, and
    removes new files. It skips files that changed since, or that something else may have changed, unless you add
    --force; they are saved first, so `toolcrib undo --redo` brings them back. Undo never touches .git: it restores
    files, but commits and branches stay.

    Exit code 1 if files were skipped. --json prints an object with the keys session, calls and files (path, what,
    reason); with --list, session and calls.

    \b
    Examples:
      toolcrib undo
      toolcrib undo 3 --dry-run
      toolcrib undo --list
      toolcrib undo --to call_7
    """
    if sum((count is not None, call_id is not None, redo, list_calls)) > 1:
        raise UsageError("give one of N, --list, --to and --redo")
    settings = load_settings()
    with ExitStack() as opened:
        history = FileHistory(
            settings.home.undo_dir, settings.undo, terminal=lambda: _opened_terminal(settings, opened)
        )
        session = _session(history, session_id, undone_too=redo or list_calls)
        if session is None:
            _print_nothing_to_undo(as_json)
            return 0
        # Calls without a session come from all folders; only those of this folder are meant.
        folder = str(current_folder()) if session == DIRECT and session_id is None else ""
        if list_calls:
            _show_calls(session, history.calls(session, folder), as_json)
            return 0
        if redo:
            done = history.redo(session, folder=folder, force=force, dry_run=dry_run)
        elif call_id is not None:
            done = history.undo_to(session, call_id, folder=folder, force=force, dry_run=dry_run)
        else:
            done = history.undo_calls(session, count or 1, folder=folder, force=force, dry_run=dry_run)
    _show_outcome(session, done, dry_run=dry_run, as_json=as_json, redo=redo, force=force)
    return SOMETHING_REFUSED if done.refused else 0


def _opened_terminal(settings: Settings, opened: ExitStack) -> TerminalPort:
    """The terminal, needed only to undo changes in other environments."""
    runtime = Runtime(settings=settings)
    opened.callback(runtime.close)
    return runtime.terminal


def _session(history: FileHistory, wanted: str | None, *, undone_too: bool) -> str | None:
    if wanted is None:
        return history.latest_session(str(current_folder()), undone_too=undone_too)
    known = history.store.sessions()
    if wanted in known or history.store.calls(wanted):
        return wanted
    near = [one for one in known if one.startswith(wanted)]
    if len(near) == 1:
        return near[0]
    raise UnknownUndoSession(wanted, known, advice="`toolcrib sessions list` lists all sessions")


def _print_nothing_to_undo(as_json: bool) -> None:
    if as_json:
        print_json({"session": None, "calls": [], "files": []})
    else:
        print_line("There is nothing to undo in this folder.")


def _show_calls(session: str, calls: list[CallRecord], as_json: bool) -> None:
    if as_json:
        print_json({"session": session, "calls": [_as_json(one) for one in calls]})
        return
    print_line(f"Session {session}, the oldest call first:")
    for call in calls:
        print_line()
        for line in call_lines(call):
            print_line(line)
    hint("Run `toolcrib undo` to undo the latest call, or `toolcrib undo --to CALL` to go back further.")


def _show_outcome(session: str, done: UndoResult, *, dry_run: bool, as_json: bool, redo: bool, force: bool) -> None:
    if as_json:
        files = [{"path": one.path, "what": one.what, "reason": one.reason} for one in done.files]
        print_json({"session": session, "calls": [_as_json(one) for one in done.calls], "files": files})
        return
    if not done.files and not done.calls:
        print_line(NOTHING_TO_REDO if redo else NOTHING)
        return
    for line in outcome_lines(done, dry_run=dry_run, redo=redo):
        print_line(line)
    if done.refused and not force:
        note(FORCE_HINT)
    elif not dry_run and not redo and len(done.files) > len(done.refused):
        hint("Run `toolcrib undo --redo` to redo this.")


def _as_json(call: CallRecord) -> dict[str, Any]:
    return {**asdict(call), "undone": call.undone}
