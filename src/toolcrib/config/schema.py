"""Plain data into typed settings, by the fields of the settings classes; everything that is wrong is collected."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from toolcrib.config.settings import Settings
from toolcrib.config.yaml_text import KeyPath, dotted
from toolcrib.core.errors import ConfigError, nearest_names

ADVICE = "then run `toolcrib config check`"
SHOWN_CHARS = 40
LIMITS = (
    ("minimum", operator.ge, "at least"),
    ("above", operator.gt, "more than"),
    ("maximum", operator.le, "at most"),
)


@dataclass(frozen=True)
class Setting:
    """One key of the config file: where it stands, what it holds and which values it may have."""

    path: tuple[Any, ...]
    expected: Any
    limits: Mapping[str, Any]


class Reader:
    """Turns plain data into settings; `problems` says what could not be used, and where."""

    def __init__(self, *, ignore_unknown: bool = False) -> None:
        self.problems: list[tuple[KeyPath, str]] = []
        self._ignore_unknown = ignore_unknown

    def section(self, section: type[Any], data: Any, path: KeyPath = ()) -> Any:
        """The section with what `data` says; a key without a value, or with a bad one, keeps its default."""
        if not isinstance(data, dict):
            self._mismatch(path, "a mapping of keys to values", data)
            return section()
        known = {known_field.name: known_field for known_field in file_fields(section)}
        given = {}
        for key, value in data.items():
            if key not in known:
                if not self._ignore_unknown:
                    self.problems.append(((*path, key), unknown_key((*path, key), known)))
            elif value is not None:
                setting = Setting((*path, key), known[key].type, known[key].metadata)
                given[key] = self.setting(setting, value)
        return section(**{key: value for key, value in given.items() if value is not MISSING})

    def setting(self, setting: Setting, data: Any) -> Any:
        """The value of one key, or MISSING; a section with a shorthand may be written as a single value."""
        shorthand = setting.limits.get("shorthand")
        if shorthand and not isinstance(data, dict | list):
            data = {shorthand: data}
        return self.value(setting.expected, data, setting.path, setting.limits)

    def value(self, expected: Any, data: Any, path: KeyPath, limits: Mapping[str, Any]) -> Any:
        """`data` as the expected type, or MISSING when it is something else."""
        expected = when_set(expected)
        if is_dataclass(expected):
            return self.section(expected, data, path)  # type: ignore[arg-type]
        origin = get_origin(expected)
        if origin is list and isinstance(data, list):
            (item_type,) = get_args(expected)
            read = self._written_item if "item_text" in limits else self.value
            items = [read(item_type, item, (*path, at), limits) for at, item in enumerate(data)]
            return MISSING if MISSING in items else items
        if origin is dict and isinstance(data, dict):
            return self._mapping(get_args(expected)[1], data, path, limits)
        found = _choice(get_args(expected), data) if origin is Literal else _scalar(expected, data)
        if found is MISSING:
            self._mismatch(path, describe_type(expected), data)
            return MISSING
        return found if self._within(found, limits, path) else MISSING

    def _written_item(self, item_type: Any, data: Any, path: KeyPath, limits: Mapping[str, Any]) -> Any:
        """The item as its line of text, where a list takes lines or mappings."""
        try:
            return limits["item_text"](data)
        except ValueError as error:
            self._mismatch(path, str(error), data)
            return MISSING

    def _mapping(self, item_type: Any, data: dict[Any, Any], path: KeyPath, limits: Mapping[str, Any]) -> Any:
        values: dict[str, Any] = {}
        for key, item in data.items():
            if not isinstance(key, str):
                self.problems.append(
                    ((*path, key), f"the name {key!r} in {dotted(path)!r} is not text; put it in quotes, {ADVICE}")
                )
                continue
            item = {} if item is None and is_dataclass(item_type) else item
            values[key] = self.value(item_type, item, (*path, key), limits)
        return MISSING if MISSING in values.values() else values

    def _within(self, value: Any, limits: Mapping[str, Any], path: KeyPath) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        for name, holds, words in LIMITS:
            if name in limits and not holds(value, limits[name]):
                self.problems.append(
                    (path, f"{dotted(path)!r} should be {words} {limits[name]}, not {value:g}; correct it, {ADVICE}")
                )
                return False
        return True

    def _mismatch(self, path: KeyPath, expected: str, data: Any) -> None:
        what = repr(dotted(path)) if path else "the file"
        # A number or a word like `true` that is meant as text, as in the arguments of a command.
        step = "put it in quotes" if expected == describe_type(str) and isinstance(data, int | float) else "correct it"
        self.problems.append((path, f"{what} should be {expected}, not {describe_value(data)}; {step}, {ADVICE}"))


def file_fields(section: type[Any]) -> list[Field[Any]]:
    """The fields of a section that the config file may set."""
    return [known for known in fields(section) if known.metadata.get("in_file", True)]


def known_keys(section: type[Any] = Settings, prefix: str = "") -> Iterator[str]:
    """Every dotted key that exists, sections included; `NAME` stands for a name that the user chooses."""
    for known in file_fields(section):
        key = prefix + known.name
        yield key
        inner = known.type
        if get_origin(inner) is dict:
            inner, key = get_args(inner)[1], key + ".NAME"
        if is_dataclass(inner):
            yield from known_keys(inner, key + ".")  # type: ignore[arg-type]


def find_setting(key: str | tuple[str, ...]) -> Setting:
    """The setting under a dotted key or an exact path; raises ConfigError with the nearest known key."""
    return _found(Settings, (), key.split(".") if isinstance(key, str) else list(key), is_dotted=isinstance(key, str))


def _found(section: Any, path: tuple[str, ...], parts: list[str], *, is_dotted: bool) -> Setting:
    known = {known_field.name: known_field for known_field in file_fields(section)}
    name, rest = parts[0], parts[1:]
    if name not in known:
        raise ConfigError(unknown_key((*path, name), known))
    path = (*path, name)
    expected, limits = known[name].type, known[name].metadata
    if get_origin(expected) is dict and rest:
        return _found_item(get_args(expected)[1], path, rest, limits, is_dotted=is_dotted)
    return _found_inside(expected, path, rest, limits, is_dotted=is_dotted)


def _found_item(expected: Any, path: tuple[str, ...], rest: list[str], limits: Any, *, is_dotted: bool) -> Setting:
    """A name that the user chose may hold dots, and a key inside may follow: the longest one counts."""
    if not is_dotted or not is_dataclass(expected):
        chosen = len(rest) if is_dotted else 1
        return _found_inside(expected, (*path, ".".join(rest[:chosen])), rest[chosen:], limits, is_dotted=is_dotted)
    problems: list[ConfigError] = []
    for chosen in range(1, max(2, len(rest))):
        item = (*path, ".".join(rest[:chosen]))
        try:
            return _found_inside(expected, item, rest[chosen:], limits, is_dotted=is_dotted)
        except ConfigError as error:
            problems.append(error)
    raise problems[0]


def _found_inside(expected: Any, path: tuple[str, ...], rest: list[str], limits: Any, *, is_dotted: bool) -> Setting:
    if not rest:
        return Setting(path, expected, limits)
    if not is_dataclass(expected):
        raise ConfigError(f"{'.'.join(path)!r} has no keys inside it; type `toolcrib config get {'.'.join(path)}`")
    return _found(expected, path, rest, is_dotted=is_dotted)


def unknown_key(path: KeyPath, known: Mapping[str, Any]) -> str:
    """What to tell about a key that does not exist: the nearest ones beside it, else anywhere, else all beside it."""
    name, parent = str(path[-1]), path[:-1]
    nearest = [dotted((*parent, found)) for found in nearest_names(name, known)]
    if not nearest:
        # The first key that ends so: what concerns all comes before what concerns one of many.
        by_last_word = {key.rpartition(".")[2]: key for key in reversed([*known_keys()])}
        nearest = [by_last_word[found] for found in nearest_names(name, by_last_word)]
    if nearest:
        meant = " or ".join(repr(found) for found in nearest)
        return f"unknown key {dotted(path)!r}; did you mean {meant}? Rename or remove it, {ADVICE}"
    place = f"in {dotted(parent)!r}" if parent else "at the top of the file"
    return f"unknown key {dotted(path)!r}; {place} there can be {', '.join(known)}. Rename or remove it, {ADVICE}"


def when_set(expected: Any) -> Any:
    """What a setting holds that may also be unset: `float` of `float | None`."""
    inner = [kind for kind in get_args(expected) if kind is not NoneType]
    return inner[0] if get_origin(expected) is UnionType and len(inner) == 1 else expected


def describe_type(expected: Any) -> str:
    """A type as people say it: what should stand in the file."""
    expected = when_set(expected)
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    origin = get_origin(expected)
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in get_args(expected))
    if origin is list:
        return "a list like [one, two]"
    if origin is dict or is_dataclass(expected):
        return "a mapping of keys to values"
    return names.get(expected, str(expected))


def describe_value(data: Any) -> str:
    """A value as people say it: what stands in the file."""
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
        return data if expected is bool else MISSING
    if expected is float and isinstance(data, int | float):
        return float(data) if abs(data) <= sys.float_info.max else MISSING
    return data if expected in (str, int) and isinstance(data, expected) else MISSING


def _choice(options: tuple[Any, ...], data: Any) -> Any:
    """One of the options; true and false mean on and off, and upper or lower case does not matter."""
    if isinstance(data, bool):
        data = "on" if data else "off"
    by_lowercase = {str(option).lower(): option for option in options}
    return by_lowercase.get(data.lower(), MISSING) if isinstance(data, str) else MISSING
