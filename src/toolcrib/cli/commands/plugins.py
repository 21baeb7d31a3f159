"""`toolcrib plugins`: lists plugins, and enables or disables them."""

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
    """The plugin with this name, even if only the config mentions it; raises UnknownPlugin with the nearest names."""
    plugins = discover_all(settings)
    for plugin in plugins:
        if name in plugin.names:
            return plugin
    raise UnknownPlugin(name, [plugin.name for plugin in plugins], advice="`toolcrib plugins list` lists them all")


def complete_plugins(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Plugin names for the shell."""
    return matching_names(lambda: [plugin.name for plugin in discover_all(load_settings())], incomplete)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_plugins(as_json: bool) -> None:
    """List the plugins and where each comes from.

    Finds plugins in toolcrib's home, in installed packages and, with `plugins.project: true` in the config, in the
    current folder. Runs none of their code.

    Each object of --json has the keys name, version, description, state (enabled, disabled or not enabled), origin
    (user, project, entry point or missing), location and problems.
    """
    settings = load_settings()
    plugins = discover_all(settings)
    if as_json:
        print_json([_as_json(plugin) for plugin in plugins])
        return
    if not plugins:
        print_line(f"There are no plugins; put a plugin folder into {settings.home.plugins_dir}.")
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
        note("Safe mode is on, so no plugin is loaded; unset TOOLCRIB_SAFE_MODE to leave it.")
    hint("Run `toolcrib plugins enable NAME` to enable a plugin.")


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
    """Enable a plugin.

    A plugin runs with your permissions: enable only plugins that you trust.

    \b
    Example:
      toolcrib plugins enable weather-plus
    """
    settings = load_settings()
    plugin = find_plugin(settings, name)
    if plugin.origin == "missing":
        known = [found.name for found in discover_all(settings) if found.origin != "missing"]
        raise UnknownPlugin(name, known, advice="`toolcrib plugins list` lists them all")
    for known_as in plugin.names & set(settings.plugins.disabled):
        remove_from_list(settings.home, "plugins.disabled", known_as)
    if not plugin.names & set(settings.plugins.enabled):
        add_to_list(settings.home, "plugins.enabled", plugin.name)
    note(f"Enabled plugin {plugin.name} ({plugin.origin}, {plugin.location}); see `toolcrib tools list`.")
    for problem in plugin.problems:
        note(f"{plugin.name}: {problem}")


@group.command("disable")
@click.argument("name", metavar="NAME", shell_complete=complete_plugins)
def disable_plugin(name: str) -> None:
    """Disable a plugin.

    \b
    Example:
      toolcrib plugins disable weather-plus
    """
    settings = load_settings()
    plugin = find_plugin(settings, name)
    for known_as in plugin.names & set(settings.plugins.enabled):
        remove_from_list(settings.home, "plugins.enabled", known_as)
    if plugin.origin == "missing":
        note(f"There is no plugin {plugin.name}; removed it from the config. See `toolcrib plugins list`.")
        return
    if not plugin.names & set(settings.plugins.disabled):
        add_to_list(settings.home, "plugins.disabled", plugin.name)
    note(f"Disabled plugin {plugin.name}; run `toolcrib plugins enable {plugin.name}` to enable it again.")
