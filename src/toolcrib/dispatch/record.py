"""The recorder of a runtime that keeps no records."""

from __future__ import annotations

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, ToolEntry, ToolResult


class NullRecorder:
    """Keeps nothing and opens nothing."""

    def started(
        self, _entry: ToolEntry, _arguments: JsonObject, _effects: tuple[Effect, ...], _ctx: ToolContext, /
    ) -> None:
        return None

    def finished(self, _entry: ToolEntry, _result: ToolResult, _ctx: ToolContext, /) -> None:
        return None
