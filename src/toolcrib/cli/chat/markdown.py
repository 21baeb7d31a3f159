"""Markdown as Rich objects. Imported with the first answer: the parser and the highlighter take a while to load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.text import Text

from toolcrib.cli.output import clean

CODE_THEMES = {"dark": "ansi_dark", "light": "ansi_light"}
COLOURED_CHARS = 50_000
"""Highlighting more takes half a second, during which the input blocks; longer code stays plain."""


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
        yield Syntax(code, self.lexer_name, theme=self.theme, background_color="default", word_wrap=True)


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

    def __init__(self, text: str, theme: str = "dark") -> None:
        super().__init__("", code_theme=CODE_THEMES.get(theme, "ansi_dark"), hyperlinks=False)
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
