"""`toolcrib plugins list`."""

from __future__ import annotations

import click

from toolcrib.cli.output import hint, note, print_json, print_line, print_table
from toolcrib.config.load import load_settings
from toolcrib.core.types import JsonObject
from toolcrib.plugins.discover import FoundPlugin, discover_all


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(as_json: bool) -> None:
    """List the plugins that are here, and where each comes from.

    Plugins are found in toolcrib's home, in installed packages and, where the config says `plugins.project: true`, in
    the folder that you are in. None of their code runs for this.

    Each object of --json has the keys name, version, description, state (enabled, disabled or not enabled), origin
    (user, project, entry point or missing), location and problems.
    """
    settings = load_settings()
    plugins = discover_all(settings)
    if as_json:
        print_json([_as_json(plugin) for plugin in plugins])
        return
    if not plugins:
        print_line(f"There are no plugins; put the folder of one into {settings.home.plugins_dir}.")
        return
    print_table(
        ["name", "version", "state", "origin", "location", "description"],
        [
            [
                plugin.name,
                plugin.version or "-",
                plugin.state,
                plugin.origin,
                plugin.location or "-",
                plugin.description,
            ]
            for plugin in plugins
        ],
    )
    for plugin in plugins:
        for problem in plugin.problems:
            note(f"{plugin.name}: {problem}")
    if settings.safe_mode:
        note("Safe mode is on, so none of them is loaded; unset TOOLCRIB_SAFE_MODE to end it.")
    hint("`toolcrib plugins enable NAME` loads one from now on.")


def _as_json(plugin: FoundPlugin) -> JsonObject:
    return {
        "name": plugin.name,
        "version": plugin.version,
        "description": plugin.description,
        "state": plugin.state,
        "origin": plugin.origin,
        "location": plugin.location,
        "problems": list(plugin.problems),
    }
