"""Markdown of a model as a terminal shows it: nothing of it is lost, and nothing of it is obeyed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from toolcrib.cli.output import clean

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
