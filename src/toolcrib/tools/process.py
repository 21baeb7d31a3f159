"""Manages the background processes of a session: lists, polls, waits, writes input and kills."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry


async def process(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    """The result of the action, as JSON."""
    return await ctx.services.processes.handle(args, ctx)


def effects_of(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """The gate checks what typed text would run, in the language of the program that reads it.

    The other actions only affect what this session itself started; those that change it are no use in plan mode.
    """
    if args.get("action") in ("kill", "close"):
        return (Effect("process", str(args.get("session_id") or "")),)
    if args.get("action") not in ("write", "submit"):
        return ()
    target = ctx.services.processes.typing_target(args, ctx)
    if target is None:
        return ()
    from toolcrib.terminal.typed_input import typed_effects  # noqa: PLC0415 - few sessions type, and it loads the analyser

    return typed_effects(target, str(args.get("data") or ""), ends_line=args["action"] == "submit")


registry.register(
    name="process",
    toolset="terminal",
    schema={
        "description": (
            "Manage background processes that terminal(background=true) started. list: all of this session. "
            "poll: state and new output. log: output by lines. wait: until it ends. kill: end it with its children. "
            "write: type text. submit: type a line and press Enter. close: end its input."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "action": {
                    "type": "string",
                    "enum": ["list", "poll", "log", "wait", "kill", "write", "submit", "close"],
                    "description": "What to do",
                },
                "session_id": {
                    "type": "string",
                    "description": "The process, as terminal or list named it (proc_…); for all actions but list",
                },
                "data": {"type": "string", "description": "What to type, for write and submit"},
                "timeout": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "The maximum seconds for wait; by default, the longest wait allowed",
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "The first line for log, counted from 0; without it, log shows the last lines",
                },
                "limit": {"type": "integer", "minimum": 1, "description": "How many lines log shows; 200 by default"},
            },
            "required": ["action"],
        },
    },
    handler=process,
    is_async=True,
    effects=effects_of,
    emoji="⚙️",
)
