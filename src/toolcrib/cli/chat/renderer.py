"""Cuts Markdown that is still being written into blocks that are complete and the one that still grows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from toolcrib.cli.output import clean

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?: |$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?: |$)")
_INDENTED = re.compile(r"(?: {2,}|\t)\S")


class BlockStream:
    """Takes text as it arrives. A block is a paragraph, a list, a table, a quote, a heading or a piece of code."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        """The complete lines of the block that grows."""
        self._tail: list[str] = []
        """What has arrived of the line that is being written, in pieces: it may become as long as a book."""
        self._fence = ""
        """What closes the piece of code that we are in."""

    @property
    def is_growing(self) -> bool:
        return bool(self._lines or self._tail)

    @property
    def growing(self) -> str:
        """What has arrived of the block that is not complete yet."""
        self._tail = ["".join(self._tail)] if self._tail else []
        return "\n".join([*self._lines, *self._tail]).strip("\n")

    def feed(self, text: str) -> list[str]:
        """Take a piece of text; returns the blocks that it completes."""
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
        """No more text comes; returns what is left."""
        finished: list[str] = []
        if self._tail:
            self._take("".join(self._tail), finished)
        self._tail = []
        self._end_block(finished)
        return finished

    def discard(self) -> None:
        """Forget the block that grows."""
        self._lines, self._tail, self._fence = [], [], ""

    def _take(self, line: str, finished: list[str]) -> None:
        if self._fence:
            self._lines.append(line)
            if _closes(line, self._fence):
                self._end_block(finished)
            return
        opening = _FENCE.match(line)
        if opening and not (opening[1][0] == "`" and "`" in opening[2]):
            # In a list a piece of code belongs to its item, and the list goes on behind it.
            self._end_block(finished)
            self._lines, self._fence = [line], opening[1]
        elif not line.strip():
            self._take_blank(finished)
        elif self._lines and not self._lines[-1].strip() and not (_LIST_ITEM.match(line) or _INDENTED.match(line)):
            # A list that had a blank line behind it is over.
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
            # What is indented below, or the next item, still belongs to the list.
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


THEME = Theme(
    {
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
)
CODE_THEME = "ansi_dark"
COLOURED_CHARS = 50_000
"""Colouring so much takes half a second, in which no key is heard; what is longer stays plain."""


class _Code(CodeBlock):
    """Code without a background and without padding, so that it can be copied; its fences stay where colour is off."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        if console.no_color or not console.color_system:
            language = "" if self.lexer_name == "text" else clean(self.lexer_name)
            yield Text(f"```{language}")
            yield Text(code)
            yield Text("```")
            return
        if len(code) > COLOURED_CHARS:
            yield Text(code)
            return
        yield Syntax(code, self.lexer_name, theme=CODE_THEME, background_color="default", word_wrap=True)


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class ChatMarkdown(Markdown):
    """One block. Line breaks are kept, HTML is shown as it is written, and a link shows where it leads."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme=CODE_THEME, hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
        self.markup = text
        self.parsed = [_readable(token) for token in parser.parse(text)]


def _readable(token: Token) -> Token:
    if token.children:
        token.children = list(_plain_inlines(token.children))
    return token


def _plain_inlines(children: Iterable[Token]) -> Iterator[Token]:
    inside_address = False
    for token in children:
        # An entity may stand for a character that steers the terminal.
        token.content = clean(token.content)
        if token.type == "softbreak":
            yield Token("hardbreak", "br", 0)
        elif token.type == "image":
            source = str(token.attrs.get("src", ""))
            yield Token("text", "", 0, content=f"{token.content} ({source})" if token.content else source)
        elif token.type == "link_open" and token.info == "auto":
            # Text and address are the same.
            inside_address = True
        elif token.type == "link_close" and inside_address:
            inside_address = False
        else:
            yield token


_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_PADDING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")
MIN_COLUMNS = 20


class Paper:
    """Draws without printing. Rows carry no padding, so that a terminal that changes its width leaves them alone."""

    def __init__(self, *, colour: bool) -> None:
        self._console = Console(
            file=io.StringIO(),
            theme=THEME,
            force_terminal=True,
            no_color=not colour,
            color_system="auto" if colour else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def draw(self, renderable: RenderableType, columns: int) -> str:
        """The lines, each with its end."""
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
