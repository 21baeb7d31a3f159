"""The keys of the config file: looked up for the commands, completed for the shell."""

from __future__ import annotations

import click

from toolcrib.config.schema import Setting, find_setting, known_keys
from toolcrib.core.errors import ConfigError, UnknownName


class UnknownKey(UnknownName):
    kind = "key"


def require_key(key: str) -> Setting:
    """The setting under a dotted key; raises UnknownKey with the nearest ones."""
    try:
        return find_setting(key)
    except ConfigError:
        raise UnknownKey(key, known_keys(), advice="`toolcrib config show` lists all of them") from None


def complete_keys(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Every key without a part that the user chooses."""
    return [key for key in known_keys() if key.startswith(incomplete) and ".NAME" not in key]
