"""What tools promise their structured results to be like: taken from the list of tools, and kept to.

The SDK would do so with patterns that a server can make run for ever, on the loop that all servers share.
"""

from __future__ import annotations

from typing import Any

import msgspec
from mcp_types import CallToolResult

from toolcrib.core.types import JsonObject
from toolcrib.dispatch.schema import CompiledSchema
from toolcrib.mcp.listing import MAX_SCHEMA_CHARS, MAX_SCHEMA_DEPTH, depth_of
from toolcrib.mcp.schema_cost import too_costly
from toolcrib.mcp.untrusted_text import one_line

MAX_CHECKED_CHARS = 200_000
"""A longer result is believed."""


class Promises:
    """Of the tools of one connection. One that cannot be held against a result is none."""

    def __init__(self) -> None:
        self._schemas: dict[str, JsonObject] = {}
        self._compiled: dict[str, CompiledSchema] = {}

    def take(self, tools: list[Any], *, only_objects: bool) -> None:
        """Take what is promised out of a raw list of tools, so that the SDK does not see it.

        `only_objects`: the protocol does not know other structured content.
        """
        for tool in tools:
            schema = tool.pop("outputSchema", None) if isinstance(tool, dict) else None
            name = tool.get("name") if isinstance(tool, dict) else None
            if isinstance(name, str):
                self._compiled.pop(name, None)
                self._schemas.pop(name, None)
                if isinstance(schema, dict) and (schema.get("type") == "object" or not only_objects):
                    self._schemas[name] = schema

    def problem(self, tool: str, result: CallToolResult) -> str:
        """Why a result is not what was promised, as a sentence; empty when it is."""
        if result.is_error or tool not in self._schemas:
            return ""
        content = result.structured_content
        if content is None:
            return "it promises structured content, and gave none"
        compiled = self._compiled.get(tool)
        if compiled is None:
            compiled = self._compiled[tool] = CompiledSchema(_kept_to(self._schemas[tool]))
        if compiled.problem is not None or _is_long(content):
            return ""
        error = None if compiled.is_valid(content) else next(compiled.errors(content), None)
        if error is None:
            return ""
        return f"its structured content is not what it promises: {one_line(error.message, 300)}"


def _kept_to(schema: JsonObject) -> JsonObject:
    """The schema, or one that everything fits where it would take too long to find out."""
    try:
        is_long = len(msgspec.json.encode(schema)) > MAX_SCHEMA_CHARS
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return {}
    return {} if is_long or depth_of(schema) > MAX_SCHEMA_DEPTH or too_costly(schema, whole=True) else schema


def _is_long(content: Any) -> bool:
    try:
        return len(msgspec.json.encode(content)) > MAX_CHECKED_CHARS
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return True
