"""`toolcrib config get KEY`."""

from __future__ import annotations

import click

from toolcrib.cli.config_keys import complete_keys, require_key
from toolcrib.cli.output import as_sentence, print_json, print_line
from toolcrib.config.edit import get_value
from toolcrib.config.load import load_settings


@click.command(name="get")
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
@click.option("--json", "as_json", is_flag=True, help="Print the value as JSON, text in quotes too.")
def command(key: str, as_json: bool) -> None:
    """Print the value of a setting that is in force.

    \b
    Examples:
      toolcrib config get tools.max_parallel
      toolcrib config get plugins
    """
    require_key(key)
    value = get_value(load_settings(), key)
    if as_json:
        print_json(value)
    else:
        print_line(as_sentence(value))
