"""Schemas for OpenAI's strict mode: closed objects in which every property is required, optional ones nullable."""

from __future__ import annotations

from typing import Any

from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects.keywords import UnrenderableTool, add_notes, infer_types, note, set_types, types_of
from toolcrib.definitions.dialects.normalize import intersect

_KEPT = frozenset(
    {"type", "description", "title", "enum", "const", "properties", "items", "minItems", "maxItems", "$defs"}
    | {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_UNNOTED = frozenset({"required", "additionalProperties"})
_SHARED_BY_BRANCHES = frozenset({"description", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"})


def strict_root(root: JsonObject) -> JsonObject:
    """The normalised root for `strict: true`; raises UnrenderableTool if strict mode cannot express it."""
    if not root["properties"] and "additionalProperties" not in root:
        # A tool without arguments, rather than one with arguments of any name.
        root = root | {"additionalProperties": False}
    return _node(root)


def _node(node: JsonObject) -> JsonObject:
    if "$ref" in node:
        if len(node) > 1:
            raise UnrenderableTool("a reference has sibling keywords")
        return dict(node)
    if "anyOf" in node:
        return _alternatives(node)
    types = infer_types(node)
    if not types:
        raise UnrenderableTool("a value of any type is allowed")
    strict: JsonObject = {}
    set_types(strict, types)
    strict |= {key: _inner(key, value) for key, value in node.items() if key in _KEPT and _is_supported(key, value)}
    if "object" in types:
        _close(strict, node)
    if "prefixItems" in node:
        raise UnrenderableTool("an array has its own schema for each position")
    if "array" in types and "items" not in strict:
        raise UnrenderableTool("an array does not say what it holds")
    left_out = (key for key in node if key not in strict and key not in _UNNOTED)
    add_notes(strict, (note(key, node[key]) for key in left_out if node[key] is not None))
    return strict


def _is_supported(keyword: str, value: Any) -> bool:
    if keyword == "format":
        return value in _FORMATS
    # Look-around and similar extensions make the whole request fail.
    return keyword != "pattern" or "(?" not in value


def _inner(keyword: str, value: Any) -> Any:
    if keyword in ("properties", "$defs"):
        return {name: _node(schema) for name, schema in value.items()}
    return _node(value) if keyword == "items" else value


def _close(strict: JsonObject, node: JsonObject) -> None:
    properties = strict.setdefault("properties", {})
    required = node.get("required", [])
    others = node.get("additionalProperties", bool(not properties))
    if others is not False or "patternProperties" in node:
        raise UnrenderableTool("an object accepts keys that its schema does not name")
    if any(name not in properties for name in required):
        raise UnrenderableTool("a required property has no schema")
    strict["properties"] = {
        name: schema if name in required else _nullable(schema) for name, schema in properties.items()
    }
    strict["required"] = list(properties)
    strict["additionalProperties"] = False


def _alternatives(node: JsonObject) -> JsonObject:
    shared = {key: value for key, value in node.items() if key not in _SHARED_BY_BRANCHES and key != "anyOf"}
    if "properties" in shared or "items" in shared:
        raise UnrenderableTool("alternatives are combined with properties or items")
    # Normalising writes "or unspecified" as a branch that accepts anything; strict mode has no equivalent.
    branches = [branch for branch in node["anyOf"] if branch]
    if not branches:
        raise UnrenderableTool("a value of any type is allowed")
    strict: JsonObject = {key: node[key] for key in ("description", "title") if key in node}
    strict["anyOf"] = [_node(intersect(branch, shared) if shared else branch) for branch in branches]
    add_notes(strict, (note(key, node[key]) for key in ("default", "examples") if node.get(key) is not None))
    return strict


def _nullable(node: JsonObject) -> JsonObject:
    """The node, or null, which means that an optional property is omitted."""
    if "$ref" in node:
        return {"anyOf": [node, {"type": "null"}]}
    if "anyOf" in node:
        has_null = any("null" in types_of(branch) for branch in node["anyOf"])
        return node if has_null else node | {"anyOf": [*node["anyOf"], {"type": "null"}]}
    nullable = dict(node)
    if "null" not in types_of(node):
        set_types(nullable, [*types_of(node), "null"])
    if "const" in node and node["const"] is not None:
        nullable["enum"] = [nullable.pop("const")]
    if "enum" in nullable and None not in nullable["enum"]:
        nullable["enum"] = [*nullable["enum"], None]
    return nullable
