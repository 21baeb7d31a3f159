"""Plugins by name, for the commands that switch them and for the shell."""

from __future__ import annotations

import click

from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.plugins.discover import FoundPlugin, discover_all


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
    try:
        return [plugin.name for plugin in discover_all(load_settings()) if plugin.name.startswith(incomplete)]
    except (ToolcribError, OSError):
        return []  # there is no place for a message while somebody is typing
