"""Where everything stands at the bottom of the terminal, and how it looks."""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, VerticalAlign, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.menus import CompletionsMenuControl
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar
from rich.text import Text

from toolcrib.cli.chat.markdown import ChatMarkdown
from toolcrib.cli.chat.paper import Paper
from toolcrib.cli.chat.status import Status

MENU_ROWS = 6
MAX_INPUT_ROWS = 10
MAX_GROWING_ROWS = 16
ROWS_FOR_THE_REST = 8
DRAWN_CHARS = 4_000
"""A longer block is shown as it is written while it grows: drawing it again and again would cost too much."""

STYLE = Style.from_dict(
    {
        "prompt": "bold",
        "working": "ansicyan",
        "queued": "dim italic",
        "hint": "ansiyellow",
        "bar": "dim",
        "completion-menu": "bg:default",
        "completion-menu.completion": "bg:default fg:default",
        "completion-menu.completion.current": "bg:default fg:default reverse",
        "completion-menu.meta.completion": "bg:default fg:default dim",
        "completion-menu.meta.completion.current": "bg:default fg:default reverse",
    }
)


class BottomRows:
    """The rows that are drawn anew whenever something changes."""

    def __init__(self, status: Status, paper: Paper, output: Output) -> None:
        self._status = status
        self._paper = paper
        self._output = output
        self._drawn: tuple[str, int, str] = ("", 0, "")

    def layout(self, buffer: Buffer) -> Layout:
        """Everything from the growing answer down to the bar; the input line has the keys."""
        status, search = self._status, SearchToolbar()
        control = BufferControl(
            buffer,
            search_buffer_control=search.control,
            input_processors=[BeforeInput(lambda: [("class:prompt", status.prompt())])],
            preview_search=True,
        )
        typed = Window(
            control,
            height=Dimension(min=1, max=MAX_INPUT_ROWS),
            wrap_lines=True,
            dont_extend_height=True,
            get_line_prefix=lambda line, _wrap: [("", status.symbols.more)] if line else [],
        )
        menu = Window(CompletionsMenuControl(), height=Dimension(min=1, max=MENU_ROWS), dont_extend_height=True)
        return Layout(
            HSplit(
                [
                    Window(height=1),
                    _rows(self._growing, lambda: status.blocks.is_growing),
                    _rows(self._working, lambda: not status.activity.is_idle),
                    _rows(self._queued, lambda: bool(status.queued)),
                    typed,
                    ConditionalContainer(menu, has_completions),
                    search,
                    _rows(self._bar, lambda: True),
                ],
                align=VerticalAlign.TOP,
            ),
            focused_element=typed,
        )

    def _growing(self) -> AnyFormattedText:
        columns, rows = self._output.get_size().columns, self._output.get_size().rows
        room = max(2, min(MAX_GROWING_ROWS, rows - ROWS_FOR_THE_REST))
        text = self._status.blocks.growing
        if self._drawn[:2] != (text, columns):
            self._drawn = (text, columns, self._draw(text, columns))
        return ANSI("\n".join(self._drawn[2].splitlines()[-room:]))

    def _draw(self, text: str, columns: int) -> str:
        if text.startswith(("```", "~~~")):
            # Only the last lines of a piece of code can be seen, and colouring the others takes its time.
            fence, *code = text.split("\n")
            text = "\n".join([fence, *code[-MAX_GROWING_ROWS:]])
        if len(text) > DRAWN_CHARS:
            return self._paper.draw(Text(text[-DRAWN_CHARS:]), columns)
        return self._paper.draw(ChatMarkdown(text), columns)

    def _working(self) -> StyleAndTextTuples:
        return [("class:working", "\n".join(self._status.working_rows(self._output.get_size().columns)))]

    def _queued(self) -> StyleAndTextTuples:
        return [("class:queued", "\n".join(self._status.queued_rows(self._output.get_size().columns)))]

    def _bar(self) -> StyleAndTextTuples:
        style = "class:hint" if self._status.has_hint else "class:bar"
        return [(style, self._status.bar_row(self._output.get_size().columns))]


def _rows(text: Callable[[], AnyFormattedText], is_shown: Callable[[], bool]) -> ConditionalContainer:
    window = Window(FormattedTextControl(text), dont_extend_height=True, wrap_lines=False)
    return ConditionalContainer(window, Condition(is_shown))
