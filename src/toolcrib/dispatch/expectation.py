"""What a schema asks for, in words and by example; for messages to a model."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

from toolcrib.core.types import JsonObject
from toolcrib.dispatch.schema_document import SchemaDocument, allowed_types

_MAX_TEXT_CHARS = 60
_MAX_OPTIONS = 12
# With every level a union of many, the work grows as their product; deeper words would not be read anyway.
_MAX_DEPTH = 4
_MAX_EXAMPLE_LENGTH = 40

_TYPE_PHRASES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
}
_FORMAT_EXAMPLES = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com",
    "url": "https://example.com",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}


def shorten(value: Any) -> str:
    """A value as a message shows it: short scalars in full, containers by their size."""
    if isinstance(value, str):
        cut = value if len(value) <= _MAX_TEXT_CHARS else value[:_MAX_TEXT_CHARS] + "…"
        return json.dumps(cut, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in cut))
    if isinstance(value, (bool, int, float)) or value is None:
        try:
            text = json.dumps(value)
        except ValueError:
            return "a huge number"
        return text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "…"
    if isinstance(value, (list, tuple)):
        return f"an array of {len(value)} item{'s'[: len(value) != 1]}" if value else "an empty array"
    if isinstance(value, dict):
        names = ", ".join(str(name)[:_MAX_TEXT_CHARS] for name in list(value)[:5])
        return f"an object with {names}{', …' if len(value) > 5 else ''}" if value else "an empty object"
    return f"a Python {type(value).__name__}"


class Expectation:
    """Words and examples for the subschemas of one document."""

    __slots__ = ("_document",)

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document

    def describe(self, schema: Any, depth: int = 0) -> str:
        """A phrase that fits after "must be"; empty where the schema does not say."""
        schema = self._document.resolved(schema)
        if "const" in schema:
            return shorten(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return _one_of(schema["enum"])
        types = allowed_types(schema)
        if types is not None:
            return " or ".join(self._describe_type(name, schema, depth) for name in types)
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list) and depth < _MAX_DEPTH:
                phrases = [self.describe(branch, depth + 1) for branch in branches[:_MAX_OPTIONS]]
                return " or ".join(dict.fromkeys(phrase for phrase in phrases if phrase))
        for part in schema["allOf"] if isinstance(schema.get("allOf"), list) and depth < _MAX_DEPTH else ():
            if phrase := self.describe(part, depth + 1):
                return phrase
        return " or ".join(_limits(kind, schema).strip() for kind in ("number", "string") if _limits(kind, schema))

    def _describe_type(self, name: str, schema: JsonObject, depth: int) -> str:
        phrase = _TYPE_PHRASES.get(name, name) + _limits(name, schema)
        if name == "array" and depth < _MAX_DEPTH and (item := self.describe(schema.get("items"), depth + 1)):
            return f"{phrase} (each item {item})"
        if name == "object" and isinstance(schema.get("required"), list) and schema["required"]:
            return f"{phrase} with {', '.join(repr(key) for key in schema['required'][:_MAX_OPTIONS])}"
        return phrase

    def example(self, schema: Any, depth: int = 0) -> Any:
        """A value that the schema most likely accepts; the caller checks it."""
        schema = self._document.resolved(schema)
        for given in (schema.get("examples"), schema.get("enum")):
            if isinstance(given, list) and given:
                return given[0]
        for keyword in ("const", "example", "default"):
            if schema.get(keyword) is not None:
                return schema[keyword]
        types = [name for name in allowed_types(schema) or () if name != "null"]
        if types:
            return self._example_of_type(types[0], schema, depth)
        for keyword in ("anyOf", "oneOf", "allOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list) and depth < _MAX_DEPTH:
                found = (self.example(branch, depth + 1) for branch in branches[:_MAX_OPTIONS])
                return next((value for value in found if value is not None), None)
        return None

    def _example_of_type(self, name: str, schema: JsonObject, depth: int) -> Any:
        if name == "string":
            return _example_string(schema)
        if name in ("integer", "number"):
            return _example_number(schema)
        if name == "boolean":
            return True
        if name == "array":
            least = schema.get("minItems")
            count = least if isinstance(least, int) and least > 0 else 1
            item = self.example(schema.get("items"), depth + 1) if depth < _MAX_DEPTH else None
            return [] if item is None else [item] * min(count, _MAX_EXAMPLE_LENGTH)
        if name == "object":
            return self.example_object(schema, depth)
        return None

    def example_object(self, schema: JsonObject, depth: int = 0, extra_names: tuple[str, ...] = ()) -> JsonObject:
        """An object with the required properties, and those named besides."""
        properties = schema.get("properties")
        required = schema.get("required")
        names = [*(required if isinstance(required, list) else ()), *extra_names]
        if not isinstance(properties, dict) or depth >= _MAX_DEPTH:
            return {}
        found = {name: self.example(properties.get(name), depth + 1) for name in names if isinstance(name, str)}
        return {name: value for name, value in found.items() if value is not None}


def _one_of(options: list[Any]) -> str:
    shown = ", ".join(shorten(option) for option in options[:_MAX_OPTIONS])
    if len(options) == 1:
        return shown
    return f"one of {shown}" + (f" … ({len(options)} in all)" if len(options) > _MAX_OPTIONS else "")


def _limits(name: str, schema: JsonObject) -> str:
    if name == "string":
        text = _range(schema.get("minLength"), schema.get("maxLength"), " characters")
        pattern, form = schema.get("pattern"), schema.get("format")
        text += f" matching {pattern[:_MAX_TEXT_CHARS]!r}" if isinstance(pattern, str) else ""
        return text + (f" in the format {form!r}" if isinstance(form, str) else "")
    if name == "array":
        return _range(schema.get("minItems"), schema.get("maxItems"), " items")
    if name in ("integer", "number"):
        text = _range(schema.get("minimum"), schema.get("maximum"), "")
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        text += f" above {above}" if _is_number(above) else ""
        text += f" below {below}" if _is_number(below) else ""
        step = schema.get("multipleOf")
        return text + (f" that is a multiple of {step}" if _is_number(step) else "")
    return ""


def _range(least: Any, most: Any, unit: str) -> str:
    if _is_number(least) and _is_number(most):
        return f" of {least}{unit}" if least == most else f" from {least} to {most}{unit}"
    if _is_number(least):
        return f" of at least {least}{unit}"
    return f" of at most {most}{unit}" if _is_number(most) else ""


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _example_string(schema: JsonObject) -> str:
    form = schema.get("format")
    text = _FORMAT_EXAMPLES.get(form, "text") if isinstance(form, str) else "text"
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) and len(text) < least <= _MAX_EXAMPLE_LENGTH:
        text = text.ljust(least, "x")
    return text[:most] if isinstance(most, int) and most >= 0 else text


def _example_number(schema: JsonObject) -> Any:
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf")
    if _is_number(least):
        return least
    if _is_number(above):
        return above + 1
    if _is_number(step):
        return step
    if _is_number(most):
        return min(1, most)
    return min(1, below - 1) if _is_number(below) else 1
