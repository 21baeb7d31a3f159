"""`toolcrib tools run`: one call through the whole pipeline."""

from __future__ import annotations

import json
import logging
import secrets
import sys
import traceback
from typing import Self

import click
from msgspec.structs import replace

from toolcrib.cli.console import ConsoleAsker, ProgressLines, console_approver
from toolcrib.cli.output import note, stdout_reserved
from toolcrib.cli.runtime import add_memory_tools, complete_tools, open_runtime
from toolcrib.cli.tool_state import example_command, load_tracebacks, require_tool
from toolcrib.config.os_errors import current_folder
from toolcrib.core.errors import MissingService, UsageError
from toolcrib.dispatch.coercion import InvalidJson, read_json


@click.command(name="run")
@click.argument("name", metavar="NAME", shell_complete=complete_tools)
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option(
    "--yolo",
    is_flag=True,
    help="Run dangerous calls without approval. Catastrophic commands and deny rules still apply.",
)
@click.option(
    "--traceback", "shows_traceback", is_flag=True, help="If the tool or its file raises, print its traceback."
)
def run_tool(name: str, arguments: str, yolo: bool, shows_traceback: bool) -> int:
    """Call a tool and print its result.

    JSON is an object with the arguments; `-` reads it from standard input. Prints exactly the result; an error result
    too, with exit code 1. Dangerous calls need your approval: destructive commands, writes outside this folder,
    publishing, spending, using a secret. Without a terminal they are denied.

    \b
    Examples:
      toolcrib tools run weather '{"location": "London"}'
      echo '{"location": "London"}' | toolcrib tools run weather -
      toolcrib tools run weather '{}' --traceback
    """
    current_folder()  # raises before a tool takes another folder for it
    text = sys.stdin.read() if arguments == "-" else arguments
    approver = console_approver()
    runtime = open_runtime(approver, yolo=yolo or None, servers=True)
    runtime.provide_service("asker", ConsoleAsker(approver))
    add_memory_tools(runtime)
    if shows_traceback:
        sys.stderr.write("".join(load_tracebacks(runtime, name)))
    entry = require_tool(runtime, name)
    try:
        given = read_json(text)
    except InvalidJson as error:
        raise UsageError(
            f"the arguments are not JSON: {error}; put them in single quotes, as in `{example_command(entry)}`"
        ) from error
    with stdout_reserved(), _RaisedError() as raised:
        # JSON that is no object goes to the pipeline unchanged, which returns a helpful error.
        ctx = runtime.context(tool_name=entry.name, call_id=f"run_{secrets.token_hex(4)}")
        if sys.stderr.isatty():
            ctx = replace(ctx, on_progress=ProgressLines(note))
        result = runtime.call_sync(entry.name, given if isinstance(given, dict) else text, ctx)
    if isinstance(raised.error, MissingService) and not shows_traceback:
        raise UsageError(f"{entry.name!r} works only in a session with an agent; ask for it in `toolcrib chat`")
    content = result.content
    sys.stdout.write((content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)) + "\n")
    for notice in result.notices:
        note(f"{notice}.")
    if result.error_type == "invalid_arguments":
        note(f"Run `toolcrib tools explain {entry.name}` to see the arguments it takes.")
    if raised.error is not None and shows_traceback:
        sys.stderr.write("".join(traceback.format_exception(raised.error)))
    elif raised.error is not None:
        note(f"The tool raised; its traceback is in {runtime.settings.home.log_file}, and --traceback prints it.")
    return 1 if result.is_error else 0


class _RaisedError(logging.Handler):
    """Catches the exception that the pipeline logs when a tool raises."""

    LOGGER = "toolcrib.dispatch"

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.error = record.exc_info[1]

    def __enter__(self) -> Self:
        logging.getLogger(self.LOGGER).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(self.LOGGER).removeHandler(self)
