"""`toolcrib config unset KEY`."""

from __future__ import annotations

import click

from toolcrib.cli.config_keys import complete_keys, require_key
from toolcrib.cli.output import note
from toolcrib.config.edit import unset_value
from toolcrib.config.paths import find_home


@click.command(name="unset")
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
def command(key: str) -> None:
    """Remove a setting from the config file, so that its default holds again.

    \b
    Example:
      toolcrib config unset tools.max_parallel
    """
    require_key(key)
    home = find_home()
    unset_value(home, key)
    note(f"{key} has its default again; `toolcrib config get {key}` shows it.")
