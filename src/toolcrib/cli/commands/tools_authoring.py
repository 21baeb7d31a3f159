"""`toolcrib tools new` and `lint`: write the first version of a tool or skill, and check tool files."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Literal

import click

from toolcrib.cli.output import note, one_line, plural, print_json, print_line, stdout_reserved
from toolcrib.cli.runtime import open_runtime
from toolcrib.config.files import replace_file, writing
from toolcrib.config.paths import find_home
from toolcrib.core.errors import ConfigError, UsageError
from toolcrib.registry import discovery
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import NOT_TOOL_FILES, ScanCache, load_builtin_tools, tool_files
from toolcrib.registry.lint import LintFinding, lint_source
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.reload import findings_of
from toolcrib.skills.skill import MAX_NAME_CHARS, NAME_RULE, is_valid_name

DECORATOR_TOOL = '''\
"""The tool `NAME`. It works as it is; replace the example with your own code."""

from toolcrib import tool


@tool(toolset="NAME", emoji="🔧")
def NAME(text: str, times: int = 1) -> dict[str, object]:
    """Repeat a text. (Say here what your tool does and when to use it: the model reads this.)

    Args:
        text: The text to repeat, for example 'hello'.
        times: How many times to repeat it, for example 2.
    """
    if not 1 <= times <= 100:
        return {"error": f"times is {times}; use a number from 1 to 100"}
    return {"text": " ".join([text] * times)}
'''

REGISTER_TOOL = '''\
"""The tool `NAME`. It works as it is; replace the example with your own code."""

import json

from toolcrib.registry import registry

SCHEMA = {
    "name": "NAME",
    "description": "Repeat a text. (Say here what your tool does and when to use it: the model reads this.)",
    "parameters": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "The text to repeat, for example 'hello'."},
            "times": {"type": "integer", "description": "How many times to repeat it.", "default": 1},
        },
        "required": ["text"],
    },
}


def handle(args: dict, **_: object) -> str:
    """Return the result as JSON text; an error is a result too, never an exception."""
    times = args.get("times", 1)
    if not 1 <= times <= 100:
        return json.dumps({"error": f"times is {times}; use a number from 1 to 100"})
    return json.dumps({"text": " ".join([args["text"]] * times)})


registry.register(
    name="NAME",
    toolset="NAME",
    schema=SCHEMA,
    handler=handle,
    emoji="🔧",
)
'''

SKILL = """\
---
name: NAME
description: Say in one sentence what this skill does and when to use it.
---

# NAME

## When to use it

Say which requests it is for, and which it is not for.

## Steps

1. What to do first, with the command or the tool that does it.
2. What to do next.

## Check

How to check that it worked.
"""


Kind = Literal["skill", "tool"]
TOOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
QUESTION = """Skill or tool?
  skill  if instructions, shell commands and existing tools are enough
  tool   if it needs keys, its own logic, binary data or streaming"""


@click.command(name="new")
@click.argument("name", metavar="NAME")
@click.option("--kind", type=click.Choice(["skill", "tool"]), help="What to create; asked if not given.")
@click.option(
    "--style",
    type=click.Choice(["decorator", "register"]),
    default="decorator",
    show_default=True,
    help="A function with @tool, or schema, handler and registry.register(...).",
)
def new_tool(name: str, kind: Kind | None, style: str) -> None:
    """Write the first version of a tool or a skill.

    Asks which of the two to create. A tool goes to tools/NAME.py in toolcrib's home and works at once; a skill goes to
    skills/NAME/SKILL.md. Never overwrites a file.

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
        print_line("Next: edit it; say in the description when to use it, and write down the steps.")
        return
    _require_name(name, TOOL_NAME, "lower-case letters, digits and _, starting with a letter")
    _require_free(name)
    path = home.tools_dir / f"{name}.py"
    _write(path, name, (DECORATOR_TOOL if style == "decorator" else REGISTER_TOOL).replace("NAME", name))
    print_line(f"Wrote {path}")
    print_line(f"""Try it:    toolcrib tools run {name} '{{"text": "hello", "times": 2}}'""")
    print_line(f"Edit it:   {shlex.quote(str(path))}")
    print_line(f"Check it:  toolcrib tools lint {shlex.quote(str(path))}")


def ask_kind(name: str) -> Kind:
    """The answer from the terminal or a pipe; raises UsageError if there is none."""
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
            raise UsageError(f"no answer; choose one: `{again} tool` or `{again} skill`")
        note("Please type skill or tool.")


def _require_skill_name(name: str) -> None:
    if not is_valid_name(name):
        suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_NAME_CHARS].strip("-") or "my-skill"
        again = f"`toolcrib tools new {suggestion} --kind skill`"
        raise UsageError(f"{name!r} is not a valid skill name; use {NAME_RULE}, for example {again}")


def _require_name(name: str, pattern: re.Pattern[str], allowed: str) -> None:
    if not pattern.fullmatch(name):
        suggestion = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_") or "my_tool"
        suggestion = suggestion if suggestion[0].isalpha() else f"my_{suggestion}"
        raise UsageError(
            f"{name!r} is not a valid name; use {allowed}, for example `toolcrib tools new {suggestion[:64]}`"
        )


def _require_free(name: str) -> None:
    """Raises UsageError if the name cannot be used, or belongs to another tool."""
    another = f"choose another: `toolcrib tools new my_{name}`"
    if keyword.iskeyword(name):
        raise UsageError(f"{name!r} is a Python keyword, so no function can have that name; {another}")
    entry = _known_tools().get_entry(name)
    if f"{name}.py" in NOT_TOOL_FILES or (entry is not None and entry.source.kind == "builtin"):
        raise UsageError(f"{name!r} is a built-in tool of toolcrib; {another}")
    if entry is not None and Path(entry.source.path).name != f"{name}.py":
        raise UsageError(f"{name!r} is already a tool of {entry.source}; {another}")


def _known_tools() -> ToolRegistry:
    try:
        return open_runtime().registry
    except ConfigError:
        # With a broken config, only the built-in tools are known.
        load_builtin_tools()
        return default_registry


def _write(path: Path, name: str, text: str) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{str(path)!r} already exists; choose another name: `toolcrib tools new my_{name}`")
    with writing(path) as target:
        replace_file(target, text.encode())


@click.command(name="lint")
@click.argument("files", metavar="[FILE...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def lint_tools(files: tuple[Path, ...], as_json: bool) -> int:
    """Check tool files against the checklist for authors.

    Reads each file and then loads it as toolcrib does at startup, without calling its tools. Without a FILE, checks all
    of your tool files. Exit code 1 if there is an error; warnings alone give 0.

    \b
    Examples:
      toolcrib tools lint
      toolcrib tools lint ~/.toolcrib/tools/weather.py

    Each object of --json has the keys file, line (or null), severity (error or warning), rule and message.
    """
    folder = find_home().tools_dir
    named, files = files, files or tuple(tool_files(folder, ScanCache()) if folder.is_dir() else ())
    if not files:
        raise UsageError(f"there are no tool files in {str(folder)!r}; run `toolcrib tools new NAME` to create one")
    for file in files:
        if file.is_dir():
            inside = f"{shlex.quote(str(file))}/*.py"
            raise UsageError(f"{str(file)!r} is a folder; name the files in it: `toolcrib tools lint {inside}`")
        if not file.is_file():
            raise UsageError(f"no such file: {str(file)!r}; run `toolcrib tools new NAME` to create a tool")
    checked = {file: lint_file(file) for file in files}
    found = [(file, finding) for file, (_, findings) in checked.items() for finding in findings]
    if as_json:
        print_json([_as_json(file, finding) for file, finding in found])
    else:
        for file, finding in found:
            location = f"{file}:{finding.line}" if finding.line else str(file)
            print_line(one_line(f"{location}: {finding.severity}: {finding.message} [{finding.rule}]"))
        _print_summary(checked, named)
    return 1 if any(finding.severity == "error" for _, finding in found) else 0


def lint_file(file: Path) -> tuple[list[str], list[LintFinding]]:
    """The tools that a file declares, and its problems; loads it into a separate registry."""
    findings = lint_source(file)
    if any(finding.rule == "parses" for finding in findings):
        return [], findings
    scratch = ToolRegistry(parent=default_registry)
    with stdout_reserved():
        discovery.load_builtin_tools()
        loaded = discovery.load_tool_file(file.absolute(), scratch)
    return loaded.tools, findings_of(file, loaded, scratch)


def _print_summary(checked: dict[Path, tuple[list[str], list[LintFinding]]], named: tuple[Path, ...]) -> None:
    severities = [finding.severity for _, findings in checked.values() for finding in findings]
    errors, warnings = severities.count("error"), severities.count("warning")
    if errors or warnings:
        again = shlex.join(["toolcrib", "tools", "lint", *map(str, named)])
        counts = f"{plural(errors, 'error')}, {plural(warnings, 'warning')}"
        note(f"{counts}. Fix the file, then run `{again}` again.")
        return
    for file, (tools, _) in checked.items():
        print_line(f"{file}: no problems found in {plural(len(tools), 'tool')} ({', '.join(tools)})")
    tool = next((name for tools, _ in checked.values() for name in tools), "NAME")
    note(f"Run `toolcrib tools explain {tool}` to see how to call it.")


def _as_json(file: Path, finding: LintFinding) -> dict[str, object]:
    return {
        "file": str(file),
        "line": finding.line,
        "severity": finding.severity,
        "rule": finding.rule,
        "message": finding.message,
    }
