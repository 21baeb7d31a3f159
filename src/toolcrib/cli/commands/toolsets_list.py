"""`toolcrib toolsets list`."""

from __future__ import annotations

import click

from toolcrib.cli.output import hint, print_json, print_table
from toolcrib.cli.state import await_servers, open_runtime
from toolcrib.core.types import JsonObject
from toolcrib.toolsets.resolve import ToolsetInfo


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(as_json: bool) -> None:
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
