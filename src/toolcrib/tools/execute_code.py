"""Runs a Python script that can call the session's tools."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry
from toolcrib.terminal.availability import check_terminal


async def execute_code(args: JsonObject, *, ctx: ToolContext, enabled_tools: list[str] | None = None, **_: Any) -> Any:
    return await ctx.services.code_execution.run(args, ctx, enabled_tools)


def effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """The script, as a command in the environment where it would run."""
    return ctx.services.code_execution.effects(args, ctx)


EXECUTE_CODE_SCHEMA: JsonObject = {
    "name": "execute_code",
    "description": (
        "Run a Python script that calls tools as functions. Use it for work of many steps whose results you need not "
        "see: loops, filters, sums over many files or pages. Tools take keyword arguments and return Python values; "
        'one that failed returns a dict with "error". parallel(lambda: tool(…), …) runs calls at the same time. '
        "Print what you want to know; there is no input, and nothing is kept for the next script. "
        "5 minutes, 50 calls and 50 KB of output at most, unless set otherwise."
    ),
    "parameters": {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The script"}},
        "required": ["code"],
    },
}

registry.register(
    name="execute_code",
    toolset="code_execution",
    schema=EXECUTE_CODE_SCHEMA,
    handler=execute_code,
    check_fn=check_terminal,
    is_async=True,
    emoji="🐍",
    max_result_size_chars=100_000,
    effects=effects,
)
