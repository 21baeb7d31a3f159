"""Two schemas into one that accepts at least what both (or either) accepted: never less."""

from __future__ import annotations

import json
from typing import Any

from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects.keywords import ANNOTATIONS, OBJECT_KEYWORDS, set_types, types_of

_LARGER_WINS = frozenset({"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"})
_SMALLER_WINS = frozenset({"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"})
_DISCRIMINATOR_KEYWORDS = frozenset({"const", "enum", "type", "title", "description", "default"})


def intersect(first: JsonObject, second: JsonObject) -> JsonObject:
    """A schema that everything valid under both is valid under; where they disagree, `first` speaks."""
    merged = dict(first)
    for keyword, value in second.items():
        if keyword in ("items", "prefixItems"):
            continue
        if keyword == "anyOf" and {} in value and first:
            continue
        merged[keyword] = _both(keyword, first[keyword], value) if keyword in first else value
    if types_of(first) and types_of(second):
        set_types(merged, _shared_types(types_of(first), types_of(second)))
    _intersect_items(merged, second)
    return merged


def _both(keyword: str, first: Any, second: Any) -> Any:
    if keyword in ("properties", "patternProperties"):
        return _intersect_maps(first, second)
    if keyword == "required":
        return list(dict.fromkeys([*first, *second]))
    if keyword == "additionalProperties" and second is False:
        return False
    if keyword == "additionalProperties" and first is True:
        return second
    if keyword == "enum":
        return [value for value in first if value in second] or first
    if keyword in _LARGER_WINS:
        return max(first, second)
    if keyword in _SMALLER_WINS:
        return min(first, second)
    return first


def _intersect_maps(first: JsonObject, second: JsonObject) -> JsonObject:
    merged = dict(first)
    for name, schema in second.items():
        merged[name] = intersect(first[name], schema) if name in first else schema
    return merged


def _shared_types(first: list[str], second: list[str]) -> list[str]:
    shared = [name for name in first if name in second or (name == "integer" and "number" in second)]
    if "integer" in second and "number" in first and "integer" not in shared:
        shared.append("integer")
    return shared or first


def _intersect_items(merged: JsonObject, second: JsonObject) -> None:
    """`items` means what `prefixItems` leaves over, so the two travel together, from one side only."""
    if "prefixItems" not in merged and not merged.get("items"):
        for keyword in ("prefixItems", "items"):
            if keyword in second:
                merged[keyword] = second[keyword]
    elif "prefixItems" not in merged and "prefixItems" not in second and "items" in second:
        merged["items"] = intersect(merged["items"], second["items"])


def unite(alternatives: list[JsonObject]) -> JsonObject:
    """One object schema, without `anyOf`, that every object valid under one of the alternatives is valid under."""
    shapes = [flatten(shape) for shape in alternatives if not types_of(shape) or "object" in types_of(shape)]
    if not shapes:
        return {}
    names = dict.fromkeys(name for shape in shapes for name in shape.get("properties", {}))
    united: JsonObject = {"properties": {name: _unite_property(name, shapes) for name in names}}
    first, *others = [shape.get("required", []) for shape in shapes]
    united["required"] = [name for name in first if all(name in required for required in others)]
    if all(_is_closed(shape) for shape in shapes):
        united["additionalProperties"] = False
    return united


def flatten(node: JsonObject) -> JsonObject:
    """The object part of a node, its alternatives folded in."""
    own = {keyword: value for keyword, value in node.items() if keyword in OBJECT_KEYWORDS or keyword in ANNOTATIONS}
    return intersect(own, unite(node["anyOf"])) if node.get("anyOf") else own


def _is_closed(shape: JsonObject) -> bool:
    return shape.get("additionalProperties") is False and "patternProperties" not in shape


def _unite_property(name: str, shapes: list[JsonObject]) -> JsonObject:
    variants: dict[str, JsonObject] = {}
    for shape in shapes:
        if name in shape.get("properties", {}):
            variant = shape["properties"][name]
        elif _is_closed(shape):
            continue
        else:
            # An open alternative that does not mention the property takes anything there.
            variant = {}
        variants.setdefault(json.dumps(variant, sort_keys=True), variant)
    options = sorted(variants.values(), key=lambda option: option == {})
    if len(options) == 1:
        return options[0]
    return _discriminator(options) or {"anyOf": options}


def _discriminator(options: list[JsonObject]) -> JsonObject | None:
    """Alternatives that each fix the same property to a constant make one enum."""
    if not all(
        ("const" in option or "enum" in option) and option.keys() <= _DISCRIMINATOR_KEYWORDS for option in options
    ):
        return None
    values = [value for option in options for value in option.get("enum", [option.get("const")])]
    merged: JsonObject = {"enum": list({json.dumps(value, sort_keys=True): value for value in values}.values())}
    declared = [types_of(option) for option in options]
    if all(declared):
        set_types(merged, list(dict.fromkeys(name for types in declared for name in types)))
    described = [option["description"] for option in options if option.get("description")]
    if described:
        merged["description"] = " / ".join(dict.fromkeys(described))
    return merged
