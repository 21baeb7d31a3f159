"""`toolcrib acp install`: prints or writes the editor settings that start `toolcrib acp`."""

from __future__ import annotations

import json
import re
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
    file = settings.file
    if settings.entry is None:
        raise UsageError(f"{file} is a program, which toolcrib does not edit; run this without `--write`")
    file.parent.mkdir(parents=True, exist_ok=True)
    with writing(file) as target:
        before = target.read_bytes() if target.exists() else b""
        try:
            changed = with_entry(before.decode(), settings.entry).encode()
        except ValueError as error:
            raise UsageError(
                f"{file} cannot be read as settings ({error}); run this without `--write` and add the lines yourself"
            ) from error
        if changed == before:
            return f"{file} has {NAME!r} already; choose it in the agent panel."
        kept = ""
        if before:
            backup = target.with_name(f"{target.name}.toolcrib.bak")
            replace_file(backup, before)
            kept = f" The original is saved as {backup}."
        replace_file(target, changed)
    return f"Added {NAME!r} to {file}; restart the editor, then choose it in the agent panel.{kept}"


_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'"(?:\\.|[^"\\\n])*"|,(?=\s*[}\]])')
_GAP = re.compile(r"[\s,]*")


def with_entry(text: str, entry: JsonObject) -> str:
    """Settings with our entry, and otherwise letter by letter as they were; raises ValueError if they are unusual."""
    plain = _plain(text)
    known = json.loads(plain) if plain.strip() else {}
    servers = known.get(SERVERS, {}) if isinstance(known, dict) else None
    if not isinstance(known, dict) or not isinstance(servers, dict):
        raise ValueError(f"no object, or no object under {SERVERS!r}")
    if servers.get(NAME) == entry:
        return text
    changed = _edited(text, plain, entry, "\r\n" if "\r\n" in text else "\n")
    if json.loads(_plain(changed)) != {**known, SERVERS: {**servers, NAME: entry}}:
        raise ValueError("their layout is unusual")
    return changed


def _edited(text: str, plain: str, entry: JsonObject, line_end: str) -> str:
    def shown(value: JsonObject, depth: int) -> str:
        return json.dumps(value, indent=2).replace("\n", line_end + "  " * depth)

    def inserted(opened: int, name: str, value: JsonObject, depth: int) -> str:
        """The text with a member after the bracket at `opened`: what follows it may end with a comment."""
        comma = "" if plain[opened + 1 :].lstrip().startswith("}") else ","
        return f'{text[: opened + 1]}{line_end}{"  " * depth}"{name}": {shown(value, depth)}{comma}{text[opened + 1 :]}'

    if not plain.strip():
        return f"{text.rstrip()}{line_end}{shown({SERVERS: {NAME: entry}}, 0)}{line_end}".lstrip()
    top = plain.index("{")
    servers = _members(plain, top).get(SERVERS)
    if servers is None:
        return inserted(top, SERVERS, {NAME: entry}, 1)
    ours = _members(plain, servers[0]).get(NAME)
    if ours is None:
        return inserted(servers[0], NAME, entry, 2)
    return text[: ours[0]] + shown(entry, 2) + text[ours[1] :]


def _plain(text: str) -> str:
    """JSON without comments, and without commas after the last member; every letter stays where it was."""

    def blank(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else re.sub(r"\S", " ", found[0])

    return _LAST_COMMA.sub(blank, _COMMENT.sub(blank, text.replace("\ufeff", " ", 1)))


def _members(plain: str, opened: int) -> dict[str, tuple[int, int]]:
    """Where the values of the object at `opened` begin and end, by name; of a name that occurs twice, the last."""
    decoder, found = json.JSONDecoder(), {}
    at = _after_gap(plain, opened + 1)
    while plain[at] != "}":
        name, at = decoder.raw_decode(plain, at)
        begin = _after_gap(plain, plain.index(":", at) + 1)
        _, at = decoder.raw_decode(plain, begin)
        found[name] = (begin, at)
        at = _after_gap(plain, at)
    return found


def _after_gap(plain: str, at: int) -> int:
    found = _GAP.match(plain, at)
    return found.end() if found else at


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
