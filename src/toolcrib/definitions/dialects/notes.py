"""Constraints in words, for the description, where a provider does not take them as keywords."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from toolcrib.core.types import JsonObject

MAX_NOTE_CHARS = 160
MAX_LISTED_VALUES = 20


def short(value: Any) -> str:
    """A JSON value on one line, cut to a length that a description can bear."""
    return _cut(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def one_of(values: list[Any]) -> str:
    """The values as a list in words; of a long list, its beginning."""
    listed = ", ".join(short(value) for value in values[:MAX_LISTED_VALUES])
    hidden = len(values) - MAX_LISTED_VALUES
    return f"one of {listed}" + (f" and {hidden} more" if hidden > 0 else "")


def note(keyword: str, value: Any) -> str:
    """What the keyword demands, in a few words; empty when a model gains nothing from it."""
    phrase = _PHRASES.get(keyword)
    return phrase(value) if phrase else ""


def with_notes(description: str, notes: Iterable[str]) -> str:
    """The description followed by each note in parentheses; a note that it already carries is not repeated."""
    text = description.rstrip()
    for remark in notes:
        if remark and f"({remark})" not in text:
            text = f"{text} ({remark})".lstrip()
    return text


def add_notes(node: JsonObject, notes: Iterable[str]) -> None:
    """Append the notes to the description of a schema node."""
    if text := with_notes(node.get("description", ""), notes):
        node["description"] = text


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 1] + "…"


def _needs(value: dict[str, list[str]]) -> str:
    return _cut("; ".join(f"{key} needs {', '.join(names)}" for key, names in value.items() if names))


_PHRASES: dict[str, Callable[[Any], str]] = {
    "pattern": lambda value: f"pattern: {_cut(value)}",
    "format": lambda value: f"format: {_cut(value)}",
    "contentEncoding": lambda value: f"encoding: {_cut(value)}",
    "contentMediaType": lambda value: f"media type: {_cut(value)}",
    "enum": one_of,
    "const": lambda value: f"must be {short(value)}",
    "default": lambda value: f"default: {short(value)}",
    "examples": lambda value: f"for example: {short(value[0])}",
    "minLength": lambda value: f"at least {value} characters" if value else "",
    "maxLength": lambda value: f"at most {value} characters",
    "minItems": lambda value: f"at least {value} items" if value else "",
    "maxItems": lambda value: f"at most {value} items",
    "minProperties": lambda value: f"at least {value} keys" if value else "",
    "maxProperties": lambda value: f"at most {value} keys",
    "minimum": lambda value: f"at least {value}",
    "maximum": lambda value: f"at most {value}",
    "exclusiveMinimum": lambda value: f"greater than {value}",
    "exclusiveMaximum": lambda value: f"less than {value}",
    "multipleOf": lambda value: f"a multiple of {value}",
    "uniqueItems": lambda value: "no duplicates" if value else "",
    "dependentRequired": _needs,
    "prefixItems": lambda value: f"in this order: {short(value)}",
    "patternProperties": lambda value: f"keys by pattern: {short(value)}",
    "propertyNames": lambda value: f"each key: {short(value)}" if value else "",
    "additionalProperties": lambda value: f"each value: {short(value)}" if value and value is not True else "",
    "anyOf": lambda value: f"must match one of: {short(value)}",
    "contains": lambda value: f"must contain: {short(value)}",
    "not": lambda value: f"must not match: {short(value)}",
    "if": lambda value: f"conditional: {short(value)}",
    "dependentSchemas": lambda value: f"conditional: {short(value)}",
}
