"""`toolcrib config`: reads, changes and checks the settings."""

from __future__ import annotations

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import as_config_text, error_line, hint, note, print_json, print_line, print_table
from toolcrib.cli.runtime import open_runtime, unknown_toolsets
from toolcrib.config.edit import get_value, set_value, unset_value
from toolcrib.config.effective import effective_settings, settings_tree
from toolcrib.config.load import check_settings, load_settings
from toolcrib.config.paths import find_home
from toolcrib.config.schema import Setting, find_setting, known_keys
from toolcrib.core.errors import ConfigError, UnknownName

group = CommandGroup("config")


class UnknownKey(UnknownName):
    kind = "key"


def require_key(key: str) -> Setting:
    """The setting with this dotted key; raises UnknownKey with the nearest keys."""
    try:
        return find_setting(key)
    except ConfigError:
        raise UnknownKey(key, known_keys(), advice="`toolcrib config show` lists them all") from None


def complete_keys(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Config keys for the shell, except those with a part that the user names."""
    return [key for key in known_keys() if key.startswith(incomplete) and ".NAME" not in key]


@group.command("get")
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
@click.option("--json", "as_json", is_flag=True, help="Print the value as JSON.")
def get_setting(key: str, as_json: bool) -> None:
    """Print the effective value of a setting.

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
        print_line(as_config_text(value))


@group.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
@click.argument("value", metavar="VALUE")
def set_setting(key: str, value: str) -> None:
    """Write a setting to the config file.

    Checks the value first, and keeps comments and everything else in the file.

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
        message = str(error)
        if not message.startswith(repr(key)):
            raise  # about something else in the file
        reason = message.partition(";")[0]
        raise ConfigError(f"{reason}; run `toolcrib config set {key} VALUE` with such a value") from error
    note(f"Wrote {key} to {home.config_file}.")


def _refuse_unknown_toolsets(key: str, value: str) -> None:
    """Raises UnknownToolset if the setting is a list of toolsets and names one that does not exist."""
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
        return  # a broken file defines no toolsets; `config check` reports it
    runtime.toolsets.require(name for name in names if name)


@group.command("unset")
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
def unset_setting(key: str) -> None:
    """Remove a setting from the config file; its default applies again.

    \b
    Example:
      toolcrib config unset tools.max_parallel
    """
    require_key(key)
    home = find_home()
    unset_value(home, key)
    note(f"Removed {key}; its default applies again.")


@group.command("path")
def print_path() -> None:
    """Print the path of the config file.

    The file may not exist. TOOLCRIB_HOME moves its folder.
    """
    print_line(str(find_home().config_file))


@group.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print all settings as a JSON object.")
def show_settings(as_json: bool) -> None:
    """Print all effective settings and where each comes from.

    Masks secrets written in `mcp_servers`; `config get` prints them.
    """
    settings = load_settings()
    if as_json:
        print_json(settings_tree(settings))
        return
    rows = [[one.key, as_config_text(one.value), one.origin] for one in effective_settings(settings)]
    print_table(["key", "value", "from"], rows)
    hint("Run `toolcrib config set KEY VALUE` to change a setting.")


@group.command("check")
def check_config() -> int:
    """Check the config file for problems.

    Prints each problem as a line on stderr and exits with code 2. Also checks the names of toolsets.
    """
    home = find_home()
    problems = check_settings(home)
    if not problems:
        problems = [
            f"{home.config_file}: {key}: {problem}; fix it with `toolcrib config set {key} NAME,NAME`"
            for key, problem in unknown_toolsets(open_runtime())
        ]
    for problem in problems:
        error_line(problem)
    if problems:
        return ConfigError.exit_code
    if home.config_file.exists():
        print_line(f"{home.config_file}: no problems found")
    else:
        print_line(f"{home.config_file}: no such file; all settings have their defaults")
    return 0
