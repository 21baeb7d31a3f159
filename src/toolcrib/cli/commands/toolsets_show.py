"""`toolcrib toolsets show NAME`."""

from __future__ import annotations

import click

from toolcrib.cli.commands.toolsets_list import info_as_json
from toolcrib.cli.output import hint, print_json, print_line, print_pairs, print_table
from toolcrib.cli.state import await_servers, complete_toolsets, missing_tool, open_runtime, tool_states
from toolcrib.core.errors import UsageError

SOURCES = {
    "catalog": "toolcrib's own catalog",
    "custom": "custom_toolsets in the config",
    "registry": "the tools that were registered under this name",
    "legacy": "a name of early releases",
}


@click.command(name="show")
@click.argument("name", metavar="NAME", shell_complete=complete_toolsets)
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(name: str, as_json: bool) -> None:
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
