"""The tools by name, as a dict that knows when it was changed.

Callers who know the reference system write into `registry._tools` directly; what was worked out from the table
(sorted lists, tools by toolset) must notice that.
"""

from __future__ import annotations

from typing import Any

from toolcrib.core.types import ToolEntry


class ToolTable(dict[str, ToolEntry]):
    """A plain dict for readers; `version` grows after every change, so that nobody takes the old for the new."""

    version = 0

    def __setitem__(self, name: str, entry: ToolEntry) -> None:
        super().__setitem__(name, entry)
        self.version += 1

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.version += 1

    def __ior__(self, other: Any) -> ToolTable:  # type: ignore[override, misc]
        self.update(other)
        return self

    def clear(self) -> None:
        super().clear()
        self.version += 1

    def pop(self, *arguments: Any) -> Any:
        try:
            return super().pop(*arguments)
        finally:
            self.version += 1

    def popitem(self) -> tuple[str, ToolEntry]:
        try:
            return super().popitem()
        finally:
            self.version += 1

    def setdefault(self, *arguments: Any) -> Any:
        try:
            return super().setdefault(*arguments)
        finally:
            self.version += 1

    def update(self, *arguments: Any, **entries: ToolEntry) -> None:
        super().update(*arguments, **entries)
        self.version += 1
