"""Schemas that llama.cpp's grammar builder can turn into a grammar; one that it cannot fails the whole request."""

from __future__ import annotations

from typing import Any

from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects.keywords import ANY_TYPE, add_notes, note
from toolcrib.definitions.dialects.normalize import intersect

MAX_REPETITIONS = 1_000
"""The parser rejects grammars with longer counted repetitions."""
MAX_EXACT_INTEGER = 2**53
MAX_ENUM_VALUES = 500

_STRIPPED = frozenset(
    {"pattern", "format", "contentEncoding", "contentMediaType", "propertyNames", "patternProperties"}
    # A server built with llguidance rejects these two outright.
    | {"uniqueItems", "dependentRequired"}
)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# With one of these, the grammar builder would follow only `anyOf` and ignore the rest of the node.
_STRUCTURE = frozenset({"properties", "additionalProperties", "items", "prefixItems", "enum", "const"})


def loosen(node: JsonObject) -> JsonObject:
    """The normalised node in a form that the grammar builder supports; accepts everything that the node accepts."""
    if "anyOf" in node and _STRUCTURE.isdisjoint(node):
        return _alternatives(node)
    loose = {keyword: _inner(keyword, value) for keyword, value in node.items() if _is_kept(keyword, value)}
    add_notes(loose, (note(keyword, value) for keyword, value in node.items() if keyword not in loose))
    if "patternProperties" in node:
        loose["additionalProperties"] = True
    if loose.get("properties") == {} and loose.get("additionalProperties") is not False:
        # The grammar builder reads an object without properties and additional ones as one that must stay empty.
        del loose["properties"]
    if "type" not in loose and not any(loose.get(keyword) is not True for keyword in _STRUCTURE & loose.keys()):
        loose["type"] = list(ANY_TYPE)
    return loose


def _alternatives(node: JsonObject) -> JsonObject:
    """Each branch merged with its parent's keywords, because the grammar builder looks only at the branches."""
    shared = {key: value for key, value in node.items() if key not in ("anyOf", "description", "title", "default")}
    loose: JsonObject = {key: node[key] for key in ("description", "title", "default") if key in node}
    loose["anyOf"] = [loosen(intersect(branch, shared)) for branch in node["anyOf"]]
    return loose


def _is_kept(keyword: str, value: Any) -> bool:
    if keyword in _STRIPPED or keyword == "anyOf":
        return False
    if keyword in _COUNTS:
        return bool(0 < value <= MAX_REPETITIONS)
    if keyword in _BOUNDS:
        return bool(abs(value) <= MAX_EXACT_INTEGER)
    return keyword != "enum" or len(value) <= MAX_ENUM_VALUES


def _inner(keyword: str, value: Any) -> Any:
    if keyword == "properties":
        return {name: loosen(schema) for name, schema in value.items()}
    if keyword == "prefixItems":
        return [loosen(schema) for schema in value]
    if keyword == "additionalProperties" and value == {}:
        return True
    if keyword in ("items", "additionalProperties") and isinstance(value, dict):
        return loosen(value)
    return value
