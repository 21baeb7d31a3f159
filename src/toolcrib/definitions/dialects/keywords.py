"""The valid values of each JSON Schema keyword: copies well-formed values and omits malformed ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject

MAX_DATA_DEPTH = 60

ANY_TYPE = ("string", "number", "boolean", "array", "object", "null")
ANNOTATIONS = frozenset({"description", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"})
MALFORMED: Any = object()


class UnrenderableTool(ToolcribError):
    """A tool that no request can carry; the message says why."""


def copy_json(value: Any, depth: int = 0) -> Any:
    """A copy of a JSON value that shares nothing with it; raises UnrenderableTool for what JSON cannot hold."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if depth > MAX_DATA_DEPTH:
        raise UnrenderableTool(f"a value in its schema is nested more than {MAX_DATA_DEPTH} levels deep")
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return [copy_json(item, depth + 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: copy_json(item, depth + 1) for key, item in value.items()}
    raise UnrenderableTool(f"its schema holds {value!r:.80}, which is not JSON")


def types_of(node: JsonObject) -> list[str]:
    """The types that a cleaned node allows; empty if unspecified."""
    declared = node.get("type", [])
    return [declared] if isinstance(declared, str) else declared


def set_types(node: JsonObject, types: list[str]) -> None:
    node["type"] = types[0] if len(types) == 1 else types


def infer_types(node: JsonObject) -> list[str]:
    """The types that a node means: declared, or inferred from its other keywords."""
    if declared := types_of(node):
        return declared
    if "enum" in node or "const" in node:
        values = node["enum"] if "enum" in node else [node["const"]]
        return list(dict.fromkeys(type_of_value(value) for value in values))
    for type_name, keywords in _KEYWORDS_OF_TYPE.items():
        if not keywords.isdisjoint(node):
            return [type_name]
    return []


def type_of_value(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in _PYTHON_TYPES:
        if isinstance(value, kind):
            return name
    return "object"


_PYTHON_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (list, "array"),
)
_KEYWORDS_OF_TYPE = {
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
        | {"minProperties", "maxProperties", "dependentRequired"}
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
OBJECT_KEYWORDS = _KEYWORDS_OF_TYPE["object"]


def keywords_for(types: list[str]) -> frozenset[str]:
    """The keywords that say something about a value of one of `types`."""
    names = ("number" if name == "integer" else name for name in types)
    return frozenset().union(*(_KEYWORDS_OF_TYPE.get(name, frozenset()) for name in names))


def _data(value: Any) -> Any:
    try:
        return copy_json(value)
    except UnrenderableTool:
        return MALFORMED


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else MALFORMED


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else MALFORMED


def _number(value: Any) -> Any:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if usable else MALFORMED


def _positive(value: Any) -> Any:
    return value if _number(value) is not MALFORMED and value > 0 else MALFORMED


def _count(value: Any) -> Any:
    usable = _number(value) is not MALFORMED and value >= 0 and value == int(value)
    return int(value) if usable else MALFORMED


def _values(value: Any) -> Any:
    return _data(value) if isinstance(value, (list, tuple)) and value else MALFORMED


def _names(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return MALFORMED
    return list(dict.fromkeys(name for name in value if isinstance(name, str)))


def _name_lists(value: Any) -> Any:
    if not isinstance(value, dict) or not all(isinstance(names, (list, tuple)) for names in value.values()):
        return MALFORMED
    return {key: _names(names) for key, names in value.items() if isinstance(key, str)}


PLAIN_KEYWORDS: dict[str, Callable[[Any], Any]] = {
    "description": _text,
    "title": _text,
    "default": _data,
    "examples": _values,
    "deprecated": _flag,
    "readOnly": _flag,
    "writeOnly": _flag,
    "enum": _values,
    "const": _data,
    "pattern": _text,
    "format": _text,
    "contentEncoding": _text,
    "contentMediaType": _text,
    "minLength": _count,
    "maxLength": _count,
    "minItems": _count,
    "maxItems": _count,
    "minProperties": _count,
    "maxProperties": _count,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _positive,
    "uniqueItems": _flag,
    "required": _names,
    "dependentRequired": _name_lists,
}
"""The keywords whose values contain no schema, each with a function that copies or rejects the value."""


MAX_NOTE_CHARS = 160
MAX_LISTED_VALUES = 20


def short(value: Any) -> str:
    """A JSON value on one line, shortened to fit in a description."""
    return _cut(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def one_of(values: list[Any]) -> str:
    """The values as a readable list; for a long list, its beginning."""
    listed = ", ".join(short(value) for value in values[:MAX_LISTED_VALUES])
    hidden = len(values) - MAX_LISTED_VALUES
    return f"one of {listed}" + (f" and {hidden} more" if hidden > 0 else "")


def note(keyword: str, value: Any) -> str:
    """A short description of what the keyword requires; empty if it does not help a model."""
    phrase = _PHRASES.get(keyword)
    return phrase(value) if phrase else ""


def with_notes(description: str, notes: Iterable[str]) -> str:
    """The description followed by each note in parentheses, without repeating notes that it already contains."""
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
