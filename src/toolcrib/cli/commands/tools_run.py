"""`toolcrib tools run`: one call through the whole pipeline."""

from __future__ import annotations

import json
import secrets
import sys

import click
from msgspec.structs import replace

from toolcrib.cli.console import ConsoleAsker, ProgressLines, console_approver
from toolcrib.cli.output import note, stdout_reserved
from toolcrib.cli.runtime import complete_tools, open_runtime
from toolcrib.cli.tool_state import example_command, require_tool
from toolcrib.config.os_errors import current_folder
from toolcrib.core.errors import UsageError
from toolcrib.dispatch.coercion import InvalidJson, read_json


@click.command(name="run")
@click.argument("name", metavar="NAME", shell_complete=complete_tools)
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option(
    "--yolo",
    is_flag=True,
    help="Run dangerous calls without approval. Catastrophic commands and deny rules still apply.",
)
def run_tool(name: str, arguments: str, yolo: bool) -> int:
    """Call a tool and print its result.

    JSON is an object with the arguments; `-` reads it from standard input. Prints exactly the result; an error result
    too, with exit code 1. Dangerous calls need your approval: destructive commands, writes outside this folder,
    publishing, spending, using a secret. Without a terminal they are denied.

    \b
    Examples:
      toolcrib tools run weather '{"location": "London"}'
      echo '{"location": "London"}' | toolcrib tools run weather -
    """
    current_folder()  # raises before a tool takes another folder for it
    text = sys.stdin.read() if arguments == "-" else arguments
    approver = console_approver()
    runtime = open_runtime(approver, yolo=yolo or None, servers=True)
    runtime.provide_service("asker", ConsoleAsker(approver))
    entry = require_tool(runtime, name)
    try:
        given = read_json(text)
    except InvalidJson as error:
        raise UsageError(
            f"the arguments are not JSON: {error}; put them in single quotes, as in `{example_command(entry)}`"
        ) from error
    with stdout_reserved():
        # JSON that is no object goes to the pipeline unchanged, which returns a helpful error.
        ctx = runtime.context(tool_name=entry.name, call_id=f"run_{secrets.token_hex(4)}")
        if sys.stderr.isatty():
            ctx = replace(ctx, on_progress=ProgressLines(note))
        result = runtime.call_sync(entry.name, given if isinstance(given, dict) else text, ctx)
    content = result.content
    sys.stdout.write((content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)) + "\n")
    return 1 if result.is_error else 0
