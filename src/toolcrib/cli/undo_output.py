"""How undo shows calls, files and outcomes: the same words in the shell and in the chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolcrib.cli.output import local_time, one_line, plural, short_path

if TYPE_CHECKING:
    from toolcrib.undo.history import UndoResult
    from toolcrib.undo.records import CallRecord, FileRecord
    from toolcrib.undo.restore import UndoneFile

SHOWN_FILES = 20
SUMMARY_CHARS = 70
UNITS = ("bytes", "KB", "MB", "GB")
NOTHING, NOTHING_TO_REDO = "There is nothing to undo.", "There is nothing to redo."
FORCE_HINT = "Add --force to restore files that changed since; toolcrib saves them first."


def call_lines(call: CallRecord) -> Iterator[str]:
    """A call of the list, with what it did to files."""
    state = ", undone" if call.undone else "" if call.finished else ", interrupted"
    if call.runs_on and not call.undone:
        state = ", continued in the background"
    where = f" in {call.environment}" if call.environment else ""
    yield f"{call.call_id}  {local_time(call.at)}  {call.tool}{where}{state}"
    yield f"  {_short(call.summary)}"
    for file in call.files[:SHOWN_FILES]:
        yield f"  {_file_line(file)}"
    if len(call.files) > SHOWN_FILES:
        yield f"  and {len(call.files) - SHOWN_FILES:,} more"
    for text in call.notes:
        yield f"  {text}"


def outcome_lines(done: UndoResult, *, dry_run: bool = False, redo: bool = False) -> Iterator[str]:
    """What an undo or a redo did, or would do; of many files that it restored, the first ones."""
    for call in done.calls:
        yield f"{call.call_id}  {call.tool}: {_short(call.summary)}"
        yield from (f"  {text}" for text in call.notes)
    restored = [one for one in done.files if one.what != "refused"]
    for file in (*restored[:SHOWN_FILES], *done.refused):
        yield f"  {_outcome_line(file, dry_run)}"
        if len(restored) > SHOWN_FILES and file is restored[SHOWN_FILES - 1]:
            yield f"  and {len(restored) - SHOWN_FILES:,} more"
    changed = len(restored)
    verb = "would be" if dry_run else "were" if changed != 1 else "was"
    left = f", {len(done.refused)} skipped" if done.refused else ""
    yield f"{plural(changed, 'file')} {verb} {'changed again as before the undo' if redo else 'restored'}{left}."


def _outcome_line(file: UndoneFile, dry_run: bool) -> str:
    if file.what == "refused":
        return f"{short_path(file.path)}: skipped, {file.reason}"
    return f"{short_path(file.path)}: {'would be ' if dry_run else ''}{file.what}"


def _file_line(file: FileRecord) -> str:
    details: list[str] = [file.kind]
    if file.size:
        details.append(_size(file.size))
    if file.now is not None:
        details.append("unchanged" if file.now == "old" else "changed by the call or since")
    elif file.during:
        details.append("changed during it, perhaps by something else")
    if file.not_kept:
        details.append(file.not_kept)
    return f"{file.path}{'/' if file.is_folder else ''} ({', '.join(details)})"


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 1]}…"


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {UNITS[unit]}" if unit else plural(count, "byte")
