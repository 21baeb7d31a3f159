"""The slash commands about file changes, /undo, /redo and /diff: what `toolcrib undo` does, in the same words."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from rich.text import Text

from toolcrib.cli.chat.slash import Chat
from toolcrib.cli.output import clean, one_line, plural, short_path
from toolcrib.cli.undo_output import FORCE_HINT, NOTHING, NOTHING_TO_REDO, call_lines, outcome_lines
from toolcrib.core.errors import UsageError
from toolcrib.core.messages import attachments_of, spoken_text

if TYPE_CHECKING:
    from toolcrib.undo.history import UndoResult
    from toolcrib.undo.records import ChangedFile

RESTORE, KEEP = "Restore the files", "Keep the files as they are"
RESTORING = "restoring"
SHOWN_FILES = 8
SHOWN_DIFF_LINES = 400


class _UndoArguments(Struct, frozen=True, kw_only=True):
    """What stands behind /undo: the options of `toolcrib undo` that concern this session."""

    count: int = 0
    call_id: str = ""
    lists: bool = False
    redo: bool = False
    force: bool = False
    dry_run: bool = False


async def undo(chat: Chat, words: str) -> None:
    arguments = _read_arguments(words)
    if arguments.count or arguments.call_id or arguments.lists or arguments.redo:
        await _undo_calls(chat, arguments)
        return
    history, session_id = chat.host.file_history, chat.agent.session_id
    changed = await asyncio.to_thread(history.changed, session_id)
    before = [one for one in changed if arguments.force or not one.during]
    others = [one for one in changed if one.during and not arguments.force]
    undone = undo_last_exchange(chat)
    if undone is not None:
        chat.host.todo.restore(session_id, chat.agent.messages)
        chat.screen.status.plan = chat.screen.plan()
        text = f"Undone: {one_line(undone.question)!r} and what followed ({plural(undone.count, 'message')})."
        chat.screen.say(text)
    of_exchange = [one for one in before if undone is not None and undone.call_ids.intersection(one.call_ids)]
    _note_others(chat, others)
    if undone is not None and not of_exchange:
        await _note_unsaved(chat, undone)
    if not before:
        if undone is None:
            chat.screen.say(NOTHING)
        return
    question = f"It also changed {_names(chat, of_exchange)}."
    if not of_exchange:
        question = f"Earlier in this session, these files were changed: {_names(chat, before)}."
    if await chat.confirm(question, RESTORE, KEEP):
        turn = undone.turn_id if undone is not None and of_exchange else None
        with _showing(chat, f"{RESTORING} {plural(len(of_exchange or before), 'file')}"):
            done = await asyncio.to_thread(history.undo_turn, session_id, turn, force=arguments.force)
        _show(chat, done, force=arguments.force)


async def redo(chat: Chat, words: str) -> None:
    await _undo_calls(chat, _read_arguments(f"--redo {words}"))


async def show_diff(chat: Chat, path: str) -> None:
    history, session_id = chat.host.file_history, chat.agent.session_id
    changed = await asyncio.to_thread(history.changed, session_id)
    paths = [path] if path else [one.path for one in changed if not one.during]
    shown = Text()
    with _showing(chat, f"comparing {plural(len(paths), 'file')}"):
        for one in paths:
            shown.append_text(_coloured(await asyncio.to_thread(history.diff, session_id, one)))
    others = [one for one in changed if one.during and not path]
    if shown:
        chat.screen.frontend.show(_cut(shown), gap=True)
    elif not others:
        chat.screen.say("This session has changed no files.")
    _note_others(chat, others)


class UndoneExchange(Struct, frozen=True):
    """The last exchange, after its removal from the session."""

    question: str
    attached: tuple[tuple[str, str], ...]
    """Name and text of what went along with the question."""
    turn_id: str
    call_ids: frozenset[str]
    count: int


def undo_last_exchange(chat: Chat) -> UndoneExchange | None:
    """Remove the last question, with everything that was said while the agent worked on it."""
    stored = chat.host.store.messages(chat.agent.session_id)
    asked = [one for one in stored if one.message.role == "user"]
    if not asked:
        return None
    turn = asked[-1].turn_id
    first = next(one for one in asked if one is asked[-1] or (turn and one.turn_id == turn))
    calls = frozenset(call.id for one in stored[stored.index(first) :] for call in one.message.tool_calls)
    count = sum(chat.agent.undo() for _ in range(asked.index(first), len(asked)))
    text = first.message.text
    return UndoneExchange(spoken_text(text), tuple(attachments_of(text)), turn, calls, count)


def _read_arguments(words: str) -> _UndoArguments:
    command = click.Command(
        "/undo",
        params=[
            click.Argument(["count"], required=False, type=click.IntRange(min=1)),
            click.Option(["--list", "lists"], is_flag=True),
            click.Option(["--to", "call_id"]),
            click.Option(["--redo"], is_flag=True),
            click.Option(["--force"], is_flag=True),
            click.Option(["--dry-run"], is_flag=True),
        ],
    )
    try:
        given = command.make_context("/undo", shlex.split(words), resilient_parsing=False).params
    except (click.ClickException, ValueError) as error:
        told = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise UsageError(f"/undo: {told} It takes N, --list, --to CALL, --redo, --force and --dry-run.") from error
    return _UndoArguments(
        count=given["count"] or 0,
        call_id=given["call_id"] or "",
        lists=given["lists"],
        redo=given["redo"],
        force=given["force"],
        dry_run=given["dry_run"],
    )


async def _undo_calls(chat: Chat, arguments: _UndoArguments) -> None:
    history, session_id = chat.host.file_history, chat.agent.session_id
    if arguments.lists:
        calls = await asyncio.to_thread(history.calls, session_id)
        lines = [line for call in calls for line in call_lines(call)]
        chat.screen.frontend.show(Text(clean("\n".join(lines) or NOTHING)), gap=True)
        return
    force, dry_run = arguments.force, arguments.dry_run
    with _showing(chat, "comparing files" if dry_run else f"{RESTORING} files"):
        if arguments.redo:
            done = await asyncio.to_thread(history.redo, session_id, force=force, dry_run=dry_run)
        elif arguments.call_id:
            done = await asyncio.to_thread(history.undo_to, session_id, arguments.call_id, force=force, dry_run=dry_run)
        else:
            count = arguments.count
            done = await asyncio.to_thread(history.undo_calls, session_id, count, force=force, dry_run=dry_run)
    _show(chat, done, force=force, dry_run=dry_run, redo=arguments.redo)


@contextmanager
def _showing(chat: Chat, phase: str) -> Iterator[None]:
    """Show what goes on meanwhile: thousands of files take a while."""
    chat.status.activity.begin(phase)
    if phase.startswith(RESTORING):
        chat.status.activity.detail = "cannot be stopped halfway"
    try:
        yield
    finally:
        chat.status.activity.end()


def _show(chat: Chat, done: UndoResult, *, force: bool, dry_run: bool = False, redo: bool = False) -> None:
    if not done.files and not done.calls:
        chat.screen.say(NOTHING_TO_REDO if redo else NOTHING)
        return
    for line in outcome_lines(done, dry_run=dry_run, redo=redo):
        chat.screen.note(line)
    if done.refused and not force:
        chat.screen.note(FORCE_HINT.replace("Add", "Type /undo with"))


def _note_others(chat: Chat, files: list[ChangedFile]) -> None:
    if files:
        chat.screen.note(f"Changed while commands ran, perhaps by something else: {_names(chat, files)}.")


async def _note_unsaved(chat: Chat, undone: UndoneExchange) -> None:
    """Say which files of an exchange undo knows nothing about, lest the person believe that they are restored."""
    calls = await asyncio.to_thread(chat.host.file_history.calls, chat.agent.session_id)
    for note in dict.fromkeys(note for call in calls if call.call_id in undone.call_ids for note in call.notes):
        chat.screen.note(note)


def _names(chat: Chat, files: list[ChangedFile]) -> str:
    here = f"{os.path.realpath(chat.folder)}/"
    shown = [(short_path(one.path.removeprefix(here)), one.kind) for one in files[:SHOWN_FILES]]
    more = f" and {len(files) - SHOWN_FILES:,} more" if len(files) > SHOWN_FILES else ""
    return ", ".join(name if kind == "changed" else f"{name} ({kind})" for name, kind in shown) + more


def _coloured(diff: str) -> Text:
    shown = Text()
    for line in clean(diff).splitlines():
        is_head = line.startswith(("---", "+++"))
        style = "bold" if is_head else {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        shown.append(f"{line}\n", style)
    return shown


def _cut(shown: Text) -> Text:
    lines = shown.split("\n")
    if len(lines) <= SHOWN_DIFF_LINES:
        return shown
    more = f"… {len(lines) - SHOWN_DIFF_LINES:,} more lines; /diff PATH shows one file"
    return Text("\n").join([*lines[:SHOWN_DIFF_LINES], Text(more, "dim")])
