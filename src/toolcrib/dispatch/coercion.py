"""Converts arguments to the types of their schema where nothing is lost, and reads JSON text strictly.

A value that its schema accepts never changes (except that a whole float becomes an int if the schema wants an
integer). A value that cannot be converted without loss stays unchanged, and validation then reports it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.types import JsonObject
from toolcrib.dispatch.schema import ROOT, CompiledSchema, allowed_types, child

# Limits for schemas that recurse or branch without end; a real call needs a few dozen steps.
_MAX_DEPTH = 64
_MAX_STEPS = 50_000
# What a double can hold; beyond it, "1e400" is more likely a mistake than a number.
_MAX_EXPONENT = 308
_JSON_NUMBER = lazy_pattern(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,4}))?")
_UNREAD: Any = object()


def coerce(schema: JsonObject, arguments: JsonObject) -> JsonObject:
    """A new dict with the arguments converted to the types of `schema`, without loss."""
    return coerce_with(CompiledSchema(schema), arguments)


def coerce_with(compiled: CompiledSchema, arguments: JsonObject) -> JsonObject:
    """Like `coerce`, for a schema that is compiled once and used often."""
    result = _Coercion(compiled).visit(compiled.document.root, ROOT, arguments, 0, settled=False)
    return dict(result) if isinstance(result, dict) else dict(arguments)


class _Coercion:
    """One walk over one call's arguments, guided by the schema."""

    __slots__ = ("_compiled", "_document", "_steps_left")

    def __init__(self, compiled: CompiledSchema) -> None:
        self._compiled = compiled
        self._document = compiled.document
        self._steps_left = _MAX_STEPS

    def visit(self, schema: Any, pointer: str, value: Any, depth: int, *, settled: bool) -> Any:
        """The value as this subschema wants it. `settled`: it is known to be valid, so convert only whole floats."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._steps_left <= 0:
            return value
        self._steps_left -= 1
        settled = settled or self._compiled.part_accepts(pointer, value) is True
        value = _converted(schema, value, settled=settled)
        if "$ref" in schema and (target := self._document.follow(schema["$ref"])) is not None:
            value = self.visit(*target, value, depth + 1, settled=settled)
        for index, part in enumerate(_list(schema, "allOf")):
            value = self.visit(part, child(pointer, "allOf", index), value, depth + 1, settled=settled)
        for keyword in ("anyOf", "oneOf"):
            if branches := _list(schema, keyword):
                value = self._visit_union(branches, child(pointer, keyword), value, depth, settled=settled)
        if isinstance(value, dict):
            value = self._visit_object(schema, pointer, value, depth, settled=settled)
        if isinstance(value, list):
            return self._visit_array(schema, pointer, value, depth, settled=settled)
        return value if settled else self._wrapped(schema, pointer, value, depth)

    def _wrapped(self, schema: JsonObject, pointer: str, value: Any, depth: int) -> Any:
        """A single value as an array of one, if the schema wants an array and such an array is valid."""
        types = allowed_types(schema)
        if types is None or "array" not in types or value is None or _is_of(value, types):
            return value
        wrapped = self._visit_array(schema, pointer, [value], depth, settled=False)
        return value if self._compiled.part_accepts(pointer, wrapped) is False else wrapped

    def _visit_union(self, branches: list[Any], pointer: str, value: Any, depth: int, *, settled: bool) -> Any:
        for index, branch in enumerate(branches):
            if self._accepts(branch, child(pointer, index), value):
                return self.visit(branch, child(pointer, index), value, depth + 1, settled=settled)
        if settled:
            return value
        if isinstance(value, str) and _read_null(value) is None and self._some_accept(branches, pointer, None):
            # Before an array branch can turn it into a list.
            return None
        for index, branch in enumerate(branches):
            candidate = self.visit(branch, child(pointer, index), value, depth + 1, settled=False)
            if candidate is not value and self._accepts(branch, child(pointer, index), candidate):
                return candidate
        return value

    def _some_accept(self, branches: list[Any], pointer: str, value: Any) -> bool:
        return any(self._accepts(branch, child(pointer, index), value) for index, branch in enumerate(branches))

    def _visit_object(self, schema: JsonObject, pointer: str, value: JsonObject, depth: int, *, settled: bool) -> Any:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        # Additional names can only be identified by matching the patterns, so leave them alone.
        additional = None if "patternProperties" in schema else schema.get("additionalProperties")
        required = _list(schema, "required")
        result = value
        for name, item in value.items():
            if name in properties:
                part, part_pointer = properties[name], child(pointer, "properties", name)
            elif isinstance(additional, dict):
                part, part_pointer = additional, child(pointer, "additionalProperties")
            else:
                continue
            if item is None and not settled and name in properties and name not in required:
                # Models write null for "not given".
                if not self._accepts(part, part_pointer, None):
                    result = dict(value) if result is value else result
                    del result[name]
                continue
            new = self.visit(part, part_pointer, item, depth + 1, settled=settled)
            if new is not item:
                result = dict(value) if result is value else result
                result[name] = new
        return result

    def _visit_array(self, schema: JsonObject, pointer: str, value: list[Any], depth: int, *, settled: bool) -> Any:
        prefix_keyword = "items" if isinstance(schema.get("items"), list) else "prefixItems"
        prefix = _list(schema, prefix_keyword)
        rest = schema.get("additionalItems" if prefix_keyword == "items" else "items")
        rest_pointer = child(pointer, "additionalItems" if prefix_keyword == "items" else "items")
        result = value
        for index, item in enumerate(value):
            if index < len(prefix):
                new = self.visit(prefix[index], child(pointer, prefix_keyword, index), item, depth + 1, settled=settled)
            elif isinstance(rest, dict):
                new = self.visit(rest, rest_pointer, item, depth + 1, settled=settled)
            else:
                break
            if new is not item:
                result = list(value) if result is value else result
                result[index] = new
        return result

    def _accepts(self, schema: Any, pointer: str, value: Any) -> bool:
        accepted = self._compiled.part_accepts(pointer, value)
        if accepted is not None:
            return accepted
        # The subschema cannot be compiled by itself, so only the types that it names can guide us.
        schema = self._document.resolved(schema)
        types = allowed_types(schema)
        return types is None or _is_of(value, types)


def _list(schema: JsonObject, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _converted(schema: JsonObject, value: Any, *, settled: bool) -> Any:
    types = allowed_types(schema)
    if types is not None:
        if type(value) is float and "integer" in types and "number" not in types and value.is_integer():
            return int(value)
        if not settled and not _is_of(value, types):
            value = _to_type(value, types)
    if not settled and isinstance(value, str):
        members = [schema["const"]] if "const" in schema else _list(schema, "enum")
        value = _to_member(value, members)
    return value


_TYPE_NAMES: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    type(None): ("null",),
    list: ("array",),
    tuple: ("array",),
    dict: ("object",),
}


def _is_of(value: Any, types: tuple[str, ...]) -> bool:
    names = _TYPE_NAMES.get(type(value))
    return names is None or any(name in types for name in names)


def _to_type(value: Any, types: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        for name in types:
            read = _READERS.get(name)
            found = _UNREAD if read is None else read(value)
            if found is not _UNREAD:
                return found
    return value


def _to_member(text: str, members: list[Any]) -> Any:
    """The enum member whose JSON form `text` is, unless the text itself is one."""
    if not members or text in members:
        return text
    try:
        value = read_json(text)
    except InvalidJson:
        return text
    same = (member for member in members if not isinstance(member, str) and _is_same_json(member, value))
    return next(same, text)


def _is_same_json(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_same_json, left, right))
    # Python calls True and 1 equal; JSON does not.
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _read_number(text: str) -> Any:
    whole = _read_integer(text)
    if whole is not _UNREAD:
        return whole
    parts = _decimal_parts(text.strip())
    if parts is None:
        return _UNREAD
    number = float(text)
    is_exact = math.isfinite(number) and _decimal_parts(repr(number)) == parts
    return number if is_exact else _UNREAD


def _read_integer(text: str) -> Any:
    parts = _decimal_parts(text.strip())
    if parts is None or parts[2] < 0:
        return _UNREAD
    sign, digits, exponent = parts
    try:
        return int(sign + digits + "0" * exponent)
    except ValueError:
        return _UNREAD  # more digits than Python converts


def _decimal_parts(text: str) -> tuple[str, str, int] | None:
    """The sign, significant digits and power of ten of a JSON number; equal numbers have equal parts."""
    match = _JSON_NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, power = match.groups()
    if power is not None and abs(int(power)) > _MAX_EXPONENT:
        return None
    digits = (whole + (fraction or "")).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return "", "0", 0
    return sign, significant, int(power or 0) - len(fraction or "") + len(digits) - len(significant)


def _read_boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text.strip().lower(), _UNREAD)


def _read_null(text: str) -> Any:
    return None if text.strip() == "null" else _UNREAD


def _read_array(text: str) -> Any:
    return _read_container(text, "[")


def _read_object(text: str) -> Any:
    return _read_container(text, "{")


def _read_container(text: str, opening: str) -> Any:
    if not text.lstrip().startswith(opening):
        return _UNREAD
    try:
        return read_json(text)
    except InvalidJson:
        return _UNREAD


_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "null": _read_null,
    "array": _read_array,
    "object": _read_object,
}


_NEARBY_CHARS = 20


class InvalidJson(ValueError):
    """The text is not acceptable JSON; the message says what is wrong and where."""


def read_json(text: str) -> Any:
    """The parsed value of `text`; raises only InvalidJson."""
    try:
        return _DECODER.decode(text)
    except InvalidJson:
        raise
    except json.JSONDecodeError as error:
        raise InvalidJson(_where(text, error)) from None
    except RecursionError:
        raise InvalidJson("the JSON is nested too deeply") from None
    except ValueError as error:
        # int() rejects numbers of more than 4,300 digits.
        raise InvalidJson(f"a number in the JSON cannot be read: {error}") from None


def _where(text: str, error: json.JSONDecodeError) -> str:
    place = f"line {error.lineno}, column {error.colno}"
    if not text[error.pos :].strip():
        return f"the text ends at {place} before the JSON is complete ({error.msg})"
    nearby = text[max(0, error.pos - _NEARBY_CHARS) : error.pos + _NEARBY_CHARS]
    return f"{error.msg} at {place}, near {nearby!r}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidJson(f"the key {repeated[:80]!r} is given more than once in one object")
    return result


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InvalidJson(f"the number {digits[:40]} is too large")
    return value


def _constant(name: str) -> float:
    raise InvalidJson(f"{name} is not a JSON value")


# Allow line breaks and tabs inside strings: models write them, and their meaning is clear.
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant, strict=False)
