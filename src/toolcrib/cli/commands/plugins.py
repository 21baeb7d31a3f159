"""Plugins by name, for the commands that switch them and for the shell."""

from __future__ import annotations

import click

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import hint, note, print_json, print_line, print_table
from toolcrib.config.edit import add_to_list, remove_from_list
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UnknownName
from toolcrib.core.types import JsonObject
from toolcrib.plugins.discover import FoundPlugin, discover_all

group = CommandGroup("plugins")


class UnknownPlugin(UnknownName):
    kind = "plugin"


def find_plugin(settings: Settings, name: str) -> FoundPlugin:
    """The plugin of that name, or one that only the config names; raises UnknownPlugin with the nearest names."""
    plugins = discover_all(settings)
    for plugin in plugins:
        if name in plugin.names:
            return plugin
    raise UnknownPlugin(name, [plugin.name for plugin in plugins], advice="`toolcrib plugins list` shows all of them")


def complete_plugins(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Plugin names for the shell."""
    return matching_names(lambda: [plugin.name for plugin in discover_all(load_settings())], incomplete)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def list_plugins(as_json: bool) -> None:
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


@group.command("enable")
@click.argument("name", metavar="NAME", shell_complete=complete_plugins)
def enable_plugin(name: str) -> None:
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


@group.command("disable")
@click.argument("name", metavar="NAME", shell_complete=complete_plugins)
def disable_plugin(name: str) -> None:
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
