"""Calls of tools that were not offered by name: `tool_call` is opened here, before anything looks at the call.

So the hooks, the gate, batches, budgets and records all see the tool that really runs, under its own name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolcrib.core.types import SEARCH_TOOLS, TOOL_CALL


def unwrap(arguments: Mapping[str, Any] | str) -> tuple[str, Mapping[str, Any] | str]:
    """The name and arguments of the inner call; `tool_call` itself, unchanged, if they cannot be found."""
    outer: Any = arguments
    if isinstance(outer, str):
        try:
            outer = json.loads(outer)
        except ValueError:
            return TOOL_CALL, arguments
    if not isinstance(outer, Mapping):
        return TOOL_CALL, arguments
    name, inner = outer.get("name"), outer.get("arguments")
    if not isinstance(name, str) or name in SEARCH_TOOLS:
        return TOOL_CALL, arguments
    if inner is None:
        inner = {}
    return (name, inner) if isinstance(inner, (Mapping, str)) else (TOOL_CALL, arguments)
