"""The keys of the config file: looked up for the commands, completed for the shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.mcp_secrets import without_secrets
from toolcrib.cli.output import as_sentence, error_line, hint, note, print_json, print_line, print_table
from toolcrib.cli.runtime import open_runtime, unknown_toolsets
from toolcrib.config.edit import get_value, set_value, unset_value
from toolcrib.config.load import BOM, check_settings, load_settings, read_text
from toolcrib.config.paths import find_home
from toolcrib.config.schema import Setting, file_fields, find_setting, known_keys
from toolcrib.config.settings import Settings
from toolcrib.config.yaml_text import parse
from toolcrib.core.errors import ConfigError, UnknownName

group = CommandGroup("config")


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


@group.command("get")
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
@click.option("--json", "as_json", is_flag=True, help="Print the value as JSON, text in quotes too.")
def get_setting(key: str, as_json: bool) -> None:
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


@group.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
@click.argument("value", metavar="VALUE")
def set_setting(key: str, value: str) -> None:
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


@group.command("unset")
@click.argument("key", metavar="KEY", shell_complete=complete_keys)
def unset_setting(key: str) -> None:
    """Remove a setting from the config file, so that its default holds again.

    \b
    Example:
      toolcrib config unset tools.max_parallel
    """
    require_key(key)
    home = find_home()
    unset_value(home, key)
    note(f"{key} has its default again; `toolcrib config get {key}` shows it.")


@group.command("path")
def print_path() -> None:
    """Print where the config file is.

    The file need not exist. TOOLCRIB_HOME moves the folder that it stands in.
    """
    print_line(str(find_home().config_file))


@group.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print one object with all settings.")
def show_settings(as_json: bool) -> None:
    """Print every setting in force, and where it comes from.

    Secrets that are written out in `mcp_servers` are masked; `config get` prints them.
    """
    settings = load_settings()
    tree = {known.name: get_value(settings, known.name) for known in file_fields(Settings)}
    tree["mcp_servers"] = without_secrets(tree["mcp_servers"])
    if as_json:
        print_json(tree)
        return
    written = parse(read_text(settings.home).removeprefix(BOM), str(settings.home.config_file)).data or {}
    defaults = Settings(home=settings.home)
    rows = [
        [key, as_sentence(value), _origin(key.split("."), value, written, defaults)] for key, value in _leaves(tree, "")
    ]
    print_table(["key", "value", "from"], rows)
    hint("`toolcrib config set KEY VALUE` changes one.")


def _leaves(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _origin(path: list[str], value: Any, written: Any, defaults: Settings) -> str:
    inside: Any = written
    for part in path:
        if not isinstance(inside, dict):
            break  # a shorthand: the whole section is written as one value
        inside = inside.get(part)
    if inside is not None:
        return "config.yaml"
    default: Any = defaults
    for part in find_setting(".".join(path)).path:
        default = default.get(part) if isinstance(default, dict) else getattr(default, part, None)
    return "default" if default == value or default is None else "environment"


@group.command("check")
def check_config() -> int:
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
