"""Tables drawn with Rich, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
