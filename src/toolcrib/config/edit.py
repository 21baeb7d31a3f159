"""Reads and changes single settings by dotted key.

A change is checked before it is written, is atomic, and leaves the rest of the YAML text unchanged: comments, order,
quotes, indentation.
"""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import msgspec

from toolcrib.config.files import replace_file, writing
from toolcrib.config.load import BOM, read_config, read_text
from toolcrib.config.paths import Home
from toolcrib.config.schema import Setting, SettingsReader, describe_type, find_setting
from toolcrib.config.section import Section
from toolcrib.config.settings import Settings
from toolcrib.config.tool_call_mark import refuse_in_tool_call
from toolcrib.config.yaml_text import dotted, parse
from toolcrib.core.errors import ConfigError
from toolcrib.core.lazy import ruamel_yaml

INDENT = "  "
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*")
_NOT_TEXT = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_DOCUMENT_END = re.compile(r"^(?:\.\.\.|---)(?=\s|$)", re.MULTILINE)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def with_value(text: str, path: tuple[str, ...], value: Any, name: str) -> str:
    """The text with the value under `path` set; creates missing mappings on the way."""
    return _checked(text, name, lambda data: _put(data, path, value), lambda root: _set(text, root, path, value))


def without(text: str, path: tuple[str, ...], name: str) -> str:
    """The text with the key under `path` and its value removed."""
    return _checked(text, name, lambda data: _drop(data, path), lambda root: _remove_key(text, root, path))


def with_item(text: str, path: tuple[str, ...], item: Any, name: str) -> str:
    """The text with one more item at the end of the list under `path`, which must exist."""
    return _checked(text, name, lambda data: _at(data, path).append(item), lambda root: _append(text, root, path, item))


def without_item(text: str, path: tuple[str, ...], index: int, name: str) -> str:
    """The text with one item removed from the list under `path`."""
    return _checked(
        text, name, lambda data: _at(data, path).pop(index), lambda root: _take_out(text, root, path, index)
    )


def _checked(text: str, name: str, change: Any, edit: Any) -> str:
    """The edited text, if it means the changed data; otherwise the same by round trip."""
    document = parse(text, name)
    expected = copy.deepcopy(document.data) if isinstance(document.data, dict) else {}
    change(expected)
    for rewrite in (lambda: edit(document.root), lambda: _round_trip(text, change)):
        try:
            edited: str = rewrite()
            if _same(parse(edited, name).data, expected):
                return edited
        except (ConfigError, LookupError, AttributeError, TypeError):
            continue
    raise ConfigError(f"toolcrib cannot change {name} because of how it is written; make the change in an editor")


def _same(left: Any, right: Any) -> bool:
    """Whether two values are equal, where an empty section may be null, {} or []."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if left in (None, {}, []) and right in (None, {}, []):
        return left == right or left is None
    return type(left) is type(right) and bool(left == right)


def _put(data: Any, path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(data.get(part), dict):
            data[part] = {}
        data = data[part]
    data[path[-1]] = value


def _drop(data: Any, path: tuple[str, ...]) -> None:
    del _at(data, path[:-1])[path[-1]]


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        data = data[part]
    return data


def _round_trip(text: str, change: Any) -> str:
    yaml = ruamel_yaml.YAML()
    yaml.preserve_quotes = True
    yaml.width = 1_000_000
    data = yaml.load(text)
    data = yaml.map() if data is None else data
    change(data)
    stream = io.StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


def _set(text: str, root: Any, path: tuple[str, ...], value: Any) -> str:
    if root is None or root.tag.endswith(":null"):
        return _append_lines(text, _block(path, value, ""))
    node = root
    for depth, part in enumerate(path):
        pair = _pair(node, part)
        if pair is None:
            return _insert_key(text, root, node, path[depth:], value)
        key, node = pair
        if node.tag.endswith(":null") and depth + 1 < len(path):
            return _fill_empty(text, root, key, node, path[depth + 1 :], value)
    return _replace_value(text, key, node, value)


def _fill_empty(text: str, root: Any, key: Any, node: Any, path: tuple[str, ...], value: Any) -> str:
    """Adds the first key to an empty section."""
    if node.start_mark.index == node.end_mark.index and not root.flow_style:
        lines = _block(path, value, " " * key.start_mark.column + INDENT)
        return _insert_after_line(text, key.end_mark.index, lines)
    nested: Any = value
    for part in reversed(path):
        nested = {part: nested}
    return _replace_value(text, key, node, nested)


def _insert_key(text: str, root: Any, mapping: Any, path: tuple[str, ...], value: Any) -> str:
    if not isinstance(mapping.value, list):
        raise TypeError("not a mapping")
    if mapping.flow_style:
        nested: Any = value
        for part in reversed(path[1:]):
            nested = {part: nested}
        return _insert_in_flow(text, mapping, f"{_flow(path[0])}: {_flow(nested)}")
    lines = _block(path, value, " " * mapping.value[0][0].start_mark.column)
    if mapping is root:
        ended = _DOCUMENT_END.search(text, _end(root))
        return _append_lines(text, lines) if ended is None else _insert_after_line(text, ended.start(), lines)
    return _insert_after_line(text, _end(mapping), lines)


def _replace_value(text: str, key: Any, node: Any, value: Any) -> str:
    colon = text.index(":", key.end_mark.index) + 1
    start, end = node.start_mark.index, _end(node)
    if isinstance(node.value, list) and not node.flow_style:
        # Keep comments between the key and its first item; remove the items.
        line_start = text.rindex("\n", 0, start) + 1
        return text[:colon] + " " + _flow(value) + text[colon:line_start] + text[_line_end(text, end) :]
    if start == end:
        return text[:colon] + " " + _flow(value) + text[colon:]
    tail = "\n" if text[end - 1] == "\n" else ""
    return text[:start] + _flow(value) + tail + text[end:]


def _remove_key(text: str, root: Any, path: tuple[str, ...]) -> str:
    mapping = root
    for part in path[:-1]:
        mapping = _pair(mapping, part)[1]  # type: ignore[index]
    index = next(at for at, (key, _) in enumerate(mapping.value) if key.value == path[-1])
    spans = [(key.start_mark.index, _pair_end(key, value)) for key, value in mapping.value]
    return _remove_span(text, mapping, spans, index)


def _append(text: str, root: Any, path: tuple[str, ...], item: Any) -> str:
    key, node = _node_at(root, path)
    if node.flow_style:
        return _insert_in_flow(text, node, _flow(item))
    if not node.value:
        return _replace_value(text, key, node, [item])
    column = node.start_mark.column
    return _insert_after_line(text, _end(node), [f"{' ' * column}- {_flow(item)}"])


def _take_out(text: str, root: Any, path: tuple[str, ...], index: int) -> str:
    key, node = _node_at(root, path)
    if len(node.value) == 1:
        return _replace_value(text, key, node, [])
    return _remove_span(text, node, [(item.start_mark.index, _end(item)) for item in node.value], index)


def _remove_span(text: str, collection: Any, spans: list[tuple[int, int]], index: int) -> str:
    start, end = spans[index]
    if not collection.flow_style:
        return text[: text.rfind("\n", 0, start) + 1] + text[_line_end(text, end) :]
    if index + 1 < len(spans):
        return text[:start] + text[spans[index + 1][0] :]
    return text[: spans[index - 1][1] if index else start] + text[end:]


def _pair(mapping: Any, key: str) -> tuple[Any, Any] | None:
    if not isinstance(mapping.value, list):
        raise TypeError("not a mapping")
    return next(((found, value) for found, value in mapping.value if found.value == key), None)


def _node_at(root: Any, path: tuple[str, ...]) -> tuple[Any, Any]:
    key, node = None, root
    for part in path:
        key, node = _pair(node, part)  # type: ignore[misc]
    return key, node


def _end(node: Any) -> int:
    """Where the text of a node ends; the parser counts the comments after a block as part of it."""
    if not isinstance(node.value, list) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _pair_end(*last) if isinstance(last, tuple) else _end(last)


def _pair_end(key: Any, value: Any) -> int:
    # A missing value has no position: its mark may be lines further down.
    # An alias has the position of its anchor, further up.
    return max(int(key.end_mark.index), 0 if value.start_mark.index == value.end_mark.index else _end(value))


def _line_end(text: str, index: int) -> int:
    """The start of the line after the one that `index` ends in."""
    if index and text[index - 1] == "\n":
        return index
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def _insert_after_line(text: str, index: int, lines: list[str]) -> str:
    at = _line_end(text, index)
    return _append_lines(text[:at], lines) + text[at:]


def _append_lines(text: str, lines: list[str]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = newline if text and not text.endswith("\n") else ""
    return text + gap + "".join(line + newline for line in lines)


def _insert_in_flow(text: str, node: Any, piece: str) -> str:
    if node.value:
        last = node.value[-1]
        at = _pair_end(*last) if isinstance(last, tuple) else _end(last)
        return f"{text[:at]}, {piece}{text[at:]}"
    at = node.end_mark.index - 1
    return f"{text[:at]}{piece}{text[at:]}"


def _block(path: tuple[str, ...], value: Any, indent: str) -> list[str]:
    """`path: value` as lines, one key per line."""
    if len(path) > 1:
        return [f"{indent}{_flow(path[0])}:", *_block(path[1:], value, indent + INDENT)]
    if isinstance(value, list) and value:
        return [f"{indent}{_flow(path[0])}:", *(f"{indent}{INDENT}- {_flow(item)}" for item in value)]
    if isinstance(value, dict) and value:
        inner = [line for key, item in value.items() for line in _block((key,), item, indent + INDENT)]
        return [f"{indent}{_flow(path[0])}:", *inner]
    return [f"{indent}{_flow(path[0])}: {_flow(value)}"]


def _flow(value: Any) -> str:
    """A value on one line, quoted if it would otherwise be read as something else."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def get_value(settings: Settings, dotted_key: str) -> Any:
    """The value in force under a dotted key, as plain data; a section is a dict."""
    value: Any = settings
    for part in find_setting(dotted_key).path:
        if isinstance(value, dict) and part not in value:
            raise ConfigError(f"{dotted_key!r} is not set; run `toolcrib config set {dotted_key} VALUE`")
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
    """Write whole mappings in one step; in an existing one, unchanged entries keep their place."""

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
    """Remove the value under each path in one step; ignores missing ones."""

    def change(text: str, name: str) -> str:
        for path in paths:
            if path[-1] in (_written(text, path[:-1], name) or {}):
                text = without(text, path, name)
        return text

    _rewrite(home, change)


def unset_value(home: Home, dotted_key: str) -> None:
    """Remove one setting from the config file, so its default applies again; does nothing if it is missing."""
    path = find_setting(dotted_key).path

    def change(text: str, name: str) -> str:
        return text if _written(text, path, name) is None else without(text, path, name)

    _rewrite(home, change)


def add_to_list(home: Home, dotted_key: str, item: str) -> None:
    """Add an item to a list; does nothing if it is already there."""
    setting = _list_setting(dotted_key)
    _encoded(item)

    def change(text: str, name: str) -> str:
        items = _written_items(text, setting, name)
        if not items:
            return with_value(text, setting.path, [*_default_items(setting, items), item], name)
        return text if item in items else with_item(text, setting.path, item, name)

    _rewrite(home, change)


def remove_from_list(home: Home, dotted_key: str, item: str) -> None:
    """Remove an item from a list; does nothing if it is missing."""
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
    refuse_in_tool_call("change settings")
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
    """The text with a shorthand on the way to `path` (`tool_search: on`) expanded, so it can hold more keys."""
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
    """The value in the file itself under a path; None if it is missing."""
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
    """The value that the user typed, parsed by the type of the setting."""
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
    reader = SettingsReader()
    reader.setting(setting, value)
    if reader.problems:
        raise ConfigError("\n".join(message for _, message in reader.problems))
    return value


def _list_setting(dotted_key: str) -> Setting:
    setting = find_setting(dotted_key)
    if get_origin(setting.expected) is not list or get_args(setting.expected) != (str,):
        raise ConfigError(f"{dotted_key!r} is not a list; run `toolcrib config set {dotted_key} VALUE`")
    return setting


def _default_items(setting: Setting, written: Any) -> list[str]:
    """The default of a list that is not in the file, so that adding to it keeps the default items."""
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
