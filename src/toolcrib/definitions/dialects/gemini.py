"""Schemas in the subset of OpenAPI that Gemini's `parameters` accepts."""

from __future__ import annotations

import json
from typing import Any

from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects.keywords import add_notes, infer_types, keywords_for, note
from toolcrib.definitions.dialects.normalize import intersect

MAX_ENUM_VALUES = 500
MAX_INT64 = 2**63 - 1

_FIELDS = frozenset(
    {"title", "description", "default", "enum", "format", "pattern", "properties", "required", "items"}
    | {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minimum", "maximum"}
)
_FORMATS = {
    "string": frozenset({"enum", "date-time"}),
    "number": frozenset({"float", "double"}),
    "integer": frozenset({"int32", "int64"}),
}
_UNTYPED_FIELDS = frozenset({"title", "description", "default", "enum"})
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_UNNOTED = frozenset({"required", "type", "const", "items"})


def openapi(node: JsonObject) -> JsonObject:
    """The normalised node in the fields that Gemini supports, with a type on every part."""
    if "anyOf" in node:
        return _alternatives(node)
    if "const" in node:
        node = node | {"enum": [node["const"]]}
    types = infer_types(node)
    plain = [name for name in types if name != "null"]
    if not plain:
        return _described(node, {"type": "null"} if types else _anything())
    if len(plain) > 1:
        shared = {key: value for key, value in node.items() if key != "type"}
        return _alternatives({"anyOf": [{"type": name, **_about(name, shared)} for name in types]} | _annotations(node))
    typed = _typed(plain[0], node)
    if "null" in types:
        typed["nullable"] = True
    return typed


def _typed(type_name: str, node: JsonObject) -> JsonObject:
    usable = _UNTYPED_FIELDS | keywords_for([type_name])
    found: JsonObject = {"type": type_name}
    for key, value in node.items():
        if key in _FIELDS and key in usable and _is_supported(type_name, key, value):
            found[key] = _inner(key, value)
    if type_name == "array":
        found["items"] = _items(node)
    if "enum" in found:
        found["enum"] = list(dict.fromkeys(value for value in found["enum"] if value is not None))
    if not found.get("properties", True):
        del found["properties"]
    required = [name for name in node.get("required", []) if name in found.get("properties", {})]
    found.pop("required", None)
    if required:
        found["required"] = required
    left_out = (key for key in node if key not in found and key not in _UNNOTED and key in usable | {"prefixItems"})
    add_notes(found, (note(key, node[key]) for key in left_out))
    return found


def _is_supported(type_name: str, keyword: str, value: Any) -> bool:
    if keyword == "enum":
        is_text = all(value is None or (isinstance(value, str) and value) for value in value)
        return type_name == "string" and is_text and len(value) <= MAX_ENUM_VALUES
    if keyword == "format":
        return value in _FORMATS.get(type_name, ())
    if keyword == "pattern":
        return "(?" not in value
    return bool(value <= MAX_INT64) if keyword in _COUNTS else True


def _inner(keyword: str, value: Any) -> Any:
    return {name: openapi(schema) for name, schema in value.items()} if keyword == "properties" else value


def _items(node: JsonObject) -> JsonObject:
    """One schema for all positions of an array: tuples become a choice between their members."""
    positions = node.get("prefixItems", [])
    if not positions:
        return openapi(node.get("items", {}))
    rest = node.get("items")
    members = [*positions, rest] if rest else positions
    distinct = {json.dumps(member, sort_keys=True): member for member in members}
    return openapi({"anyOf": list(distinct.values())})


def _alternatives(node: JsonObject) -> JsonObject:
    """Only the choice, or its one branch: no other field may accompany `anyOf`, not even a description."""
    shared = {key: value for key, value in node.items() if key != "anyOf" and key not in _annotations(node)}
    rendered = [openapi(intersect(branch, shared) if shared else branch) for branch in node["anyOf"] if branch]
    flat = [option for branch in rendered for option in branch.get("anyOf", [branch])]
    distinct = list({json.dumps(branch, sort_keys=True): branch for branch in flat}.values())
    options: list[JsonObject] = [option for option in distinct if option["type"] != "null"]
    if not options:
        return _described(node, {"type": "null"} if distinct else _anything())
    if len(options) < len(distinct):
        options = [option | {"nullable": True} for option in options]
    if len(options) == 1:
        return options[0] | _annotations(node)
    return _described(node, {"anyOf": options})


def _about(type_name: str, node: JsonObject) -> JsonObject:
    """What the node says about values of one type; for an enum, the values of that type."""
    about = {key: value for key, value in node.items() if key in keywords_for([type_name])}
    if "enum" in node:
        about["enum"] = [value for value in node["enum"] if infer_types({"const": value}) == [type_name]]
        if not about["enum"]:
            del about["enum"]
    return about


def _annotations(node: JsonObject) -> JsonObject:
    return {key: node[key] for key in ("description", "title", "default") if key in node}


def _described(node: JsonObject, found: JsonObject) -> JsonObject:
    """Put the node's description where Gemini reads it: in each branch of a choice."""
    description = node.get("description")
    if not description:
        return found
    if "anyOf" not in found:
        return found | {"description": description}
    return {"anyOf": [{"description": description} | option for option in found["anyOf"]]}


def _anything() -> JsonObject:
    """Offers every type, because Gemini has no untyped values."""
    plain: list[JsonObject] = [{"type": name} for name in ("string", "number", "boolean", "object")]
    return {"anyOf": [*plain, {"type": "array", "items": {"type": "string"}}]}
