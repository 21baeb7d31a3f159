"""The input line: completion, key bindings, and the external editor."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import TextIO

from prompt_toolkit.buffer import Buffer, CompletionState
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.vi_state import InputMode
from prompt_toolkit.keys import Keys

from toolcrib.cli.chat.frontend import InputListener
from toolcrib.cli.chat.slash import Chat, SlashCommand
from toolcrib.cli.output import one_line
from toolcrib.config.environment import environment
from toolcrib.core.errors import ToolcribError

MAX_PATHS = 50
MAX_LOOKED_AT = 100_000
_PATH = re.compile(r"""(?:^|\s)@(?:"([^"\n]*)|((?:\\.|[^\s"\\])*))$""")
_WORD = re.compile(r"/([\w?-]*)$")
_ARGUMENT = re.compile(r"/([\w?-]+)\s+(\S*)$")
Tell = Callable[[Callable[[InputListener], None]], None]
FALLBACK = "vi"


class ChatCompleter(Completer):
    """Completes commands, their arguments, and paths after an @. Fast enough for every key press."""

    def __init__(self, chat: Callable[[], Chat | None], folder: Callable[[], Path]) -> None:
        self._chat = chat
        self._folder = folder

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        path = _PATH.search(before)
        chat = self._chat()
        if path:
            yield from self._paths(path)
        elif chat is not None and (found := _WORD.fullmatch(before)):
            yield from _commands(chat.commands().values(), found[1].lower())
        elif chat is not None and (found := _ARGUMENT.fullmatch(before)):
            yield from _words(_arguments(chat, found[1].lower()), found[2])

    def _paths(self, match: re.Match[str]) -> Iterator[Completion]:
        typed = match[1] if match[1] is not None else re.sub(r"\\(.)", r"\1", match[2])
        written = match[1] if match[1] is not None else match[2]
        start = -len(written) - (1 if match[1] is not None else 0)
        head, begun = os.path.split(typed)
        # `~user` of an unknown user stays as typed, and nothing is found.
        folder = self._folder() / os.path.expanduser(head)  # noqa: PTH111
        for name, is_folder in _entries(folder, begun):
            whole = os.path.join(head, name) + (os.sep if is_folder else "")  # noqa: PTH118 - keep the text as typed
            text = f'"{whole}' + ("" if is_folder else '"') if " " in whole else whole
            yield Completion(text, start_position=start, display=name + (os.sep if is_folder else ""))


def _arguments(chat: Chat, name: str) -> Iterable[str]:
    command = chat.commands().get(name)
    if command is None or command.complete is None:
        return ()
    try:
        return list(command.complete(chat))
    except (ToolcribError, OSError):
        return ()  # completion cannot show an error


def _entries(folder: Path, begun: str) -> list[tuple[str, bool]]:
    """The matching entries of a folder, folders first; none if it cannot be read."""
    wanted, shows_hidden = begun.lower(), begun.startswith(".")
    try:
        with os.scandir(folder) as found:
            fitting = [
                (entry.name, entry.is_dir())
                for entry in islice(found, MAX_LOOKED_AT)
                if entry.name.lower().startswith(wanted) and (shows_hidden or not entry.name.startswith("."))
            ]
    except OSError:
        return []
    return nsmallest(MAX_PATHS, fitting, key=lambda one: (not one[1], one[0].lower()))


def _commands(commands: Iterable[SlashCommand], begun: str) -> Iterator[Completion]:
    for one in commands:
        if one.name.startswith(begun):
            # Leave room for an argument.
            text = f"{one.name} " if one.complete is not None else one.name
            display = f"/{one.name} {one.arguments}".rstrip()
            yield Completion(text, start_position=-len(begun), display=display, display_meta=one.summary)


def _words(words: Iterable[str], begun: str) -> Iterator[Completion]:
    for word in words:
        if begun.lower() in word.lower():
            yield Completion(word, start_position=-len(begun), display=one_line(word))


def chat_keys(buffer: Buffer, tell: Tell, edit: Callable[[], None]) -> KeyBindings:
    """The key bindings; `tell` notifies the listener, `edit` opens the editor."""
    keys = KeyBindings()
    typing = has_focus(buffer)

    @keys.add("enter", filter=typing)
    def _submit(event: KeyPressEvent) -> None:
        if _takes_completion(buffer) or _continues(buffer):
            return
        text = buffer.text
        if text.strip():
            with suppress(OSError):  # a full disk must not prevent a question
                buffer.append_to_history()
        buffer.reset()
        # As in a shell, each line begins in vi's insert mode.
        event.app.vi_state.input_mode = InputMode.INSERT
        tell(lambda listener: listener.submit(text))

    has_one_completion = Condition(lambda: buffer.complete_state is not None and _only(buffer.complete_state))

    @keys.add("tab", filter=typing & has_one_completion)
    def _complete(_event: KeyPressEvent) -> None:
        # The menu closes too, so that the next Enter sends.
        if buffer.complete_state is not None:
            buffer.apply_completion(buffer.complete_state.completions[0])

    @keys.add("escape", "enter", filter=typing)
    @keys.add("c-j", filter=typing)
    def _new_line(_event: KeyPressEvent) -> None:
        buffer.insert_text("\n")

    @keys.add("c-c", filter=typing)
    @keys.add(Keys.SIGINT)
    def _interrupt(_event: KeyPressEvent) -> None:
        tell(lambda listener: listener.interrupt() if listener.is_working or not buffer.text else buffer.reset())

    @keys.add("c-d", filter=typing)
    def _leave(_event: KeyPressEvent) -> None:
        if buffer.text:
            buffer.delete()
        else:
            tell(lambda listener: listener.leave())

    @keys.add("c-z")
    def _suspend(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    @keys.add("c-x", "c-e", filter=typing)
    def _edit(_event: KeyPressEvent) -> None:
        edit()

    return keys


def _only(menu: CompletionState) -> bool:
    return len(menu.completions) == 1 and menu.complete_index is None


def _continues(buffer: Buffer) -> bool:
    """A backslash at the end of the line continues on a new line."""
    if not buffer.document.is_cursor_at_the_end or not buffer.text.endswith("\\"):
        return False
    buffer.delete_before_cursor(1)
    buffer.insert_text("\n")
    return True


def _takes_completion(buffer: Buffer) -> bool:
    """Enter on a selected completion accepts it; a completed command runs at once."""
    state = buffer.complete_state
    if state is None:
        return False
    chosen = state.current_completion
    buffer.complete_state = None
    return chosen is not None and not buffer.text.startswith("/")


async def edit_in_editor(text: str, terminal: TextIO) -> str:
    """The text as saved in $VISUAL or $EDITOR; unchanged if the editor fails. Needs the terminal."""
    command = shlex.split(environment().get("VISUAL") or environment().get("EDITOR") or FALLBACK)
    with tempfile.TemporaryDirectory(prefix="toolcrib-") as folder:
        file = Path(folder, "message.md")
        _write(file, text)
        try:
            editor = await asyncio.create_subprocess_exec(
                *command, str(file), stdin=sys.stdin, stdout=terminal.fileno(), stderr=terminal.fileno()
            )
        except OSError as error:
            terminal.write(f"cannot start {command[0]}: {error.strerror}; set EDITOR to an editor\n")
            return text
        failed = await editor.wait() != 0
        return text if failed else _read(file)


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace").rstrip("\n")
