"""`toolcrib acp install`: what editors need in their settings to start `toolcrib acp`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import click
from msgspec import Struct

from toolcrib.cli.output import note
from toolcrib.config.files import replace_file, writing
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject

NAME = "toolcrib"
SERVERS = "agent_servers"
NEOVIM = """\
-- avante.nvim
require("avante").setup({{
  provider = "toolcrib",
  acp_providers = {{
    toolcrib = {{ command = {command}, args = {args} }},
  }},
}})"""


class EditorSettings(Struct, frozen=True, kw_only=True):
    """What to add to the settings of an editor."""

    text: str
    file: Path
    hint: str
    entry: JsonObject | None = None
    """The value under `agent_servers`, in a file that is JSON."""


def settings_for(editor: str, home: Path) -> EditorSettings:
    command, *args = own_command()
    if editor == "neovim":
        shown = "{ " + ", ".join(json.dumps(one) for one in args) + " }"
        file = home / ".config" / "nvim" / "init.lua"
        return EditorSettings(
            text=NEOVIM.format(command=json.dumps(command), args=shown),
            file=file,
            hint=f"Add it to {file}, or to your plugin manager's file; other ACP plugins take the same command.",
        )
    entry: JsonObject = {"command": command, "args": args, "env": {}}
    if editor == "zed":
        entry = {"type": "custom", **entry}
    file = home / ".config" / "zed" / "settings.json" if editor == "zed" else home / ".jetbrains" / "acp.json"
    return EditorSettings(
        text=json.dumps({SERVERS: {NAME: entry}}, indent=2),
        file=file,
        hint=f"Add it to {file}, or run this command with `--write`.",
        entry=entry,
    )


def write_settings(settings: EditorSettings) -> str:
    """Add the entry to the editor's file and keep everything else; returns a sentence about it. Raises UsageError."""
    if settings.entry is None:
        raise UsageError(f"{settings.file} is a program, which toolcrib does not edit; run this without `--write`")
    known: object = {}
    if settings.file.exists():
        try:
            known = json.loads(settings.file.read_text(encoding="utf-8") or "{}")
        except ValueError as error:
            raise UsageError(
                f"{settings.file} is not plain JSON ({error}), perhaps because it has comments; "
                "run this without `--write` and add the lines yourself"
            ) from error
    servers = known.get(SERVERS, {}) if isinstance(known, dict) else None
    if not isinstance(known, dict) or not isinstance(servers, dict):
        raise UsageError(f"{settings.file} does not look like settings; run this without `--write`")
    changed = {**known, SERVERS: {**servers, NAME: settings.entry}}
    settings.file.parent.mkdir(parents=True, exist_ok=True)
    with writing(settings.file) as target:
        replace_file(target, f"{json.dumps(changed, indent=2, ensure_ascii=False)}\n".encode())
    return f"Added {NAME!r} to {settings.file}; restart the editor, then choose it in the agent panel."


def own_command() -> list[str]:
    """How an editor starts this toolcrib; by its full path, because editors often have another PATH."""
    program = shutil.which(NAME) or str(Path(sys.executable).with_name(NAME))
    return [program, "acp"] if Path(program).exists() else [sys.executable, "-m", NAME, "acp"]


@click.command(name="install")
@click.argument("editor", type=click.Choice(["zed", "jetbrains", "neovim"]))
@click.option("--write", is_flag=True, help="Write the settings file of the editor instead of printing what to add.")
def install(editor: str, write: bool) -> None:
    """Print what an editor needs in its settings, or write it there.

    \b
    Examples:
      toolcrib acp install zed
      toolcrib acp install jetbrains --write
    """
    found = settings_for(editor, Path.home())
    if write:
        note(write_settings(found))
        return
    click.echo(found.text)
    note(found.hint)
