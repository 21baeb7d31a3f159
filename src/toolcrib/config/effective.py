"""All settings in force: each with its value, its default, and where the value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from toolcrib.config.edit import get_value
from toolcrib.config.load import BOM, read_text
from toolcrib.config.mcp_secrets import without_secrets
from toolcrib.config.schema import file_settings, find_setting
from toolcrib.config.settings import Settings
from toolcrib.config.yaml_text import parse

SettingOrigin = Literal["config.yaml", "default", "environment"]


class EffectiveSetting(Struct, frozen=True, kw_only=True):
    """One setting in force."""

    key: str
    value: Any
    default: Any
    origin: SettingOrigin


def settings_tree(settings: Settings) -> dict[str, Any]:
    """All settings as plain data, with the secrets of MCP servers masked."""
    tree = {name: get_value(settings, name) for name in file_settings(Settings)}
    tree["mcp_servers"] = without_secrets(tree["mcp_servers"])
    return tree


def effective_settings(settings: Settings) -> list[EffectiveSetting]:
    """One row for each setting."""
    written = parse(read_text(settings.home).removeprefix(BOM), str(settings.home.config_file)).data or {}
    defaults = Settings(home=settings.home)
    rows = []
    for key, value in _leaves(settings_tree(settings), ""):
        default: Any = defaults
        for part in find_setting(key).path:
            default = default.get(part) if isinstance(default, dict) else getattr(default, part, None)
        rows.append(
            EffectiveSetting(key=key, value=value, default=default, origin=_origin(key, value, written, default))
        )
    return rows


def _leaves(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _origin(key: str, value: Any, written: Any, default: Any) -> SettingOrigin:
    inside: Any = written
    for part in key.split("."):
        if not isinstance(inside, dict):
            break  # a shorthand: one value stands for the whole section
        inside = inside.get(part)
    if inside is not None:
        return "config.yaml"
    return "default" if default == value or default is None else "environment"
