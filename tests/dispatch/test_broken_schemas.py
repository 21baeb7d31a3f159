"""Schemas with parts that do not compile: the rest is enforced, and what was repaired or dropped is said."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.dispatch.test_arguments import checker
from toolcrib.registry.lint import check_parameters

WHOLE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 20},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "mode": {"enum": ["fast", "slow"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "minItems": 1},
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
        "either": {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "boolean"}]},
        "tree": {"$ref": "#/$defs/tree"},
    },
    "required": ["name", "count", "mode", "tags", "place", "either", "tree"],
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"leaf": {"type": "boolean"}, "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["leaf"],
        }
    },
}
CALL: dict[str, Any] = {
    "name": "Ada", "count": 3, "mode": "fast", "tags": ["a"], "place": {"city": "Oslo", "zip": 1}, "either": 6,
    "tree": {"leaf": False, "below": [{"leaf": True}]},
}  # fmt: skip
# Where a part may be broken, and the arguments that violate everything but that part.
VIOLATIONS: dict[str, list[Any]] = {
    "name": ["x", "y" * 21, 5.5, ["Ada", "Eve"], {}],
    "count": [0, 10, 1.5, "many", [1, 2]],
    "mode": ["medium", 1],
    "tags": [[], ["A"], [3], [["a"]], "A", {"a": 1}],
    "place": [{"city": "Oslo"}, {"zip": 1}, {"city": "Oslo", "zip": "x"}, {"city": "Oslo", "zip": 1, "else": 1}, 7],
    "either": [4, "text", []],
    "tree": [{}, {"leaf": 5}, {"leaf": True, "below": [{}]}, {"leaf": True, "below": 3}, "tree"],
}
BROKEN_KEYWORDS: list[dict[str, Any]] = [
    {"type": "objekt-like"}, {"type": 5}, {"type": []}, {"type": ["string", "thing"]}, {"$ref": "#/$defs/nothing"},
    {"$ref": "https://example.com/schema.json"}, {"$ref": 7}, {"pattern": "("}, {"pattern": ["a"]}, {"required": 5},
    {"required": True}, {"enum": "a"}, {"enum": {"a": 1}}, {"items": 5}, {"items": "nothing"}, {"minimum": "low"},
    {"maxLength": -1}, {"minItems": 1.5}, {"multipleOf": 0}, {"properties": "none"}, {"properties": [1]},
    {"patternProperties": {"[": {}}}, {"allOf": []}, {"anyOf": "either"}, {"oneOf": [5, {"type": "thing"}]},
    {"not": {"type": "thing"}}, {"not": {"$ref": "#/nowhere"}}, {"if": 5, "then": False},
    {"if": {"pattern": "("}, "then": False}, {"description": None}, {"title": 5}, {"examples": "one"},
    {"uniqueItems": "yes"}, {"additionalProperties": "some"}, {"format": 5}, {"$id": "::"}, {"$anchor": "1 2"},
    {"default": {1, 2}}, {"dependentRequired": 5}, {"contains": [], "maxContains": 0}, {"exclusiveMinimum": True},
    {"additionalItems": {"oneOf": 5}, "title": 5}, {"items": [{"type": 5}], "additionalItems": {"oneOf": 5}},
    {"unevaluatedProperties": False, "allOf": [{"$ref": "#/nowhere"}]}, {"$dynamicRef": "#none"},
]  # fmt: skip


NESTING = ("properties", "items", "allOf", "anyOf", "oneOf", "not", "if", "$defs")


def broken_at(part: str, breakage: dict[str, Any]) -> dict[str, Any]:
    """The whole schema with one property replaced by a broken one."""
    schema = copy.deepcopy(WHOLE)
    schema["properties"][part] = breakage
    return schema


@pytest.mark.quick_rows(5)
@pytest.mark.parametrize("breakage", BROKEN_KEYWORDS, ids=str)
def test_one_broken_part_leaves_every_other_part_in_force(breakage: dict[str, Any]) -> None:
    """Whatever is wrong with one property, the others are validated, required names are required, and it is said."""
    for part in VIOLATIONS:
        broken = checker(broken_at(part, breakage), "mcp")

        assert broken.prepare(CALL) == (CALL, None), (part, broken.schema_problem)
        assert broken.prepare({})[1] is not None
        assert broken.prepare({key: value for key, value in CALL.items() if key != part})[1] is not None
        assert broken.schema_problem
        for other in VIOLATIONS.keys() - {part}:
            for value in VIOLATIONS[other]:
                assert broken.prepare({**CALL, other: value})[1] is not None, (part, other, value)


@given(
    part=st.sampled_from(sorted(VIOLATIONS)),
    breakage=st.sampled_from(BROKEN_KEYWORDS),
    nesting=st.lists(
        st.sampled_from(["properties", "items", "allOf", "anyOf", "oneOf", "not", "if", "$defs"]), max_size=3
    ),
    other=st.sampled_from(sorted(VIOLATIONS)),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_violations_of_intact_parts_are_refused_however_deep_the_broken_part_is(
    part: str, breakage: dict[str, Any], nesting: list[str], other: str, data: st.DataObject
) -> None:
    """A part that is dropped loosens only itself, also inside negations and unions."""
    # Draft 3 said so in the part itself: it is read as a part that the call must have.
    assume(nesting or breakage != {"required": True})
    node: Any = breakage
    for keyword in nesting:
        if keyword in ("properties", "$defs"):
            node = {keyword: {"inner": node}}
        else:
            node = {keyword: [node, {"type": "null"}] if keyword in ("anyOf", "oneOf", "allOf") else node}
    schema = copy.deepcopy(WHOLE)
    schema["properties"]["extra"] = node
    schema["properties"][part]["properties" if part in ("place", "tree") else "x-note"] = {
        **schema["properties"][part].get("properties", {}), "extra": node,
    }  # fmt: skip
    broken = checker(schema, "mcp")

    assert broken.prepare(CALL) == (CALL, None)
    assert broken.prepare({**CALL, other: data.draw(st.sampled_from(VIOLATIONS[other]))})[1] is not None
    missing = data.draw(st.sampled_from(sorted(CALL)))
    assert broken.prepare({key: value for key, value in CALL.items() if key != missing})[1] is not None


CLEAR = [
    pytest.param({"type": "dict"}, {}, "text", id="another name of a type"),
    pytest.param({"type": "str"}, "text", {}, id="a Python type"),
    pytest.param({"type": "Integer"}, 5, "x", id="a type in capitals"),
    pytest.param({"type": "sting"}, "x", {}, id="a misspelt type"),
    pytest.param({"type": "string | null"}, None, {}, id="a union with a bar"),
    pytest.param({"type": "list[str]"}, ["x"], [5], id="a Python generic"),
    pytest.param({"type": "Optional[int]"}, None, "x", id="a Python optional"),
    pytest.param({"type": "string[]"}, ["x"], {"a": 1}, id="an array of a type"),
    pytest.param({"type": "date"}, "2026-01-31", {}, id="a format as a type"),
    pytest.param("string", "x", {}, id="a type name instead of a schema"),
    pytest.param({"type": "integer", "minimum": "1"}, 1, 0, id="a number as text"),
    pytest.param({"type": "number", "minimum": 0, "exclusiveMinimum": True}, 1, 0, id="draft 4 limits"),
    pytest.param({"type": "array", "items": [{"type": "boolean"}]}, [True], ["x"], id="items as a list"),
    pytest.param({"type": "array", "items": "int"}, [1], ["x"], id="items as a type name"),
    pytest.param({"type": "array", "uniqueItems": "true"}, [1], [1, 1], id="a flag as text"),
    pytest.param({"anyOf": {"type": "string"}}, "x", {}, id="anyOf with one schema"),
    pytest.param({"type": "object", "required": "a"}, {"a": 1}, {}, id="required with one name"),
    pytest.param({"type": "object", "required": ["a", "a", 5]}, {"a": 1}, {}, id="required with odd names"),
    pytest.param({"properties": {"a": {"required": True}}}, {"a": 1}, {}, id="required in the property"),
    pytest.param({"$defs": {"N": {"type": "string"}}, "$ref": "#/$defs/N"}, "x", {}, id="an embedded document"),
    pytest.param({"$ref": "#/$defs/T"}, "x", {}, id="definitions under their old name"),
    pytest.param({"type": "string", "enum": ["a", "a"], "title": 5}, "a", "b", id="an enum beside a broken title"),
]


@pytest.mark.parametrize(("part", "valid", "invalid"), CLEAR)
def test_what_a_malformed_part_clearly_means_is_enforced(part: Any, valid: Any, invalid: Any) -> None:
    """A part is only dropped if nobody can say what it means."""
    # The broken title makes sure that the whole does not compile.
    parameters = {"title": 5, "properties": {"a": part}, "definitions": {"T": {"type": "string"}}}
    broken = checker(parameters, "mcp")

    assert broken.prepare({"a": valid}) == ({"a": valid}, None)
    assert broken.prepare({"a": invalid})[1] is not None


NEGATIONS: list[Any] = [
    {"not": {"type": "string", "pattern": "("}},
    {"not": {"$ref": "#/$defs/broken"}},
    {"not": {"not": {"not": {"pattern": "("}}}},
    {"oneOf": [{"pattern": "("}, {"type": "string"}]},
    {"if": {"pattern": "("}, "then": False},
    {"properties": {}, "patternProperties": {"[": {}}, "additionalProperties": False},
    {"contains": {"pattern": "("}, "maxContains": 0, "minContains": 0},
    {"prefixItems": 5, "items": False},
    {"allOf": [{"$ref": "#/nowhere"}], "unevaluatedProperties": False, "unevaluatedItems": False},
]


@pytest.mark.parametrize("part", NEGATIONS, ids=str)
def test_dropping_a_part_never_refuses_what_was_legal(part: Any) -> None:
    """Where less inside would mean more outside, the keyword around it is dropped, too."""
    broken = checker({"properties": {"a": part}, "required": ["a"], "$defs": {"broken": {"pattern": "("}}}, "mcp")

    for value in ("text", {"x1": 1}, [1, "b"]):
        assert broken.prepare({"a": value}) == ({"a": value}, None)
    assert broken.prepare({})[1] is not None


def test_two_intact_branches_of_one_of_still_exclude_each_other() -> None:
    """A broken third branch does not turn the others into alternatives."""
    branches = [{"pattern": "("}, {"type": "integer"}, {"type": "number", "minimum": 5}]
    broken = checker({"properties": {"a": {"oneOf": branches}}}, "mcp")

    assert broken.prepare({"a": 1})[1] is None
    assert broken.prepare({"a": 5.5})[1] is None
    assert broken.prepare({"a": 7})[1] is not None


def test_a_schema_that_is_too_deep_is_enforced_down_to_a_depth() -> None:
    """Depth switches nothing off above it."""
    node: Any = {"type": "string"}
    for _ in range(3_000):
        node = {"properties": {"a": node}}
    deep = checker({"properties": {"deep": node, "n": {"type": "integer"}}, "required": ["n"]}, "mcp")

    assert deep.prepare({"n": 1, "deep": {"a": {}}})[1] is None
    assert deep.prepare({})[1] is not None
    assert deep.prepare({"n": "x"})[1] is not None


def test_the_log_and_lint_name_every_repair(caplog: pytest.LogCaptureFixture) -> None:
    """An author sees what to correct, and an operator that it matters."""
    parameters = {"type": "object", "properties": {"a": {"type": "dict"}, "b": {"$ref": "#/none"}}, "required": ["a"]}
    with caplog.at_level(logging.WARNING):
        problem = checker(parameters, "mcp").schema_problem

    [finding] = [found for found in check_parameters("t", parameters, None) if found.severity == "error"]
    for text in (str(problem), caplog.text, finding.message):
        assert "properties/a/type: 'dict' is read as 'object'" in text
        assert "properties/b/$ref: dropped" in text
