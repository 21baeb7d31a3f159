"""Runs the scripts of `execute_code`, which can call tools."""

from __future__ import annotations

from collections.abc import Iterable

from toolcrib.core.types import AGENT_LOOP_TOOLS, SEARCH_TOOLS

EXECUTE_CODE = "execute_code"
EXCLUDED_TOOLS = AGENT_LOOP_TOOLS | SEARCH_TOOLS | {EXECUTE_CODE, "clarify"}
"""Scripts cannot start scripts, use tools of the conversation itself (todo list, memory, subagents, questions to the
person), or search tools, because a script calls tools by name."""


def script_tools(names: Iterable[str]) -> list[str]:
    """The tools of a session that its scripts may call, sorted. An empty list never means all."""
    return sorted(set(names) - EXCLUDED_TOOLS)
