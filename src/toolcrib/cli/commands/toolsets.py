"""`toolcrib toolsets list`."""

from __future__ import annotations

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import hint, print_json, print_line, print_pairs, print_table
from toolcrib.cli.runtime import await_servers, complete_toolsets, open_runtime
from toolcrib.cli.tool_state import missing_tool, tool_states
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.toolsets.model import ToolsetInfo

group = CommandGroup("toolsets")


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def list_toolsets(as_json: bool) -> None:
    """List all toolsets.

    `here` counts the tools of a toolset that something on this machine provides.

    Each object of --json has the keys name, description, tools (its own), includes, resolved (all of its tools),
    aliases and source (catalog, custom, registry or legacy).
    """
    runtime = open_runtime()
    await_servers(runtime)
    found = [runtime.toolsets.info(name) for name in runtime.toolsets.names()]
    infos = [info for info in found if info is not None]
    if as_json:
        print_json([info_as_json(info) for info in infos])
        return
    here = set(runtime.registry.get_all_tool_names())
    rows = [
        [
            info.name,
            ", ".join(info.aliases) or "-",
            str(len(info.resolved)),
            str(len(here.intersection(info.resolved))),
            info.description,
        ]
        for info in infos
    ]
    print_table(["name", "also", "tools", "here", "description"], rows)
    hint("`toolcrib toolsets show NAME` lists the tools of one.")


def info_as_json(info: ToolsetInfo) -> JsonObject:
    """The object that programs read about one toolset."""
    return {
        "name": info.name,
        "description": info.description,
        "tools": list(info.tools),
        "includes": list(info.includes),
        "resolved": list(info.resolved),
        "aliases": list(info.aliases),
        "source": info.source,
    }


SOURCES = {
    "catalog": "toolcrib's own catalog",
    "custom": "custom_toolsets in the config",
    "registry": "the tools that were registered under this name",
    "legacy": "a name of early releases",
}


@group.command("show")
@click.argument("name", metavar="NAME", shell_complete=complete_toolsets)
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def show_toolset(name: str, as_json: bool) -> None:
    """Show one toolset and what becomes of each of its tools.

    \b
    Example:
      toolcrib toolsets show web

    The object of --json is that of `toolsets list --json`, with `states`: the objects of `tools list --json`.
    """
    runtime = open_runtime()
    if name in runtime.toolsets.expected:
        await_servers(runtime)
    runtime.toolsets.require([name])
    info = runtime.toolsets.info(name)
    if info is None:
        raise UsageError(f"the MCP server of toolset {name!r} has brought no tools; `toolcrib mcp list` says why")
    registry = runtime.registry
    states = {
        state.name: state
        for state in tool_states(registry, [entry for entry in registry.entries() if entry.name in info.resolved])
    }
    for tool in info.resolved:
        missing = missing_tool(runtime, tool) if tool not in states else None
        if missing is not None:
            states[tool] = missing
    ordered = [states[tool] for tool in info.resolved if tool in states]
    if as_json:
        rows = [state.as_json(registry.get_emoji(state.name)) for state in ordered]
        print_json({**info_as_json(info), "states": rows})
        return
    print_pairs(
        [
            ("toolset", info.name),
            ("is for", info.description or "its author did not say"),
            ("also called", ", ".join(info.aliases) or "nothing else"),
            ("includes", ", ".join(info.includes) or "no other toolset"),
            ("comes from", SOURCES[info.source]),
        ]
    )
    if not ordered:
        print_line("\nIt has no tools; `toolcrib toolsets list` shows which ones do.")
        return
    print_line()
    print_table(
        ["tool", "available", "reason"],
        [[state.name, "yes" if state.outcome.available else "no", state.outcome.reason] for state in ordered],
    )
    hint("`toolcrib tools explain NAME` says all about one.")
