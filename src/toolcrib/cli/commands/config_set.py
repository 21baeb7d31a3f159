"""`toolcrib config set KEY VALUE`."""

from __future__ import annotations

import click

from toolcrib.cli.config_keys import complete_keys, require_key
from toolcrib.cli.output import note
from toolcrib.cli.state import open_runtime
from toolcrib.config.edit import set_value
from toolcrib.config.paths import find_home
from toolcrib.core.errors import ConfigError


@click.command(name="set", context_settings={"ignore_unknown_options": True})
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
@click.argument("value", metavar="VALUE")
def command(key: str, value: str) -> None:
    """Write a setting to the config file.

    The value is checked first; comments and everything else in the file stay as they are.

    \b
    Examples:
      toolcrib config set tools.max_parallel 4
      toolcrib config set toolsets web,file
      toolcrib config set custom_toolsets.mine.tools '[weather]'
    """
    home = find_home()
    _refuse_unknown_toolsets(key, value)
    try:
        set_value(home, key, value)
    except ConfigError as error:
        said = str(error)
        if not said.startswith(repr(key)):
            raise  # not about this value, but about what stands in the file
        reason = said.partition(";")[0]
        raise ConfigError(f"{reason}; type `toolcrib config set {key} VALUE` with such a value") from error
    note(f"Wrote {key} to {home.config_file}; `toolcrib config get {key}` shows it.")


def _refuse_unknown_toolsets(key: str, value: str) -> None:
    """Raises UnknownToolset for a name that nothing answers to, where the setting is a list of toolsets."""
    path = require_key(key).path
    names_toolsets = ".".join(path) in ("toolsets", "agent.disabled_toolsets") or (
        path[0] == "custom_toolsets" and path[-1] == "includes"
    )
    if not names_toolsets:
        return
    names = [name.strip(" \t'\"") for name in value.strip().removeprefix("[").removesuffix("]").split(",")]
    try:
        runtime = open_runtime()
    except ConfigError:
        return  # while the file is broken nobody knows which toolsets it defines; `config check` comes back to it
    runtime.toolsets.require(name for name in names if name)
