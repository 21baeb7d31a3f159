"""A list to choose from with the arrow keys, narrowed by typing; drawn below the conversation and erased afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style

from toolcrib.cli.chat.symbols import Symbols, fitted
from toolcrib.cli.output import cell_width, one_line

MAX_ROWS = 12
ROWS_FOR_THE_REST = 4
MIN_COLUMNS_FOR_ABOUT = 60
"""In a narrower terminal the names need the whole row."""
STYLE = Style.from_dict({"title": "bold", "chosen": "reverse", "about": "dim", "hint": "dim"})
HINT = "arrows choose, typing filters, Enter takes, Esc leaves"
ESCAPE_SECONDS = 0.1


class PickerRow(Struct, frozen=True):
    """One thing to choose."""

    text: str
    about: str = ""


class Picker:
    """The state of one list: what was typed, what matches, and which row is chosen."""

    def __init__(self, title: str, rows: Sequence[PickerRow], symbols: Symbols, chosen: int = 0) -> None:
        self._title = title
        self._rows = rows
        self._symbols = symbols
        self._typed = ""
        self._at = chosen
        self._width = max((cell_width(one_line(row.text)) for row in rows), default=0)

    @property
    def matching(self) -> list[int]:
        """The rows that contain all typed words."""
        words = self._typed.lower().split()
        texts = [f"{row.text} {row.about}".lower() for row in self._rows]
        return [at for at, text in enumerate(texts) if all(word in text for word in words)]

    @property
    def chosen(self) -> int | None:
        """The number of the chosen row; None if nothing matches."""
        found = self.matching
        return found[self._at] if found else None

    def type(self, text: str) -> None:
        self._typed, self._at = self._typed + text, 0

    def erase(self) -> None:
        self._typed, self._at = self._typed[:-1], 0

    def move(self, by: int, *, wraps: bool = True) -> None:
        count = len(self.matching)
        if count:
            self._at = (self._at + by) % count if wraps else min(max(self._at + by, 0), count - 1)

    def drawn(self, columns: int, rows: int) -> StyleAndTextTuples:
        """The title, what was typed, and the rows around the chosen one, as wide as the terminal."""
        found, room = self.matching, max(1, min(MAX_ROWS, rows - ROWS_FOR_THE_REST))
        first = max(0, min(self._at - room // 2, len(found) - room))
        counts = f"{len(found)} of {len(self._rows)}" if self._typed else str(len(self._rows))
        lines: StyleAndTextTuples = [
            ("class:title", fitted(f"{self._title} ({counts})", columns - 1, self._symbols.ellipsis)),
            ("", f"\n{self._symbols.prompt}{self._typed}\n"),
        ]
        for place, at in enumerate(found[first : first + room], first):
            lines += self._row(self._rows[at], columns, is_chosen=place == self._at)
        if not found:
            lines.append(("class:about", "  nothing matches\n"))
        return [*lines, ("class:hint", fitted(HINT, columns - 1, self._symbols.ellipsis))]

    def _row(self, row: PickerRow, columns: int, *, is_chosen: bool) -> StyleAndTextTuples:
        sign = "> " if is_chosen else "  "
        has_about = bool(row.about) and columns >= MIN_COLUMNS_FOR_ABOUT
        width = min(self._width, columns // 2) if has_about else columns - 3
        name = fitted(one_line(row.text), width, self._symbols.ellipsis)
        padding = " " * (width - cell_width(name)) if has_about else ""
        about = fitted(one_line(row.about), columns - width - 6, self._symbols.ellipsis) if has_about else ""
        return [
            ("class:chosen" if is_chosen else "", f"{sign}{name}"),
            ("", padding),
            ("class:about", f"  {about}\n" if about else "\n"),
        ]


def picker_application(picker: Picker, source: Input, output: Output) -> Application[int | None]:
    """The application that shows a picker; its result is the number of the chosen row, or None."""
    keys = KeyBindings()

    @keys.add("up")
    @keys.add("c-p")
    def _up(_event: KeyPressEvent) -> None:
        picker.move(-1)

    @keys.add("down")
    @keys.add("c-n")
    @keys.add("tab")
    def _down(_event: KeyPressEvent) -> None:
        picker.move(1)

    @keys.add("pageup")
    def _page_up(_event: KeyPressEvent) -> None:
        picker.move(-MAX_ROWS, wraps=False)

    @keys.add("pagedown")
    def _page_down(_event: KeyPressEvent) -> None:
        picker.move(MAX_ROWS, wraps=False)

    @keys.add("enter")
    def _take(event: KeyPressEvent) -> None:
        if picker.chosen is not None:
            event.app.exit(result=picker.chosen)

    @keys.add("escape", eager=True)
    @keys.add("c-c")
    @keys.add("c-d")
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(result=None)

    @keys.add("backspace")
    def _erase(_event: KeyPressEvent) -> None:
        picker.erase()

    @keys.add(Keys.Any)
    def _type(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            picker.type(event.data)

    def text() -> StyleAndTextTuples:
        size = output.get_size()
        return picker.drawn(size.columns, size.rows)

    application: Application[int | None] = Application(
        Layout(Window(FormattedTextControl(text, show_cursor=False), dont_extend_height=True, wrap_lines=False)),
        key_bindings=keys,
        style=STYLE,
        erase_when_done=True,
        input=source,
        output=output,
    )
    application.ttimeoutlen = ESCAPE_SECONDS
    return application
