"""`toolcrib config show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from toolcrib.cli.mcp_secrets import without_secrets
from toolcrib.cli.output import as_sentence, hint, print_json, print_table
from toolcrib.config.edit import get_value
from toolcrib.config.load import BOM, load_settings, read_text
from toolcrib.config.schema import file_settings, find_setting
from toolcrib.config.settings import Settings
from toolcrib.config.yaml_text import parse


@click.command(name="show")
@click.option("--json", "as_json", is_flag=True, help="Print one object with all settings.")
def command(as_json: bool) -> None:
    """Print every setting in force, and where it comes from.

    Secrets that are written out in `mcp_servers` are masked; `config get` prints them.
    """
    settings = load_settings()
    tree = {name: get_value(settings, name) for name in file_settings(Settings)}
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
