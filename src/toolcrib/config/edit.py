"""Reading and changing single settings by dotted key; a change is checked before it is written, and never half done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import msgspec

from toolcrib.config.files import replace_file, writing
from toolcrib.config.load import BOM, read_config, read_text
from toolcrib.config.paths import Home
from toolcrib.config.schema import Reader, Setting, describe_type, find_setting
from toolcrib.config.section import Section
from toolcrib.config.settings import Settings
from toolcrib.config.yaml_edit import with_item, with_value, without, without_item
from toolcrib.config.yaml_text import dotted, parse
from toolcrib.core.errors import ConfigError


def get_value(settings: Settings, dotted_key: str) -> Any:
    """The value in force under a dotted key, as plain data; a section is a dict."""
    value: Any = settings
    for part in find_setting(dotted_key).path:
        if isinstance(value, dict) and part not in value:
            raise ConfigError(f"{dotted_key!r} is not set; type `toolcrib config set {dotted_key} VALUE`")
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return _plain(value)


def set_value(home: Home, dotted_key: str, text_value: str) -> None:
    """Write one setting, given as text (`8`, `true`, `[a, b]`), to the config file."""
    setting = find_setting(dotted_key)
    put_values(home, {setting.path: _from_text(setting, text_value)})


def put_values(home: Home, values: dict[tuple[str, ...], Any]) -> None:
    """Write several settings in one step."""

    def change(text: str, name: str) -> str:
        for path, value in values.items():
            text = with_value(_expanded(text, path, name), path, value, name)
        return text

    _rewrite(home, change)


def put_mappings(home: Home, mappings: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """Write whole mappings in one step; in one that is there already, what stays the same keeps its place."""

    def change(text: str, name: str) -> str:
        for path, mapping in mappings.items():
            written = _written(text, path, name)
            if not isinstance(written, dict) or not written:
                text = with_value(text, path, mapping, name)
                continue
            for key in [key for key in written if key not in mapping]:
                text = without(text, (*path, key), name)
            for key, value in mapping.items():
                if key not in written or written[key] != value:
                    text = with_value(text, (*path, key), value, name)
        return text

    _rewrite(home, change)


def remove_keys(home: Home, paths: Sequence[tuple[str, ...]]) -> None:
    """Remove what stands under each path, in one step; nothing happens for one that is not there."""

    def change(text: str, name: str) -> str:
        for path in paths:
            if path[-1] in (_written(text, path[:-1], name) or {}):
                text = without(text, path, name)
        return text

    _rewrite(home, change)


def unset_value(home: Home, dotted_key: str) -> None:
    """Remove one setting from the config file, so that its default holds again; nothing happens if it is not there."""
    path = find_setting(dotted_key).path

    def change(text: str, name: str) -> str:
        return text if _written(text, path, name) is None else without(text, path, name)

    _rewrite(home, change)


def add_to_list(home: Home, dotted_key: str, item: str) -> None:
    """Write one more item to a list; nothing happens if it is there already."""
    setting = _list_setting(dotted_key)
    _encoded(item)

    def change(text: str, name: str) -> str:
        items = _written_items(text, setting, name)
        if not items:
            return with_value(text, setting.path, [*_default_items(setting, items), item], name)
        return text if item in items else with_item(text, setting.path, item, name)

    _rewrite(home, change)


def remove_from_list(home: Home, dotted_key: str, item: str) -> None:
    """Remove an item from a list; nothing happens if it is not there."""
    setting = _list_setting(dotted_key)

    def change(text: str, name: str) -> str:
        items = _written_items(text, setting, name)
        if items is None:
            default = _default_items(setting, None)
            if item not in default:
                return text
            return with_value(text, setting.path, [kept for kept in default if kept != item], name)
        while item in items:
            text = without_item(text, setting.path, items.index(item), name)
            items.remove(item)
        return text

    _rewrite(home, change)


def _rewrite(home: Home, change: Callable[[str, str], str]) -> None:
    with writing(home.config_file) as target:
        before = read_text(home)
        mark = BOM if before.startswith(BOM) else ""
        after = change(before.removeprefix(mark), str(home.config_file))
        problems = read_config(after, home)[1]
        if problems:
            raise ConfigError("\n".join(problems))
        if mark + after != before:
            replace_file(target, _encoded(mark + after))


def _expanded(text: str, path: tuple[str, ...], name: str) -> str:
    """The text with a shorthand on the way to `path` (`tool_search: on`) written out, so that it can hold more keys."""
    for depth in range(1, len(path)):
        shorthand = find_setting(path[:depth]).extra("shorthand")
        written = _written(text, path[:depth], name)
        if shorthand and written is not None and not isinstance(written, dict):
            return with_value(text, path[:depth], {shorthand: written}, name)
    return text


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text[:40]!r} is not valid text; type it again in UTF-8") from error


def _written(text: str, path: tuple[str, ...], name: str) -> Any:
    """What stands in the file itself under a path; None when nothing does."""
    data = parse(text, name).data
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _written_items(text: str, setting: Setting, name: str) -> list[str] | None:
    items = _written(text, setting.path, name)
    if items is not None and not isinstance(items, list):
        raise ConfigError(
            f"{name}: {dotted(setting.path)!r} is not a list; correct it, then run `toolcrib config check`"
        )
    as_text = setting.extra("item_text")
    return [as_text(item) for item in items] if as_text is not None and items is not None else items


def _from_text(setting: Setting, text: str) -> Any:
    """The value that a person typed, read by the type of the setting."""
    key = dotted(setting.path)
    _encoded(text)
    if setting.expected is str:
        return text
    if setting.expected == list[str] and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    value = parse(text, f"the value for {key!r}").data
    if value is None:
        raise ConfigError(
            f"{key!r} should be {describe_type(setting.expected)}, not empty; unset it to get the default"
        )
    reader = Reader()
    reader.setting(setting, value)
    if reader.problems:
        raise ConfigError("\n".join(message for _, message in reader.problems))
    return value


def _list_setting(dotted_key: str) -> Setting:
    setting = find_setting(dotted_key)
    if get_origin(setting.expected) is not list or get_args(setting.expected) != (str,):
        raise ConfigError(f"{dotted_key!r} is not a list; type `toolcrib config set {dotted_key} VALUE`")
    return setting


def _default_items(setting: Setting, written: Any) -> list[str]:
    """What an unwritten list holds, so that adding to it does not lose its default; a written empty list is empty."""
    if written is not None:
        return []
    value: Any = Settings()
    for part in setting.path:
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return list(value or [])


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
