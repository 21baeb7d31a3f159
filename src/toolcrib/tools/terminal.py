"""Runs commands where the settings say: on this machine, in a sandbox or container, on another machine."""

from __future__ import annotations

import os
from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, Unavailable
from toolcrib.registry import registry
from toolcrib.registry.availability import runs_in_place

USUAL_PLACES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


async def terminal(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.terminal.handle(args, ctx)


def effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """The command, in the environment and folder of its session."""
    return (ctx.services.terminal.effect_of(args, ctx),)


@runs_in_place
def check_terminal() -> bool | Unavailable:
    """Whether there is a shell. Runs often, so it checks the usual places first."""
    # Without `shutil`, which every start would have to load only for this.
    folders = (os.path.join(folder, "bash") for folder in os.get_exec_path())  # noqa: PTH118
    if any(map(os.path.exists, USUAL_PLACES)) or any(map(os.path.exists, folders)):
        return True
    return Unavailable("there is no bash on this machine", "install bash 4.4 or later")


TERMINAL_SCHEMA: JsonObject = {
    "name": "terminal",
    "description": (
        "Run a shell command (bash) and get its output and exit code. Folder, exported variables, functions and "
        "aliases are kept between commands of a session. Start servers, watchers and other long work with "
        "background=true and follow them with the process tool; processes that a command leaves running are there too. "
        "Commands have no input unless pty=true. Prefer the file tools for reading, searching and editing files."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command line, as for bash"},
            "background": {
                "type": "boolean",
                "description": "Return at once and let it run; the answer has a session_id for the process tool",
                "default": False,
            },
            "timeout": {
                "type": "number",
                "minimum": 0,
                "description": "Seconds that it may take in the foreground (180 unless set otherwise, 600 at most)",
            },
            "workdir": {"type": "string", "description": "The folder to run it in, for this command only"},
            "pty": {
                "type": "boolean",
                "description": "Run it on a pseudo-terminal, for programs that ask questions or draw on the screen",
                "default": False,
            },
            "notify_on_complete": {
                "type": "boolean",
                "description": "With background=true: tell this session when it has ended",
                "default": False,
            },
            "watch_patterns": {
                "type": "array",
                "items": {"type": "string"},
                "description": "With background=true: tell this session when a line of output contains one of these",
            },
        },
        "required": ["command"],
    },
}

registry.register(
    name="terminal",
    toolset="terminal",
    schema=TERMINAL_SCHEMA,
    handler=terminal,
    check_fn=check_terminal,
    is_async=True,
    emoji="💻",
    max_result_size_chars=100_000,
    effects=effects,
)
