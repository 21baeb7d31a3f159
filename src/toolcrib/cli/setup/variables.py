"""The variables that tools need: which ones, what is set, and asking for them."""

from __future__ import annotations

import click

from toolcrib.agent.external_memory import memory_names
from toolcrib.cli.output import note, plural, print_json, print_line, print_table
from toolcrib.cli.setup.prompts import ask
from toolcrib.cli.setup.saved_settings import SavedSettings
from toolcrib.cli.tool_state import UnknownTool
from toolcrib.config.env_file import read_env_file
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS, mask
from toolcrib.config.environment import unset_variables
from toolcrib.config.paths import Home
from toolcrib.core.types import JsonObject
from toolcrib.runtime import Runtime


def wanted_variables(runtime: Runtime, names: tuple[str, ...]) -> dict[str, JsonObject]:
    """The variables for these tools, toolsets or variables, or all of them, with their descriptions."""
    if not names:
        return dict(OPTIONAL_ENV_VARS)
    chosen: dict[str, JsonObject] = {}
    for name in names:
        if name in OPTIONAL_ENV_VARS:
            chosen[name] = OPTIONAL_ENV_VARS[name]
            continue
        for tool in _tools_called(runtime, name):
            chosen.update(variables_of(runtime, tool))
    return chosen


def variables_of(runtime: Runtime, tool: str) -> dict[str, JsonObject]:
    """The variables for a tool: those it requires, and those it can use."""
    entry = runtime.registry.get_entry(tool)
    needed = entry.requires_env if entry is not None else ()
    chosen = {variable: OPTIONAL_ENV_VARS.get(variable) or _undescribed(variable, tool) for variable in needed}
    return chosen | {key: about for key, about in OPTIONAL_ENV_VARS.items() if tool in about.get("tools", ())}


def ask_all(home: Home, variables: dict[str, JsonObject]) -> None:
    """Ask for each variable; prints how many were saved, even after Ctrl-C."""
    note(f"{plural(len(variables), 'variable')} to enter. Press Enter to keep a value.")
    saved = SavedSettings(home)
    try:
        for name, about in variables.items():
            note()
            ask_variable(saved, name, about)
    except click.Abort:
        count = plural(len(saved.things), "value")
        note(f"\nStopped; {count} saved. Run `toolcrib setup --list` to see what is set.")
        raise
    if saved.things:
        count = plural(len(saved.things), "value")
        print_line(f"Saved {count}; run `toolcrib tools list` to see the available tools.")
    else:
        print_line("Nothing was changed; run `toolcrib setup --list` to see what is set.")


def ask_variable(saved: SavedSettings, name: str, about: JsonObject) -> bool:
    """Ask for a variable and save it at once; False if nothing was typed."""
    hidden = bool(about.get("password"))
    note(str(about.get("description") or name))
    if about.get("url"):
        note(f"  from {about['url']}")
    state = shown(saved.home, name)
    prompt = f"  {about.get('prompt') or name}{f' [{state}]' if state else ''}{' (hidden while you type)' * hidden}"
    value = ask(prompt, hidden=hidden)
    if not value:
        return False
    saved.variable(name, value, mask(value) if hidden else value)
    return True


def shown(home: Home, name: str) -> str:
    """The value for display, masked if secret; empty if it is not set."""
    in_file = read_env_file(home.env_file).get(name)
    if in_file:
        return mask(in_file) if OPTIONAL_ENV_VARS.get(name, {}).get("password", True) else in_file
    return "" if unset_variables([name]) else "set in the environment"


def describe(variable: str, title: str) -> JsonObject:
    """The description of a provider's key variable; an unknown one is treated as a secret."""
    return OPTIONAL_ENV_VARS.get(variable) or {
        "description": f"The key for {title}",
        "prompt": variable,
        "tools": [],
        "password": True,
    }


def print_list(home: Home, variables: dict[str, JsonObject], as_json: bool) -> None:
    """Print the variables, their purposes and their values, with secrets masked."""
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "description": str(about.get("description", "")),
                    "url": str(about.get("url") or ""),
                    "tools": list(about.get("tools", ())),
                    "password": bool(about.get("password")),
                    "set": bool(shown(home, name)),
                    "shown": shown(home, name),
                }
                for name, about in variables.items()
            ]
        )
        return
    rows = [
        [name, shown(home, name) or "not set", ", ".join(about.get("tools", ())) or "-", about.get("description", "")]
        for name, about in variables.items()
    ]
    print_table(["variable", "value", "tools", "description"], rows)


def _tools_called(runtime: Runtime, name: str) -> list[str]:
    """The tool with this name, or the tools of the toolset with this name; raises UnknownTool."""
    served = {tool for about in OPTIONAL_ENV_VARS.values() for tool in about.get("tools", ())}
    if runtime.registry.get_entry(name) is not None or name in served:
        return [name]
    tools = runtime.toolsets.resolve(name)
    if tools:
        return tools
    known = {*runtime.registry.get_all_tool_names(), *served, *runtime.toolsets.names(), *OPTIONAL_ENV_VARS}
    known |= set(memory_names(runtime))
    raise UnknownTool(name, sorted(known), advice="`toolcrib setup --list` lists all variables")


def _undescribed(variable: str, tool: str) -> JsonObject:
    # It may be a secret.
    return {"description": f"Required by the tool {tool}", "prompt": variable, "tools": [tool], "password": True}
