"""Tables drawn with Rich, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from toolcrib.cli.output import clean

_STYLES = {"yes": "green", "on": "green", "no": "yellow", "error": "red", "warning": "yellow", "broken": "red"}


def draw_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for at, name in enumerate(columns):
        table.add_column(name, overflow="fold", no_wrap=at == 0)
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "bold" if at == 0 else "")) for at, cell in enumerate(row)))
    Console(highlight=False).print(table)


def draw_pairs(lines: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print labels, each with its texts beside it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, texts in lines:
        grid.add_row(Text(label, style="bold"), Text("\n".join(texts)))
    Console(highlight=False).print(grid)


def table(rows: Iterable[Iterable[str]], *, heading: Iterable[str] = ()) -> RenderableType:
    """Rows in columns; long texts are folded."""
    titles = tuple(heading)
    drawn_table = Table(box=None, show_header=bool(titles), header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    drawn = [[Text(clean(cell)) for cell in row] for row in rows]
    for at in range(max([len(titles), *map(len, drawn)], default=0)):
        drawn_table.add_column(titles[at] if titles else "", overflow="fold", no_wrap=at == 0)
    for row in drawn:
        drawn_table.add_row(*row)
    return drawn_table
