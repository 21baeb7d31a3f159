"""`toolcrib config check`."""

from __future__ import annotations

import click

from toolcrib.cli.output import error_line, print_line
from toolcrib.cli.state import open_runtime, unknown_toolsets
from toolcrib.config.load import check_settings
from toolcrib.config.paths import find_home
from toolcrib.core.errors import ConfigError


@click.command(name="check")
def command() -> int:
    """Say what is wrong with the config file.

    One line for each problem, on stderr, with exit code 2. Names of toolsets are checked too.
    """
    home = find_home()
    problems = check_settings(home)
    if not problems:
        problems = [
            f"{home.config_file}: {key}: {problem}; correct it with `toolcrib config set {key} NAME,NAME`"
            for key, problem in unknown_toolsets(open_runtime())
        ]
    for problem in problems:
        error_line(problem)
    if problems:
        return ConfigError.exit_code
    if home.config_file.exists():
        print_line(f"{home.config_file}: nothing is wrong")
    else:
        print_line(f"{home.config_file}: there is no such file, so all settings have their defaults")
    return 0
