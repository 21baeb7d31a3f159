"""`toolcrib acp`: the agent inside an editor, and the editors' settings for it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import note
from toolcrib.core.errors import UsageError

MISSING = "the editor support needs more packages ({}); run `pip install 'toolcrib[acp]'`"


@click.group("acp", cls=CommandGroup, invoke_without_command=True, no_args_is_help=False)
@click.pass_context
def acp(ctx: click.Context) -> int | None:
    """Run the agent for an editor, which starts this command itself.

    The editor talks to it over stdin and stdout, by the Agent Client Protocol. Sessions, settings and approvals are the
    same as in the chat.

    \b
    Examples:
      toolcrib acp install zed
      toolcrib acp install jetbrains --write
    """
    if ctx.invoked_subcommand is not None:
        return None
    try:
        # Importing the SDK takes half a second, and no other command needs it.
        from toolcrib.acp.program import serve_editor  # noqa: PLC0415
        from toolcrib.acp.transport import STDIO_HINT, own_stdout  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(MISSING.format(error)) from error
    if sys.stdin.isatty():
        note(f"Waiting for an editor. {STDIO_HINT}.")
    with own_stdout() as stdout:
        return asyncio.run(serve_editor(stdout))


@acp.command("install")
@click.argument("editor", type=click.Choice(["zed", "jetbrains", "neovim"]))
@click.option("--write", is_flag=True, help="Write the settings file of the editor instead of printing what to add.")
def install(editor: str, write: bool) -> None:
    """Print what an editor needs in its settings, or write it there.

    \b
    Examples:
      toolcrib acp install zed
      toolcrib acp install jetbrains --write
    """
    # Only this command needs it.
    from toolcrib.cli.editor_settings import settings_for, write_settings  # noqa: PLC0415

    found = settings_for(editor, Path.home())
    if write:
        note(write_settings(found))
        return
    click.echo(found.text)
    note(found.hint)
