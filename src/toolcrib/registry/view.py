"""All tools of one moment, in order: what readers of a registry look at."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from toolcrib.core.types import ToolEntry


class View(msgspec.Struct, frozen=True):
    """All tools of one generation, sorted, by name and by toolset."""

    generation: int
    entries: tuple[ToolEntry, ...]
    names: tuple[str, ...]
    by_toolset: dict[str, tuple[ToolEntry, ...]]

    @classmethod
    def of(cls, entries: Iterable[ToolEntry], generation: int) -> View:
        ordered = tuple(sorted(entries, key=attrgetter("name")))
        grouped: dict[str, list[ToolEntry]] = {}
        for entry in ordered:
            grouped.setdefault(entry.toolset, []).append(entry)
        by_toolset = {toolset: tuple(grouped[toolset]) for toolset in sorted(grouped)}
        return cls(generation, ordered, tuple([entry.name for entry in ordered]), by_toolset)
