"""Wild JSON Schemas, and objects to try on them, for property tests."""

from typing import Any

from hypothesis import strategies as st

KEYS = ["a", "b", "type", "$ref", "filter[id]"]
SCALARS: list[Any] = [None, True, 0, 1, 2.5, "", "a", "abc"]
TYPE_NAMES = ["string", "number", "integer", "boolean", "array", "object", "null"]

keys = st.sampled_from(KEYS)
scalars = st.sampled_from(SCALARS)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
objects = st.dictionaries(keys, scalars | values, max_size=3)

_patterns = st.sampled_from(["^a", "b$", "^[a-z]+$", r"^\d+$", "."])
_counts = st.integers(0, 3) | st.sampled_from([2000, 1_000_000])


def _keywords(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "type": st.sampled_from(TYPE_NAMES)
        | st.lists(st.sampled_from(TYPE_NAMES), min_size=1, max_size=3, unique=True),
        "description": st.sampled_from(["What it is.", "Ünïcode"]),
        "title": st.just("Title"),
        "default": scalars,
        "examples": st.lists(scalars, max_size=2),
        "enum": st.lists(values, min_size=1, max_size=4),
        "const": values,
        "nullable": st.booleans(),
        "format": st.sampled_from(["date", "email", "uri", "made-up"]),
        "pattern": _patterns,
        "minLength": _counts,
        "maxLength": _counts,
        "minimum": st.integers(-2, 3),
        "exclusiveMaximum": st.integers(-2, 3),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minItems": st.integers(0, 2),
        "maxItems": _counts,
        "uniqueItems": st.booleans(),
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "contains": inner,
        "minContains": st.integers(0, 2),
        "properties": st.dictionaries(keys, inner, max_size=3),
        "required": st.lists(keys, max_size=2, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(_patterns, inner, max_size=2),
        "propertyNames": st.fixed_dictionaries({"pattern": _patterns}) | st.booleans(),
        "minProperties": st.integers(0, 2),
        "maxProperties": st.integers(0, 3),
        "dependentRequired": st.dictionaries(keys, st.lists(keys, max_size=1), max_size=1),
        "dependentSchemas": st.dictionaries(keys, inner, max_size=1),
        "unevaluatedProperties": inner,
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
        "allOf": st.lists(inner, min_size=1, max_size=3),
        "not": inner,
        "if": inner,
        "then": inner,
        "$ref": st.sampled_from(["#", "#/$defs/A", "#/$defs/B", "#/$defs/with~1slash"]),
        "$comment": st.just("nothing"),
        "x-unknown": values,
    }


@st.composite
def _some_keywords(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    table = _keywords(inner)
    chosen = draw(st.lists(st.sampled_from(sorted(table)), max_size=4, unique=True))
    return {keyword: draw(table[keyword]) for keyword in chosen}


_leaves = st.sampled_from(
    [
        *({"type": name} for name in TYPE_NAMES),
        *({"$ref": f"#/$defs/{name}"} for name in ("A", "B", "with~1slash")),
        {"const": "a"},
        {"const": 1},
        {"enum": ["a", "abc", 1]},
        {"minLength": 2},
        {"type": "string", "nullable": True},
        {},
        True,
        False,
    ]
)


@st.composite
def _object_shapes(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Objects whose parts depend on each other: what is named, matched by pattern, or left over."""
    shape: dict[str, Any] = {"properties": draw(st.dictionaries(keys, inner, max_size=2))}
    if draw(st.booleans()):
        shape["type"] = "object"
    if draw(st.booleans()):
        shape["additionalProperties"] = draw(st.just(False) | inner)
    if draw(st.booleans()):
        shape["required"] = draw(st.lists(keys, max_size=1))
    if draw(st.integers(0, 3)) == 0:
        shape["patternProperties"] = draw(st.dictionaries(_patterns, inner, min_size=1, max_size=1))
    return shape


@st.composite
def _choices(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Alternatives and sums of shapes, alone or beside a shape."""
    node = draw(_object_shapes(inner)) if draw(st.booleans()) else {}
    branches = st.lists(_object_shapes(inner) | inner, min_size=1, max_size=2)
    return node | {draw(st.sampled_from(["anyOf", "oneOf", "allOf"])): draw(branches)}


def _grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _object_shapes(inner) | _choices(inner) | _some_keywords(inner)


nodes = st.recursive(_leaves, _grow, max_leaves=8)


@st.composite
def root_schemas(draw: st.DrawFn) -> dict[str, Any]:
    """A legal draft 2020-12 schema whose every reference resolves; its root is mostly an object."""
    root: dict[str, Any] = draw(_grow(nodes))
    if draw(st.booleans()):
        root["type"] = "object"
    return root | {"$defs": {"A": draw(nodes), "B": draw(nodes), "with/slash": draw(_leaves)}}


junk = st.recursive(
    scalars | st.sampled_from(["string", "any", "STRING", float("nan"), float("inf")]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(_keywords(st.none()))) | keys, inner, max_size=4)
    ),
    max_leaves=15,
)
"""Schemas that are not legal at all: right keywords, wrong values."""
