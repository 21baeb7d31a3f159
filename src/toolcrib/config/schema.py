"""Converts plain data into typed settings by the fields of the section classes, and collects every problem."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, get_args, get_origin

from msgspec import UNSET, Meta, Struct

from toolcrib.config.section import Section
from toolcrib.config.settings import Settings
from toolcrib.config.yaml_text import KeyPath, dotted
from toolcrib.core.errors import ConfigError, nearest_names

ADVICE = "then run `toolcrib config check`"
SHOWN_CHARS = 40
_NO_META = Meta()
LIMITS = (
    ("ge", operator.ge, "at least"),
    ("gt", operator.gt, "more than"),
    ("le", operator.le, "at most"),
)


class Setting(Struct, frozen=True):
    """One key of the config file: its path, its type and its field's other metadata."""

    path: tuple[Any, ...]
    expected: Any
    meta: Meta

    def extra(self, name: str) -> Any:
        """The field's metadata besides type and limits (`in_file`, `shorthand`, `item_text`), or None."""
        return (self.meta.extra or {}).get(name)


class SettingsReader:
    """Turns plain data into settings; `problems` says what was unusable, and where."""

    def __init__(self, *, ignore_unknown: bool = False) -> None:
        self.problems: list[tuple[KeyPath, str]] = []
        self._ignore_unknown = ignore_unknown

    def section(self, section: type[Any], data: Any, path: KeyPath = ()) -> Any:
        """The section with the values of `data`; a key with no value or a bad one keeps its default."""
        if not isinstance(data, dict):
            self._mismatch(path, "a mapping of keys to values", data)
            return section()
        known = file_settings(section, path)
        given = {}
        for key, value in data.items():
            if key not in known:
                if not self._ignore_unknown:
                    self.problems.append(((*path, key), unknown_key((*path, key), known)))
            elif value is not None:
                given[key] = self.setting(known[key], value)
        return section(**{key: value for key, value in given.items() if value is not UNSET})

    def setting(self, setting: Setting, data: Any) -> Any:
        """The value of one key, or UNSET; a section with a shorthand may be written as a single value."""
        shorthand = setting.extra("shorthand")
        if shorthand and not isinstance(data, dict | list):
            data = {shorthand: data}
        return self._value(setting, data)

    def _value(self, setting: Setting, data: Any) -> Any:
        """`data` as the expected type, or UNSET if it is something else."""
        path, expected = setting.path, when_set(setting.expected)
        if is_section(expected):
            return self.section(expected, data, path)
        origin = get_origin(expected)
        if origin is list and isinstance(data, list):
            return self._items(setting, data)
        if origin is dict and isinstance(data, dict):
            return self._mapping(get_args(expected)[1], data, path)
        found = _choice(get_args(expected), data) if origin is Literal else _scalar(expected, data)
        if found is UNSET:
            self._mismatch(path, describe_type(expected), data)
            return UNSET
        return found if self._is_within(found, setting.meta, path) else UNSET

    def _items(self, setting: Setting, data: list[Any]) -> Any:
        convert, (item_type,) = setting.extra("item_text"), get_args(setting.expected)
        items: list[Any] = []
        for at, item in enumerate(data):
            path = (*setting.path, at)
            if convert is None:
                items.append(self._value(make_setting(path, item_type), item))
                continue
            try:
                items.append(convert(item))
            except ValueError as error:
                self._mismatch(path, str(error), item)
                items.append(UNSET)
        return UNSET if UNSET in items else items

    def _mapping(self, item_type: Any, data: dict[Any, Any], path: KeyPath) -> Any:
        values: dict[str, Any] = {}
        for key, item in data.items():
            if not isinstance(key, str):
                self.problems.append(
                    ((*path, key), f"the name {key!r} in {dotted(path)!r} is not text; put it in quotes, {ADVICE}")
                )
                continue
            item = {} if item is None and is_section(item_type) else item
            values[key] = self._value(make_setting((*path, key), item_type), item)
        return UNSET if UNSET in values.values() else values

    def _is_within(self, value: Any, meta: Meta, path: KeyPath) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        for name, holds, words in LIMITS:
            limit = getattr(meta, name)
            if limit is not None and not holds(value, limit):
                self.problems.append(
                    (path, f"{dotted(path)!r} should be {words} {limit}, not {value:g}; correct it, {ADVICE}")
                )
                return False
        return True

    def _mismatch(self, path: KeyPath, expected: str, data: Any) -> None:
        what = repr(dotted(path)) if path else "the file"
        # A number or a word like `true` that is meant as text, such as an argument of a command.
        step = "put it in quotes" if expected == describe_type(str) and isinstance(data, int | float) else "correct it"
        self.problems.append((path, f"{what} should be {expected}, not {describe_value(data)}; {step}, {ADVICE}"))


def is_section(expected: Any) -> TypeGuard[type[Section]]:
    """Whether a field's type is a section with its own fields."""
    return isinstance(expected, type) and issubclass(expected, Section)


def make_setting(path: KeyPath, annotation: Any) -> Setting:
    """The setting that a field with this annotation declares."""
    if get_origin(annotation) is Annotated:
        expected, meta = get_args(annotation)
        return Setting(path, expected, meta)
    return Setting(path, annotation, _NO_META)


def all_settings(section: type[Section], path: KeyPath = ()) -> dict[str, Setting]:
    """The settings of a section by field name, in order of declaration."""
    # The section modules have real annotations, so there is nothing to resolve.
    return {name: make_setting((*path, name), annotation) for name, annotation in section.__annotations__.items()}


def file_settings(section: type[Section], path: KeyPath = ()) -> dict[str, Setting]:
    """Those settings of a section that the config file may set."""
    found = all_settings(section, path)
    return {name: setting for name, setting in found.items() if setting.extra("in_file") is not False}


def known_keys(section: type[Section] = Settings, prefix: str = "") -> Iterator[str]:
    """Every dotted key, including sections; `NAME` is a placeholder for a name that the user chooses."""
    for name, setting in file_settings(section).items():
        key, inner = prefix + name, setting.expected
        yield key
        if get_origin(inner) is dict:
            inner, key = get_args(inner)[1], key + ".NAME"
        if is_section(inner):
            yield from known_keys(inner, key + ".")


def find_setting(key: str | tuple[str, ...]) -> Setting:
    """The setting under a dotted key or an exact path; raises ConfigError with the nearest known key."""
    return _found(Settings, (), key.split(".") if isinstance(key, str) else list(key), is_dotted=isinstance(key, str))


def _found(section: Any, path: tuple[str, ...], parts: list[str], *, is_dotted: bool) -> Setting:
    known = file_settings(section, path)
    name, rest = parts[0], parts[1:]
    if name not in known:
        raise ConfigError(unknown_key((*path, name), known))
    setting = known[name]
    if get_origin(setting.expected) is dict and rest:
        return _found_item(get_args(setting.expected)[1], setting.path, rest, is_dotted=is_dotted)
    return _found_inside(setting, rest, is_dotted=is_dotted)


def _found_item(item_type: Any, path: tuple[str, ...], rest: list[str], *, is_dotted: bool) -> Setting:
    """The setting of an item whose name the user chose. The name may contain dots; the shortest match wins."""
    if not is_dotted or not is_section(item_type):
        chosen = len(rest) if is_dotted else 1
        item = make_setting((*path, ".".join(rest[:chosen])), item_type)
        return _found_inside(item, rest[chosen:], is_dotted=is_dotted)
    problems: list[ConfigError] = []
    for chosen in range(1, max(2, len(rest))):
        item = make_setting((*path, ".".join(rest[:chosen])), item_type)
        try:
            return _found_inside(item, rest[chosen:], is_dotted=is_dotted)
        except ConfigError as error:
            problems.append(error)
    raise problems[0]


def _found_inside(setting: Setting, rest: list[str], *, is_dotted: bool) -> Setting:
    if not rest:
        return setting
    if not is_section(setting.expected):
        key = ".".join(setting.path)
        raise ConfigError(f"{key!r} has no keys inside it; run `toolcrib config get {key}`")
    return _found(setting.expected, setting.path, rest, is_dotted=is_dotted)


def unknown_key(path: KeyPath, known: Mapping[str, Any]) -> str:
    """The message for an unknown key: suggests the nearest keys beside it, else anywhere, else all beside it."""
    name, parent = str(path[-1]), path[:-1]
    nearest = [dotted((*parent, found)) for found in nearest_names(name, known)]
    if not nearest:
        # The first key with this ending: general keys come before those of single items.
        by_last_word = {key.rpartition(".")[2]: key for key in reversed([*known_keys()])}
        nearest = [by_last_word[found] for found in nearest_names(name, by_last_word)]
    if nearest:
        meant = " or ".join(repr(found) for found in nearest)
        return f"unknown key {dotted(path)!r}; did you mean {meant}? Rename or remove it, {ADVICE}"
    place = f"in {dotted(parent)!r}" if parent else "at the top of the file"
    return f"unknown key {dotted(path)!r}; {place} there can be {', '.join(known)}. Rename or remove it, {ADVICE}"


def when_set(expected: Any) -> Any:
    """The type of an optional setting when set: `float` of `float | None`."""
    inner = [kind for kind in get_args(expected) if kind is not NoneType]
    return inner[0] if get_origin(expected) is UnionType and len(inner) == 1 else expected


def describe_type(expected: Any) -> str:
    """A readable name for a type: what the file should contain."""
    expected = when_set(expected)
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    origin = get_origin(expected)
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in get_args(expected))
    if origin is list:
        return "a list like [one, two]"
    if origin is dict or is_section(expected):
        return "a mapping of keys to values"
    return names.get(expected, str(expected))


def describe_value(data: Any) -> str:
    """A readable description of a value in the file."""
    if data is None:
        return "empty"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, str):
        return f"the text {data if len(data) <= SHOWN_CHARS else data[:SHOWN_CHARS] + '…'!r}"
    if isinstance(data, int | float):
        return f"the number {data}"
    return "a list" if isinstance(data, list) else "a mapping"


def _scalar(expected: Any, data: Any) -> Any:
    if isinstance(data, bool):
        return data if expected is bool else UNSET
    if expected is float and isinstance(data, int | float):
        return float(data) if abs(data) <= sys.float_info.max else UNSET
    return data if expected in (str, int) and isinstance(data, expected) else UNSET


def _choice(options: tuple[Any, ...], data: Any) -> Any:
    """One of the options; true and false mean on and off, and case does not matter."""
    if isinstance(data, bool):
        data = "on" if data else "off"
    by_lowercase = {str(option).lower(): option for option in options}
    return by_lowercase.get(data.lower(), UNSET) if isinstance(data, str) else UNSET
