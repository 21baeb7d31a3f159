"""`toolcrib tools new NAME`."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from pathlib import Path
from typing import Literal

import click

from toolcrib.cli.commands.tools_new_texts import DECORATOR_TOOL, REGISTER_TOOL, SKILL
from toolcrib.cli.output import note, print_line
from toolcrib.cli.state import open_runtime
from toolcrib.config.files import make_folder
from toolcrib.config.paths import find_home
from toolcrib.core.errors import ConfigError, UsageError
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import NOT_TOOL_FILES, load_builtin_tools
from toolcrib.registry.registry import ToolRegistry
from toolcrib.skills.skill import MAX_NAME_CHARS, NAME_RULE, is_valid_name

Kind = Literal["skill", "tool"]
TOOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
QUESTION = """Skill or tool?
  skill  when instructions, shell commands and the tools that exist can do it
  tool   when it needs keys, logic of its own, binary data or streaming"""


@click.command(name="new")
@click.argument("name", metavar="NAME")
@click.option("--kind", type=click.Choice(["skill", "tool"]), help="Answers the question in advance.")
@click.option(
    "--style",
    type=click.Choice(["decorator", "register"]),
    default="decorator",
    show_default=True,
    help="A function under @tool, or schema, handler and registry.register(...).",
)
def command(name: str, kind: Kind | None, style: str) -> None:
    """Write the first version of a tool or a skill.

    Asks which of the two it should be. A tool goes to tools/NAME.py in toolcrib's home and works at once; a skill goes
    to skills/NAME/SKILL.md. Nothing is overwritten.

    \b
    Examples:
      toolcrib tools new hello
      toolcrib tools new hello --kind tool --style register
    """
    home = find_home()
    chosen = kind or ask_kind(name)
    if chosen == "skill":
        _require_skill_name(name)
        path = home.skills_dir / name / "SKILL.md"
        _write(path, name, SKILL.replace("NAME", name))
        print_line(f"Wrote {path}")
        print_line("Next: open it, say in the description when to use it, and write down the steps.")
        return
    _require_name(name, TOOL_NAME, "lower-case letters, digits and _, beginning with a letter")
    _require_free(name)
    path = home.tools_dir / f"{name}.py"
    _write(path, name, (DECORATOR_TOOL if style == "decorator" else REGISTER_TOOL).replace("NAME", name))
    print_line(f"Wrote {path}")
    print_line(f"""Try it:    toolcrib tools run {name} '{{"text": "hello", "times": 2}}'""")
    print_line(f"Edit it:   {shlex.quote(str(path))}")
    print_line(f"Check it:  toolcrib tools lint {shlex.quote(str(path))}")


def ask_kind(name: str) -> Kind:
    """The answer of the person (or of a script that pipes one in); raises UsageError where none comes."""
    note(QUESTION)
    while True:
        sys.stderr.write("skill or tool? ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        answer = line.strip().lower()
        if answer in ("skill", "s"):
            return "skill"
        if answer in ("tool", "t"):
            return "tool"
        if not line:
            note()
            again = f"toolcrib tools new {shlex.quote(name)} --kind"
            raise UsageError(f"nobody answered; say which it should be: `{again} tool` or `{again} skill`")
        note("Please type skill or tool.")


def _require_skill_name(name: str) -> None:
    if not is_valid_name(name):
        suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_NAME_CHARS].strip("-") or "my-skill"
        again = f"`toolcrib tools new {suggestion} --kind skill`"
        raise UsageError(f"{name!r} cannot be a skill's name; use {NAME_RULE}, for example {again}")


def _require_name(name: str, pattern: re.Pattern[str], allowed: str) -> None:
    if not pattern.fullmatch(name):
        suggestion = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_") or "my_tool"
        suggestion = suggestion if suggestion[0].isalpha() else f"my_{suggestion}"
        raise UsageError(
            f"{name!r} cannot be a name; use {allowed}, for example `toolcrib tools new {suggestion[:64]}`"
        )


def _require_free(name: str) -> None:
    """Raises UsageError where a tool of that name could not work, or would take the place of one that does."""
    another = f"choose another: `toolcrib tools new my_{name}`"
    if keyword.iskeyword(name):
        raise UsageError(f"{name!r} is a word of the language Python, so no function can have that name; {another}")
    entry = _known_tools().get_entry(name)
    if f"{name}.py" in NOT_TOOL_FILES or (entry is not None and entry.source.kind == "builtin"):
        raise UsageError(f"{name!r} belongs to toolcrib itself; {another}")
    if entry is not None and Path(entry.source.path).name != f"{name}.py":
        raise UsageError(f"{name!r} is a tool of {entry.source} already; {another}")


def _known_tools() -> ToolRegistry:
    try:
        return open_runtime().registry
    except ConfigError:
        # A tool can be written while the config is broken; then only the names of our own tools are known.
        load_builtin_tools()
        return default_registry


def _write(path: Path, name: str, text: str) -> None:
    make_folder(path.parent)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(
            f"{str(path)!r} exists and stays as it is; choose another name: `toolcrib tools new my_{name}`"
        ) from None
