"""`toolcrib toolsets`: lists toolsets and the tools in them."""

from __future__ import annotations

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import hint, plural, print_json, print_line, print_pairs, print_table
from toolcrib.cli.runtime import await_servers, complete_toolsets, open_runtime
from toolcrib.cli.tool_state import missing_tool, tool_states
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.toolsets.resolve import ToolsetInfo

group = CommandGroup("toolsets")
SOURCES = {
    "catalog": "toolcrib's own catalog",
    "custom": "custom_toolsets in the config",
    "registry": "tools registered under this name",
    "legacy": "a name from early releases",
}


@group.command("list")
@click.option("--all", "show_all", is_flag=True, help="Include toolsets without an available tool.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of all toolsets.")
def list_toolsets(show_all: bool, as_json: bool) -> None:
    """List the toolsets that have available tools.

    `available` counts the tools of a toolset that can be used on this machine.

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
    states = tool_states(runtime.registry, runtime.registry.entries())
    available = {state.name for state in states if state.outcome.available}
    shown = [info for info in infos if show_all or available.intersection(info.resolved)]
    rows = [
        [
            info.name,
            ", ".join(info.aliases) or "-",
            str(len(info.resolved)),
            str(len(available.intersection(info.resolved))),
            info.description,
        ]
        for info in shown
    ]
    print_table(["name", "aliases", "tools", "available", "description"], rows)
    if len(shown) < len(infos):
        hint(f"{plural(len(infos) - len(shown), 'toolset')} without an available tool: add --all to list them.")
    hint("Run `toolcrib toolsets show NAME` to see the tools of a toolset.")


def info_as_json(info: ToolsetInfo) -> JsonObject:
    """A toolset as JSON; keys may be added, never removed."""
    return {
        "name": info.name,
        "description": info.description,
        "tools": list(info.tools),
        "includes": list(info.includes),
        "resolved": list(info.resolved),
        "aliases": list(info.aliases),
        "source": info.source,
    }


@group.command("show")
@click.argument("name", metavar="NAME", shell_complete=complete_toolsets)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_toolset(name: str, as_json: bool) -> None:
    """Show a toolset and the state of its tools.

    \b
    Example:
      toolcrib toolsets show web

    --json prints the object of `toolsets list --json` with `states`: the objects of `tools list --json`.
    """
    runtime = open_runtime()
    if name in runtime.toolsets.expected:
        await_servers(runtime)
    runtime.toolsets.require([name])
    info = runtime.toolsets.info(name)
    if info is None:
        raise UsageError(f"the MCP server of toolset {name!r} provides no tools; run `toolcrib mcp list` to see why")
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
            ("description", info.description or "none"),
            ("aliases", ", ".join(info.aliases) or "none"),
            ("includes", ", ".join(info.includes) or "none"),
            ("source", SOURCES[info.source]),
        ]
    )
    if not ordered:
        print_line("\nIt has no tools; run `toolcrib toolsets list` to see other toolsets.")
        return
    print_line()
    print_table(
        ["tool", "available", "reason"],
        [[state.name, "yes" if state.outcome.available else "no", state.outcome.reason] for state in ordered],
    )
    hint("Run `toolcrib tools explain NAME` for details about a tool.")
