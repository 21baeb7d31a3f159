"""`toolcrib setup`."""

from __future__ import annotations

from typing import Any

import click

from toolcrib.cli.output import note, person_present, plural, print_json, print_line, print_table
from toolcrib.cli.state import UnknownTool, complete_tools, open_runtime
from toolcrib.config.env_file import read_env_file, save_env_value
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS, mask
from toolcrib.config.environment import unset_variables
from toolcrib.config.paths import Home
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.runtime import Runtime


@click.command(name="setup")
@click.argument("names", metavar="[TOOL]...", nargs=-1, shell_complete=complete_tools)
@click.option("--list", "only_list", is_flag=True, help="Show what can be entered and what is set; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print a list of objects for programs.")
def command(names: tuple[str, ...], only_list: bool, as_json: bool) -> None:
    """Enter the keys that tools need.

    Asks for each key in turn and keeps it in the file .env, which only you can read. With the names of tools (or of
    toolsets, or of the variables themselves) it asks only for what those need.

    \b
    Examples:
      toolcrib setup weather
      toolcrib setup --list

    Each object of `--list --json` has the keys name, description, url, tools, password, set and shown (the value,
    masked; empty when it is not set).
    """
    runtime = open_runtime()
    home = runtime.settings.home
    variables = wanted_variables(runtime, names)
    if only_list or as_json:
        _print_list(home, variables, as_json)
        return
    if not variables:
        print_line(f"{', '.join(names)} needs no keys; type `toolcrib tools explain {names[0]}` to see more.")
        return
    if not person_present():
        raise UsageError(
            f"nobody is here to ask; write a line like {next(iter(variables))}=VALUE into {str(home.env_file)!r}, "
            "then type `toolcrib setup --list` to see what is set"
        )
    _ask_all(home, variables)


def wanted_variables(runtime: Runtime, names: tuple[str, ...]) -> dict[str, JsonObject]:
    """What can be entered for these tools, toolsets or variables (all, if none is named), by variable."""
    if not names:
        return dict(OPTIONAL_ENV_VARS)
    chosen: dict[str, JsonObject] = {}
    for name in names:
        if name in OPTIONAL_ENV_VARS:
            chosen[name] = OPTIONAL_ENV_VARS[name]
            continue
        for tool in _tools_called(runtime, name):
            entry = runtime.registry.get_entry(tool)
            for variable in entry.requires_env if entry is not None else ():
                chosen[variable] = OPTIONAL_ENV_VARS.get(variable) or _undescribed(variable, tool)
            chosen.update({key: about for key, about in OPTIONAL_ENV_VARS.items() if tool in about.get("tools", ())})
    return chosen


def _tools_called(runtime: Runtime, name: str) -> list[str]:
    """The tool of that name, or those of the toolset of that name; raises UnknownTool."""
    served = {tool for about in OPTIONAL_ENV_VARS.values() for tool in about.get("tools", ())}
    if runtime.registry.get_entry(name) is not None or name in served:
        return [name]
    tools = runtime.toolsets.resolve(name)
    if tools:
        return tools
    known = {*runtime.registry.get_all_tool_names(), *served, *runtime.toolsets.names(), *OPTIONAL_ENV_VARS}
    raise UnknownTool(name, sorted(known), advice="`toolcrib setup --list` shows what can be entered")


def _undescribed(variable: str, tool: str) -> JsonObject:
    # Nobody said whether it is a secret, so it is treated as one.
    return {"description": f"The tool {tool} needs it", "prompt": variable, "tools": [tool], "password": True}


def _ask_all(home: Home, variables: dict[str, JsonObject]) -> None:
    note(f"{plural(len(variables), 'value')} can be entered. Press Enter to leave one as it is.")
    saved = 0
    try:
        for name, about in variables.items():
            saved += _ask(home, name, about)
    except click.Abort:
        note(f"\nStopped; {plural(saved, 'value')} saved. Type `toolcrib setup --list` to see what is set.")
        raise
    if saved:
        print_line(f"Saved {plural(saved, 'value')}; type `toolcrib tools list` to see what is available now.")
    else:
        print_line("Nothing was changed; type `toolcrib setup --list` to see what is set.")


def _ask(home: Home, name: str, about: JsonObject) -> bool:
    """Ask for one variable and keep the answer at once, so that stopping later loses nothing."""
    hidden = bool(about.get("password"))
    note(f"\n{about.get('description') or name}")
    if about.get("url"):
        note(f"  from {about['url']}")
    state = _shown(home, name)
    prompt = f"  {about.get('prompt') or name}{f' [{state}]' if state else ''}{' (not shown while typing)' * hidden}"
    value = click.prompt(prompt, default="", show_default=False, hide_input=hidden, err=True).strip()
    if not value:
        return False
    save_env_value(home, name, value)
    note(f"  {name}={mask(value) if hidden else value} saved to {home.env_file}")
    return True


def _shown(home: Home, name: str) -> str:
    """What may be shown of a value that is set; empty when none is."""
    in_file = read_env_file(home.env_file).get(name)
    if in_file:
        return mask(in_file) if OPTIONAL_ENV_VARS.get(name, {}).get("password", True) else in_file
    return "" if unset_variables([name]) else "set in the environment"


def _print_list(home: Home, variables: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "description": str(about.get("description", "")),
                    "url": str(about.get("url") or ""),
                    "tools": list(about.get("tools", ())),
                    "password": bool(about.get("password")),
                    "set": bool(_shown(home, name)),
                    "shown": _shown(home, name),
                }
                for name, about in variables.items()
            ]
        )
        return
    rows = [
        [name, _shown(home, name) or "not set", ", ".join(about.get("tools", ())) or "-", about.get("description", "")]
        for name, about in variables.items()
    ]
    print_table(["variable", "value", "tools", "is for"], rows)
