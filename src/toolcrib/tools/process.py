"""The background processes of a session: look at them, wait for them, talk to them, end them."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry


async def process(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    """What became of the action, as JSON."""
    return await ctx.services.processes.handle(args, ctx)


def effects_of(args: JsonObject, _: ToolContext) -> tuple[Effect, ...]:
    """What is typed into a process may be a command for the shell that runs there, so it is judged like one.

    Ending and looking only touch what this session started itself.
    """
    if args.get("action") in ("write", "submit") and args.get("data"):
        return (Effect("exec", str(args["data"])),)
    return ()


registry.register(
    name="process",
    toolset="terminal",
    schema={
        "description": (
            "Look after background processes that terminal(background=true) started. list: all of this session. "
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
                    "description": "How many seconds wait lasts at most; without it, as long as one wait may last",
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "The first line for log, counted from 0; without it, log shows the last lines",
                },
                "limit": {"type": "integer", "minimum": 1, "description": "How many lines log shows; 200 if not said"},
            },
            "required": ["action"],
        },
    },
    handler=process,
    is_async=True,
    effects=effects_of,
    emoji="⚙️",
)
