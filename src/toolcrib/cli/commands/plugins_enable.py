"""`toolcrib plugins enable NAME`."""

from __future__ import annotations

import click

from toolcrib.cli.output import note
from toolcrib.cli.plugin_names import UnknownPlugin, complete_plugins, find_plugin
from toolcrib.config.edit import add_to_list, remove_from_list
from toolcrib.config.load import load_settings
from toolcrib.plugins.discover import discover_all


@click.command(name="enable")
@click.argument("name", metavar="NAME", shell_complete=complete_plugins)
def command(name: str) -> None:
    """Load a plugin from now on.

    A plugin runs with your rights: enable one only if you trust where it comes from.

    \b
    Example:
      toolcrib plugins enable weather-plus
    """
    settings = load_settings()
    plugin = find_plugin(settings, name)
    if plugin.origin == "missing":
        known = [found.name for found in discover_all(settings) if found.origin != "missing"]
        raise UnknownPlugin(name, known, advice="`toolcrib plugins list` shows all of them")
    for known_as in plugin.names & set(settings.plugins.disabled):
        remove_from_list(settings.home, "plugins.disabled", known_as)
    if not plugin.names & set(settings.plugins.enabled):
        add_to_list(settings.home, "plugins.enabled", plugin.name)
    note(f"Plugin {plugin.name} ({plugin.origin}, {plugin.location}) is enabled; see `toolcrib tools list`.")
    for problem in plugin.problems:
        note(f"{plugin.name}: {problem}")
