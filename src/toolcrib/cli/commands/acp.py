"""`toolcrib acp`: the agent inside an editor, and the editors' settings for it."""

from __future__ import annotations

import asyncio
import sys

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import note
from toolcrib.core.errors import UsageError

MISSING = "the editor support needs more packages ({}); run `pip install 'toolcrib[acp]'`"


@click.group("acp", cls=CommandGroup, invoke_without_command=True, no_args_is_help=False)
@click.pass_context
def acp(ctx: click.Context) -> int | None:
    """Run the agent inside an editor.

    The editor starts this command itself, and talks to it over stdin and stdout by the Agent Client Protocol. Sessions,
    settings and approvals are the same as in the chat.

    \b
    Examples:
      toolcrib acp install zed
      toolcrib acp install jetbrains --write
    """
    if ctx.invoked_subcommand is not None:
        return None
    try:
        # Importing the SDK takes half a second, and no other command needs it.
        from toolcrib.acp import program, transport  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(MISSING.format(error)) from error
    if sys.stdin.isatty():
        note(f"Waiting for an editor. {transport.STDIO_HINT}.")
    with transport.own_stdout() as stdout:
        return asyncio.run(program.serve_editor(stdout))


acp.lazy("install", "acp_install:install", "Print what an editor needs in its settings, or write it there.")
