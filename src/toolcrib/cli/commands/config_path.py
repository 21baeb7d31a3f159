"""`toolcrib config path`."""

from __future__ import annotations

import click

from toolcrib.cli.output import print_line
from toolcrib.config.paths import find_home


@click.command(name="path")
def command() -> None:
    """Print where the config file is.

    The file need not exist. TOOLCRIB_HOME moves the folder that it stands in.
    """
    print_line(str(find_home().config_file))
