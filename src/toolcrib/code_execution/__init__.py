"""Scripts that call tools."""

from __future__ import annotations

from collections.abc import Iterable

from toolcrib.core.types import AGENT_LOOP_TOOLS, SEARCH_TOOLS

EXECUTE_CODE = "execute_code"


EXCLUDED_TOOLS = AGENT_LOOP_TOOLS | SEARCH_TOOLS | {EXECUTE_CODE, "clarify"}
"""No scripts in scripts; nothing that belongs to the conversation itself (its list, its memory, its helpers, questions
to the person); and no search, for a script calls what a search would find by its name."""


def script_tools(names: Iterable[str]) -> list[str]:
    """Those of a session's tools that its scripts may call, sorted. None of them never means all."""
    return sorted(set(names) - EXCLUDED_TOOLS)
