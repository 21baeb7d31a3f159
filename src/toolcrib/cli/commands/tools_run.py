"""`toolcrib tools run NAME JSON`."""

from __future__ import annotations

import json
import secrets
import sys

import click
from msgspec.structs import replace

from toolcrib.cli.approval import console_approver
from toolcrib.cli.console_asker import ConsoleAsker
from toolcrib.cli.output import note, stdout_reserved
from toolcrib.cli.progress_lines import ProgressLines
from toolcrib.cli.state import complete_tools, example_command, open_runtime, require_tool
from toolcrib.core.errors import UsageError
from toolcrib.dispatch.coercion import InvalidJson, read_json


@click.command(name="run")
@click.argument("name", metavar="NAME", shell_complete=complete_tools)
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--yolo", is_flag=True, help="Do not ask; what is always denied stays denied.")
def command(name: str, arguments: str, yolo: bool) -> int:
    """Call a tool and print its result.

    JSON is an object with the arguments; `-` reads it from standard input. Exactly the result is printed; an error
    result too, with exit code 1. Before a dangerous call you are asked: a command that destroys something, a write
    outside this folder, publishing, spending, using a secret. Where nobody can be asked, it is denied.

    \b
    Examples:
      toolcrib tools run weather '{"location": "London"}'
      echo '{"location": "London"}' | toolcrib tools run weather -
    """
    text = sys.stdin.read() if arguments == "-" else arguments
    approver = console_approver()
    runtime = open_runtime(approver, yolo=yolo or None, servers=True)
    runtime.serve("asker", ConsoleAsker(approver))
    entry = require_tool(runtime, name)
    try:
        given = read_json(text)
    except InvalidJson as error:
        raise UsageError(
            f"the arguments are not JSON: {error}; type them in single quotes, like `{example_command(entry)}`"
        ) from error
    with stdout_reserved():
        # What is JSON but no object goes on as it is: the pipeline says what is wrong with it.
        ctx = runtime.context(tool_name=entry.name, call_id=f"run_{secrets.token_hex(4)}")
        if sys.stderr.isatty():
            ctx = replace(ctx, on_progress=ProgressLines(note))
        result = runtime.call_sync(entry.name, given if isinstance(given, dict) else text, ctx)
    content = result.content
    sys.stdout.write((content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)) + "\n")
    return 1 if result.is_error else 0
