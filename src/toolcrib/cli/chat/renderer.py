"""Text on a terminal: splits streamed Markdown into blocks, and renders Rich objects in the colours of a theme.

The theme follows the background: a variable may name it, else the terminal is asked.
"""

from __future__ import annotations

import io
import os
import re
import select
from collections.abc import Callable, Mapping
from typing import Literal

from rich.console import Console, RenderableType
from rich.theme import Theme

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?: |$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?: |$)")
_INDENTED = re.compile(r"(?: {2,}|\t)\S")
ThemeName = Literal["dark", "light", "plain"]
THEMES: tuple[ThemeName, ...] = ("dark", "light", "plain")
_STYLES = {
    "markdown.code": "cyan",
    "markdown.h1": "bold underline",
    "markdown.h2": "bold underline",
    "markdown.h3": "bold",
    "markdown.h4": "bold",
    "markdown.h5": "bold",
    "markdown.h6": "bold",
    "markdown.block_quote": "italic",
    "markdown.link": "underline",
    "markdown.link_url": "dim",
    "markdown.item.bullet": "dim",
    "markdown.item.number": "dim",
    "markdown.table.border": "dim",
    "markdown.hr": "dim",
}
THEME = Theme(_STYLES)
# The colours that are hard to read on a light background, in darker shades.
_DARKER = {"yellow": "#8a6100", "cyan": "#05609e", "green": "#116329", "red": "#a40e26"}
LIGHT_THEME = Theme({**_STYLES, **_DARKER, "markdown.code": _DARKER["cyan"]})
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_PADDING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")
MIN_COLUMNS = 20
_BACKGROUND = re.compile(
    r"\x1b\]11;rgba?:([0-9a-f]{1,4})/([0-9a-f]{1,4})/([0-9a-f]{1,4})[^\x07\x1b]*(?:\x07|\x1b\\)", re.I
)
_BEGUN_ANSWER = re.compile(r"\x1b\](?:1(?:1(?:;[^\x07\x1b]*\x1b?)?)?)?$")
LATE_ANSWER_SECONDS = 0.1
CHUNK_BYTES = 1024


class BlockStream:
    """Splits streamed Markdown into complete blocks and one that still grows.

    A block is a paragraph, a list, a table, a quote, a heading or a code block.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        """The complete lines of the growing block."""
        self._tail: list[str] = []
        """The pieces of the incomplete line, which may become very long."""
        self._fence = ""
        """The fence that closes the current code block; empty outside of one."""

    @property
    def is_growing(self) -> bool:
        return bool(self._lines or self._tail)

    @property
    def growing(self) -> str:
        """The text of the growing block."""
        self._tail = ["".join(self._tail)] if self._tail else []
        return "\n".join([*self._lines, *self._tail]).strip("\n")

    def feed(self, text: str) -> list[str]:
        """Add text; returns the blocks that it completes."""
        finished: list[str] = []
        if "\n" not in text:
            self._tail += [text] if text else []
            return finished
        *lines, tail = "".join([*self._tail, text]).split("\n")
        self._tail = [tail] if tail else []
        for line in lines:
            self._take(line, finished)
        return finished

    def finish(self) -> list[str]:
        """End the text; returns the remaining blocks."""
        finished: list[str] = []
        if self._tail:
            self._take("".join(self._tail), finished)
        self._tail = []
        self._end_block(finished)
        return finished

    def discard(self) -> None:
        """Discard the growing block."""
        self._lines, self._tail, self._fence = [], [], ""

    def _take(self, line: str, finished: list[str]) -> None:
        if self._fence:
            self._lines.append(line)
            if _closes(line, self._fence):
                self._end_block(finished)
            return
        opening = _FENCE.match(line)
        if opening and not (opening[1][0] == "`" and "`" in opening[2]):
            # In a list, a code block belongs to its item, and the list continues after it.
            self._end_block(finished)
            self._lines, self._fence = [line], opening[1]
        elif not line.strip():
            self._take_blank(finished)
        elif self._lines and not self._lines[-1].strip() and not (_LIST_ITEM.match(line) or _INDENTED.match(line)):
            # A blank line ended the list.
            self._end_block(finished)
            self._take(line, finished)
        elif _HEADING.match(line):
            self._end_block(finished)
            finished.append(line)
        elif self._lines and _is_row(self._lines[0]) != _is_row(line):
            self._end_block(finished)
            self._lines.append(line)
        else:
            self._lines.append(line)

    def _take_blank(self, finished: list[str]) -> None:
        if self._lines and _LIST_ITEM.match(self._lines[0]):
            # The next item, or indented text, still belongs to the list.
            self._lines.append("")
        else:
            self._end_block(finished)

    def _end_block(self, finished: list[str]) -> None:
        block = "\n".join(self._lines).strip("\n")
        if block.strip():
            finished.append(block)
        self._lines, self._fence = [], ""


def _closes(line: str, fence: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(fence) and not bare.strip(fence[0]) and len(line) - len(line.lstrip()) <= 3


def _is_row(line: str) -> bool:
    return line.lstrip().startswith("|")


def as_markdown(text: str, theme: ThemeName = "dark") -> RenderableType:
    """A block of an answer, to be rendered."""
    # Only an answer needs the parser and the highlighter, which take a tenth of the start to load.
    from toolcrib.cli.chat.markdown import ChatMarkdown  # noqa: PLC0415

    return ChatMarkdown(text, theme)


class TerminalRenderer:
    """Renders Rich objects to text. Lines have no padding, so that resizing the terminal does not wrap them."""

    def __init__(self, *, colour: bool, theme: ThemeName = "dark") -> None:
        self._may_use_colour = colour
        self.theme = theme
        self._console = self._make_console()

    @property
    def has_colour(self) -> bool:
        return self._may_use_colour and self.theme != "plain"

    def use_theme(self, theme: ThemeName) -> None:
        self.theme = theme
        self._console = self._make_console()

    def _make_console(self) -> Console:
        return Console(
            file=io.StringIO(),
            theme=LIGHT_THEME if self.theme == "light" else THEME,
            force_terminal=True,
            no_color=not self.has_colour,
            color_system="auto" if self.has_colour else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def draw_markdown(self, text: str, columns: int) -> str:
        """A block of an answer, rendered."""
        return self.draw(as_markdown(text, self.theme), columns)

    def draw(self, renderable: RenderableType, columns: int) -> str:
        """The rendered lines, each with its line break."""
        with self._console.capture() as capture:
            self._console.print(renderable, width=max(columns, MIN_COLUMNS))
        lines = [_PADDING.sub(r"\1", line) for line in capture.get().split("\n")]
        while lines and _is_empty(lines[0]):
            del lines[0]
        while lines and _is_empty(lines[-1]):
            del lines[-1]
        return "".join(f"{line}\n" for line in lines)


def _is_empty(line: str) -> bool:
    return not _STYLE.sub("", line).strip()


class BackgroundQuestion:
    """Asks the terminal for its background colour, and takes the answer out of what is typed, whenever it comes."""

    def __init__(self, answered: Callable[[ThemeName], None]) -> None:
        self._answered = answered
        self._begun = ""
        self.is_open = False

    def take(self, typed: str) -> str:
        """What was typed, without the answer."""
        if not self.is_open:
            return typed
        typed, self._begun = self._begun + typed, ""
        found = _BACKGROUND.search(typed)
        if found:
            self.is_open = False
            red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
            self._answered("light" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "dark")
            return typed[: found.start()] + typed[found.end() :]
        begun = _BEGUN_ANSWER.search(typed)
        if begun:
            self._begun = begun[0]
            return typed[: begun.start()]
        return typed

    def wait(self, descriptor: int) -> None:
        """Take an answer that is on its way, so that it doesn't reach the next program; call it in raw mode."""
        while self.is_open and select.select([descriptor], [], [], LATE_ANSWER_SECONDS)[0]:
            data = os.read(descriptor, CHUNK_BYTES)
            if not data:
                return
            self.take(data.decode("utf-8", "replace"))


def theme_of_variables(environ: Mapping[str, str]) -> ThemeName | None:
    """The theme for the background that COLORFGBG names; None if it names none."""
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    if not background.isdigit():
        return None
    return "light" if background in ("7", "15") else "dark"
