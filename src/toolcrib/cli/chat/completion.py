"""What Tab offers in the input line: commands, what may follow them, and paths behind an @."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from toolcrib.cli.chat.slash import Chat, SlashCommand
from toolcrib.cli.output import one_line
from toolcrib.core.errors import ToolcribError

MAX_PATHS = 50
MAX_LOOKED_AT = 5_000
_PATH = re.compile(r"""(?:^|\s)@(?:"([^"\n]*)|((?:\\.|[^\s"\\])*))$""")
_WORD = re.compile(r"/([\w?-]*)$")
_ARGUMENT = re.compile(r"/([\w?-]+)\s+(\S*)$")


class ChatCompleter(Completer):
    """Looks at the text before the cursor. Cheap enough for every key."""

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
        # An unknown user stays as he was typed, and nothing is found.
        folder = self._folder() / os.path.expanduser(head)  # noqa: PTH111
        for name, is_folder in _entries(folder, begun):
            whole = os.path.join(head, name) + (os.sep if is_folder else "")  # noqa: PTH118 - text as it was typed
            text = f'"{whole}' + ("" if is_folder else '"') if " " in whole else whole
            yield Completion(text, start_position=start, display=name + (os.sep if is_folder else ""))


def _arguments(chat: Chat, name: str) -> Iterable[str]:
    command = chat.commands().get(name)
    if command is None or command.complete is None:
        return ()
    try:
        return list(command.complete(chat))
    except (ToolcribError, OSError):
        return ()  # there is no place for a message while somebody is typing


def _entries(folder: Path, begun: str) -> list[tuple[str, bool]]:
    """What is in the folder and begins so, folders first; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            looked_at = list(islice(found, MAX_LOOKED_AT))
    except OSError:
        return []
    fitting = [
        (entry.name, entry.is_dir())
        for entry in looked_at
        if entry.name.lower().startswith(begun.lower()) and (begun.startswith(".") or not entry.name.startswith("."))
    ]
    return sorted(fitting, key=lambda one: (not one[1], one[0].lower()))[:MAX_PATHS]


def _commands(commands: Iterable[SlashCommand], begun: str) -> Iterator[Completion]:
    for one in commands:
        if one.name.startswith(begun):
            # A command that takes something leaves room for it.
            text = f"{one.name} " if one.complete is not None else one.name
            display = f"/{one.name} {one.arguments}".rstrip()
            yield Completion(text, start_position=-len(begun), display=display, display_meta=one.summary)


def _words(words: Iterable[str], begun: str) -> Iterator[Completion]:
    for word in words:
        if begun.lower() in word.lower():
            yield Completion(word, start_position=-len(begun), display=one_line(word))
