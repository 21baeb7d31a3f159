"""`toolcrib plugins`: lists plugins, and enables or disables them."""

from __future__ import annotations

import click
from msgspec.structs import replace

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import error_line, hint, note, print_json, print_line, print_table
from toolcrib.cli.runtime import open_runtime
from toolcrib.config.edit import add_to_list, remove_from_list
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UnknownName
from toolcrib.core.types import JsonObject
from toolcrib.plugins.discover import FoundPlugin, discover_all
from toolcrib.plugins.load import with_outcomes

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
    current folder. Loads those that are enabled, to show which ones fail; runs no code of the others.

    Each object of --json has the keys name, version, description, state (enabled, disabled, not enabled or failed),
    origin (user, project, entry point or missing), location and problems.
    """
    settings = load_settings()
    plugins = _with_outcomes(settings, discover_all(settings))
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


def _with_outcomes(settings: Settings, plugins: list[FoundPlugin]) -> list[FoundPlugin]:
    """Load the enabled plugins and add what happened."""
    if settings.safe_mode or not any(plugin.state == "enabled" for plugin in plugins):
        return plugins
    return with_outcomes(plugins, open_runtime().loaded_plugins)


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
def enable_plugin(name: str) -> int:
    """Enable a plugin, and load it to see that it works.

    A plugin runs with your permissions: enable only plugins that you trust. Exit code 1 if it cannot be loaded; it
    stays enabled, so that it works once the reason is gone.

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
    (plugin,) = _with_outcomes(settings, [replace(plugin, state="enabled")])
    where = f"{plugin.origin}, {plugin.location}"
    if plugin.state == "failed":
        error_line(f"plugin {plugin.name} ({where}) is enabled, but it failed to load")
    else:
        note(f"Enabled plugin {plugin.name} ({where}); see `toolcrib tools list`.")
    for problem in plugin.problems:
        note(f"{plugin.name}: {problem}")
    if plugin.state == "failed":
        hint(f"It loads once this is fixed; or run `toolcrib plugins disable {plugin.name}`.")
    return 1 if plugin.state == "failed" else 0


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
