"""Markdown on a terminal: splits streamed text into blocks, and renders them with Rich."""

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
"""Highlighting more takes half a second, during which the input blocks; longer code stays plain."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_PADDING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")
MIN_COLUMNS = 20


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


class _Code(CodeBlock):
    """Code without background and padding, so that it can be copied; without colour, it keeps its fences."""

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
    """One block. Keeps line breaks, shows HTML as text, and shows the target of each link."""

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
        # An entity may encode a terminal control character.
        token.content = clean(token.content)
        if token.type == "softbreak":
            yield Token("hardbreak", "br", 0)
        elif token.type == "image":
            source = str(token.attrs.get("src", ""))
            yield Token("text", "", 0, content=f"{token.content} ({source})" if token.content else source)
        elif token.type == "link_open" and token.info == "auto":
            # The text of the link is its address.
            inside_address = True
        elif token.type == "link_close" and inside_address:
            inside_address = False
        else:
            yield token


class TerminalRenderer:
    """Renders Rich objects to text. Lines have no padding, so that resizing the terminal does not wrap them."""

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
