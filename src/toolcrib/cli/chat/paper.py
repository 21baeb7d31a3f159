"""Turns what rich can draw into text for a terminal of a given width."""

from __future__ import annotations

import io
import re

from rich.console import Console, RenderableType

from toolcrib.cli.chat.markdown import THEME

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
