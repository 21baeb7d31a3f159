"""`toolcrib plugins disable NAME`."""

from __future__ import annotations

import click

from toolcrib.cli.output import note
from toolcrib.cli.plugin_names import complete_plugins, find_plugin
from toolcrib.config.edit import add_to_list, remove_from_list
from toolcrib.config.load import load_settings


@click.command(name="disable")
@click.argument("name", metavar="NAME", shell_complete=complete_plugins)
def command(name: str) -> None:
    """Never load a plugin.

    \b
    Example:
      toolcrib plugins disable weather-plus
    """
    settings = load_settings()
    plugin = find_plugin(settings, name)
    for known_as in plugin.names & set(settings.plugins.enabled):
        remove_from_list(settings.home, "plugins.enabled", known_as)
    if plugin.origin == "missing":
        note(f"Nothing here is called {plugin.name}; the config no longer names it. See `toolcrib plugins list`.")
        return
    if not plugin.names & set(settings.plugins.disabled):
        add_to_list(settings.home, "plugins.disabled", plugin.name)
    note(f"Plugin {plugin.name} is disabled; `toolcrib plugins enable {plugin.name}` loads it again.")
