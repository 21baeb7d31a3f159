"""`toolcrib undo [N]`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from toolcrib.cli.output import hint, local_time, note, one_line, plural, print_json, print_line
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UnknownName, UsageError
from toolcrib.runtime import Runtime
from toolcrib.undo.history import FileHistory, Undone
from toolcrib.undo.places import Terminal
from toolcrib.undo.records import CallRecord, FileRecord
from toolcrib.undo.restoring import UndoneFile
from toolcrib.undo.store import DIRECT

SOMETHING_REFUSED = 1
SHOWN_FILES = 20
SUMMARY_CHARS = 70
UNITS = ("bytes", "KB", "MB", "GB")


class UnknownUndoSession(UnknownName):
    kind = "session with changes"


@click.command(name="undo")
@click.argument("count", metavar="[N]", required=False, type=click.IntRange(min=1))
@click.option("--list", "list_calls", is_flag=True, help="Only show the calls and what they did.")
@click.option("--to", "call_id", metavar="CALL", help="Take back everything back to this call, and that too.")
@click.option("--redo", is_flag=True, help="Take back the latest undo.")
@click.option("--session", "session_id", metavar="ID", help="Of this session, not of the latest one in this folder.")
@click.option("--force", is_flag=True, help="Also what was changed since, or left by a call that was cut short.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
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
    """Take back what tools did to files.

    The latest call is taken back, or the latest N.
    Before a tool or a command changes or deletes files in the folder that it works in, what they are is kept. An undo
    puts back contents, modes and links, and removes what was made. A file that somebody changed since is left alone,
    unless you add --force; what is there then is kept too, so that `toolcrib undo --redo` gives it back. What git keeps
    in .git is never touched: files come back, commits and branches stay as they are.

    The exit code is 1 when something was left alone. The object of --json has the keys session, calls and files
    (path, what, reason); with --list it has session and calls.

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
            _say_nothing(as_json)
            return 0
        # Calls that belong to no conversation are of all folders; only those of this one are meant.
        folder = str(Path.cwd()) if session == DIRECT and session_id is None else ""
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


def _opened_terminal(settings: Settings, opened: ExitStack) -> Terminal:
    """Where other places are opened; only an undo of what was done in one needs it."""
    runtime = Runtime(settings=settings)
    opened.callback(runtime.close)
    return runtime.terminal


def _session(history: FileHistory, wanted: str | None, *, undone_too: bool) -> str | None:
    if wanted is None:
        return history.latest_session(str(Path.cwd()), undone_too=undone_too)
    known = history.store.sessions()
    if wanted in known or history.store.entries(wanted):
        return wanted
    near = [one for one in known if one.startswith(wanted)]
    if len(near) == 1:
        return near[0]
    raise UnknownUndoSession(wanted, known, advice="`toolcrib sessions list` shows all conversations")


def _say_nothing(as_json: bool) -> None:
    if as_json:
        print_json({"session": None, "calls": [], "files": []})
    else:
        print_line("There is nothing to take back in this folder.")


def _show_calls(session: str, calls: list[CallRecord], as_json: bool) -> None:
    if as_json:
        print_json({"session": session, "calls": [_as_json(one) for one in calls]})
        return
    print_line(f"Session {session}, the oldest call first:")
    for call in calls:
        state = ", taken back" if call.undone else "" if call.finished else ", cut short"
        if call.runs_on and not call.undone:
            state = ", went on in the background"
        where = f" in {call.place}" if call.place else ""
        print_line()
        print_line(f"{call.call_id}  {local_time(call.at)}  {call.tool}{where}{state}")
        print_line(f"  {_short(call.summary)}")
        for file in call.files[:SHOWN_FILES]:
            print_line(f"  {_file_line(file)}")
        if len(call.files) > SHOWN_FILES:
            print_line(f"  and {len(call.files) - SHOWN_FILES} more")
        for text in call.notes:
            print_line(f"  {text}")
    hint("`toolcrib undo` takes back the latest; `toolcrib undo --to CALL` goes back to one of them.")


def _file_line(file: FileRecord) -> str:
    told: list[str] = [file.kind]
    if file.size:
        told.append(_size(file.size))
    if file.now is not None:
        told.append("is what it was" if file.now == "old" else "was changed, by the call or since")
    if file.not_kept:
        told.append(file.not_kept)
    return f"{file.path}{'/' if file.is_folder else ''} ({', '.join(told)})"


def _show_outcome(session: str, done: Undone, *, dry_run: bool, as_json: bool, redo: bool, force: bool) -> None:
    if as_json:
        files = [{"path": one.path, "what": one.what, "reason": one.reason} for one in done.files]
        print_json({"session": session, "calls": [_as_json(one) for one in done.calls], "files": files})
        return
    if not done.files and not done.calls:
        print_line("There is nothing to take back.")
        return
    for call in done.calls:
        print_line(f"{call.call_id}  {call.tool}: {_short(call.summary)}")
        for text in call.notes:
            note(f"  {text}")
    for file in done.files:
        print_line(f"  {_outcome_line(file, dry_run)}")
    changed = len(done.files) - len(done.refused)
    verb = "would be" if dry_run else "were" if changed != 1 else "was"
    left = f", {len(done.refused)} left alone" if done.refused else ""
    print_line(f"{plural(changed, 'file')} {verb} put back{left}.")
    if done.refused and not force:
        note("Add --force to put back what was changed since; what is there now is kept.")
    elif not dry_run and not redo and changed:
        hint("`toolcrib undo --redo` takes this back.")


def _outcome_line(file: UndoneFile, dry_run: bool) -> str:
    if file.what == "refused":
        return f"{file.path}: left alone, {file.reason}"
    return f"{file.path}: {'would be ' if dry_run else ''}{file.what}"


def _as_json(call: CallRecord) -> dict[str, Any]:
    return {**asdict(call), "undone": call.undone}


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 1]}…"


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {UNITS[unit]}"
