"""Reads malformed JSON Schema keywords whose meaning is clear, the same way for models and for validation."""

from __future__ import annotations

import math
import re
from typing import Any

from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.spelling import is_misspelling
from toolcrib.core.types import JsonObject

TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# Spellings that authors use although they are not JSON Schema, and whose meaning is clear.
TYPE_SPELLINGS = {
    "str": "string",
    "text": "string",
    "char": "string",
    "date": "string",
    "datetime": "string",
    "date-time": "string",
    "time": "string",
    "uri": "string",
    "url": "string",
    "email": "string",
    "uuid": "string",
    "path": "string",
    "password": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "numeric": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "sequence": "array",
    "dict": "object",
    "map": "object",
    "mapping": "object",
    "record": "object",
    "none": "null",
    "nonetype": "null",
}
COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
FLAGS = frozenset({"uniqueItems", "additionalProperties", "deprecated", "readOnly", "writeOnly"})
_PARAMETERS = lazy_pattern(r"\[.*\]|<.*>", re.DOTALL)
_ELEMENTS = lazy_pattern(r"(?:list|array|set|sequence)[\[<](.+)[\]>]|(.+)\[\]", re.IGNORECASE)
_FLAG_WORDS = {"true": True, "false": False}
_INCLUSIVE_LIMITS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def clean_types(value: Any) -> list[str]:
    """The type names in a `type` keyword, repaired; empty when it says nothing usable."""
    given = value if isinstance(value, (list, tuple)) else [value]
    # `string | null` is how many languages write a union.
    names = [part.strip() for name in given if isinstance(name, str) for part in _without_parameters(name).split("|")]
    repaired = [_type_name(name.lower()) for name in names]
    if any(name not in TYPES for name in repaired) or not all(isinstance(name, str) for name in given):
        # An unknown name may mean anything, so the keyword as a whole excludes nothing.
        return []
    return list(dict.fromkeys(repaired))


def _without_parameters(name: str) -> str:
    """`list[str]` and `array<string>` as `list` and `array`, `string[]` as `array`, `Optional[int]` as `int | null`."""
    if name.lower().startswith("optional[") and name.endswith("]"):
        return f"{_without_parameters(name[9:-1])} | null"
    if name.endswith("[]"):
        return "array"
    return _PARAMETERS.sub("", name)


def element_schema(schema: JsonObject) -> Any:
    """The schema of the items that a type such as `list[str]` or `string[]` names; None if it names none."""
    name = schema.get("type")
    found = _ELEMENTS.fullmatch(name.strip()) if isinstance(name, str) else None
    return read_schema(found[1] or found[2]) if found else None


def _type_name(name: str) -> str:
    if name in TYPES or name in TYPE_SPELLINGS:
        return TYPE_SPELLINGS.get(name, name)
    return next((one for one in TYPES if is_misspelling(name, one)), name)


def read_schema(value: Any) -> Any:
    """A subschema; a type name in its place means `{"type": name}`. None if it is not one."""
    if isinstance(value, (dict, bool)):
        return value
    if isinstance(value, str) and value.lower() in _FLAG_WORDS:
        return _FLAG_WORDS[value.lower()]
    types = clean_types(value) if isinstance(value, str) else []
    return {"type": types[0] if len(types) == 1 else types} if types else None


def read_required(schema: JsonObject) -> list[str]:
    """The names that an object requires, also where single properties say `"required": true`."""
    given, properties = schema.get("required"), schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    if isinstance(given, str):
        # One name instead of a list of names.
        names = [given] if given in properties or not properties else []
    elif isinstance(given, dict):
        names = [name for name, is_needed in given.items() if is_needed is True]
    else:
        names = [name for name in given if isinstance(name, str)] if isinstance(given, (list, tuple)) else []
    marked = [name for name, one in properties.items() if isinstance(one, dict) and one.get("required") is True]
    return list(dict.fromkeys(name for name in (*names, *marked) if isinstance(name, str)))


def read_number(keyword: str, value: Any, schema: JsonObject) -> Any:
    """The value of a numeric keyword; None if it has none. `exclusiveMinimum: true` takes its number from `minimum`."""
    if value is True and keyword in _INCLUSIVE_LIMITS:
        value = schema.get(_INCLUSIVE_LIMITS[keyword])
    if isinstance(value, str):
        try:
            value = int(value) if value.strip().lstrip("+-").isdecimal() else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    if keyword in COUNTS:
        return int(value) if value >= 0 and value == int(value) else None
    return None if keyword == "multipleOf" and value <= 0 else value


def read_flag(value: Any) -> bool | None:
    """A boolean keyword, also written as text."""
    if isinstance(value, str):
        return _FLAG_WORDS.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def at_pointer(document: Any, pointer: str, default: Any = None) -> Any:
    """The value at a JSON pointer, or the default if there is none."""
    found = document
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return default
    return found
