"""Coercion: what a model meant, in the types that the schema asks for, and nothing lost on the way."""

from __future__ import annotations

import copy
import json
from decimal import Decimal
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.dispatch.coercion import coerce

INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
STRING = {"type": "string"}
ARRAY = {"type": "array"}
OBJECT = {"type": "object"}
NULL = {"type": "null"}
TREE = {
    "$ref": "#/$defs/tree",
}
DEFS = {
    "tree": {"type": "object", "properties": {"size": INTEGER, "parts": {"type": "array", "items": TREE}}},
    "id": INTEGER,
    "loop": {"$ref": "#/$defs/loop"},
    "a/b c": INTEGER,
}


def coerced(schema: Any, value: Any) -> Any:
    """The value of one required argument after coercion."""
    parameters = {"type": "object", "properties": {"value": schema}, "required": ["value"], "$defs": DEFS}
    return coerce(parameters, {"value": value})["value"]


CHANGED = [
    pytest.param(INTEGER, "3", 3, id="digits"),
    pytest.param(INTEGER, "-12", -12, id="negative"),
    pytest.param(INTEGER, " 7\n", 7, id="surrounding blanks"),
    pytest.param(INTEGER, "3.0", 3, id="whole decimal text"),
    pytest.param(INTEGER, "1e3", 1000, id="exponent"),
    pytest.param(INTEGER, "12.50e2", 1250, id="decimal with exponent"),
    pytest.param(INTEGER, "1000e-3", 1, id="negative exponent that stays whole"),
    pytest.param(INTEGER, "9007199254740993", 9007199254740993, id="beyond what a double holds"),
    pytest.param(INTEGER, "9007199254740993.0", 9007199254740993, id="beyond a double, written as a decimal"),
    pytest.param(INTEGER, 3.0, 3, id="whole float"),
    pytest.param(INTEGER, "-0", 0, id="negative zero"),
    pytest.param(NUMBER, "3.5", 3.5, id="decimal"),
    pytest.param(NUMBER, "3.0", 3, id="whole number text"),
    pytest.param(NUMBER, "-2.5E-3", -0.0025, id="small number"),
    pytest.param(BOOLEAN, "true", True, id="true"),
    pytest.param(BOOLEAN, "False", False, id="False as Python writes it"),
    pytest.param(BOOLEAN, " TRUE ", True, id="TRUE"),
    pytest.param({"type": ["integer", "null"]}, "null", None, id="null in a type list"),
    pytest.param({"anyOf": [INTEGER, NULL]}, "null", None, id="null in anyOf"),
    pytest.param({"anyOf": [{"type": "array", "items": STRING}, NULL]}, "null", None, id="null beside an array"),
    pytest.param({"type": "integer", "nullable": True}, "null", None, id="null by nullable"),
    pytest.param({"$ref": "#/$defs/id", "nullable": True}, "null", None, id="null by nullable reference"),
    pytest.param(ARRAY, '["a", 1]', ["a", 1], id="array text"),
    pytest.param(OBJECT, ' {"a": {"b": []}}', {"a": {"b": []}}, id="object text"),
    pytest.param({"type": "array", "items": INTEGER}, '["1", "2.0"]', [1, 2], id="array text and its items"),
    pytest.param(ARRAY, "a", ["a"], id="bare string"),
    pytest.param(ARRAY, 5, [5], id="bare number"),
    pytest.param(ARRAY, False, [False], id="bare false"),
    pytest.param({"type": "array", "items": OBJECT}, {"a": 1}, [{"a": 1}], id="bare object"),
    pytest.param({"type": "array", "items": OBJECT}, '{"a": 1}', [{"a": 1}], id="bare object text"),
    pytest.param({"type": "array", "items": INTEGER}, "5", [5], id="bare number text"),
    pytest.param({"type": ["array", "integer"]}, "5", 5, id="a reading is preferred to wrapping"),
    pytest.param({"type": ["integer", "boolean"]}, "true", True, id="type list in order"),
    pytest.param({"type": ["boolean", "number"]}, "1.5", 1.5, id="type list, second"),
    pytest.param({"anyOf": [BOOLEAN, INTEGER]}, "4", 4, id="anyOf in order"),
    pytest.param({"oneOf": [{"type": "integer", "minimum": 10}, NUMBER]}, "4", 4, id="first branch that accepts it"),
    pytest.param({"anyOf": [{"enum": ["auto"]}, INTEGER]}, "4", 4, id="a string branch that refuses the string"),
    pytest.param({"anyOf": [{"type": "array", "items": INTEGER}, NULL]}, '["4"]', [4], id="inside of a branch"),
    pytest.param({"items": INTEGER}, ["1", 2], [1, 2], id="items"),
    pytest.param({"prefixItems": [INTEGER, BOOLEAN], "items": NUMBER}, ["1", "true", "2.5"], [1, True, 2.5], id="pair"),
    pytest.param({"properties": {"n": INTEGER}}, {"n": "1", "m": "1"}, {"n": 1, "m": "1"}, id="properties"),
    pytest.param({"additionalProperties": INTEGER}, {"n": "1"}, {"n": 1}, id="additionalProperties"),
    pytest.param({"$ref": "#/$defs/id"}, "1", 1, id="reference"),
    pytest.param({"$ref": "#/$defs/a~1b%20c"}, "1", 1, id="escaped reference"),
    pytest.param({"allOf": [{"$ref": "#/$defs/id"}, {"minimum": 1}]}, "1", 1, id="allOf"),
    pytest.param(TREE, {"parts": [{"size": "2", "parts": '[{"size": "3"}]'}]},
                 {"parts": [{"size": 2, "parts": [{"size": 3}]}]}, id="recursive schema"),
    pytest.param({"enum": [1, 2, "auto"]}, "2", 2, id="number in an enum"),
    pytest.param({"enum": ["a", None]}, "null", None, id="null in an enum"),
    pytest.param({"type": ["string", "null"], "enum": ["a", None]}, "null", None, id="null in a typed enum"),
    pytest.param({"enum": [True, 1]}, "true", True, id="true in an enum"),
    pytest.param({"enum": [True, 1]}, "1", 1, id="one beside true in an enum"),
    pytest.param({"const": {"a": [1]}}, '{"a":[1]}', {"a": [1]}, id="const object"),
    pytest.param({"properties": {"n": INTEGER}}, {"n": None, "m": None}, {"m": None}, id="null for not given"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "expected"), CHANGED)
def test_a_value_is_read_as_the_type_that_the_schema_asks_for(schema: Any, value: Any, expected: Any) -> None:
    """Where a value does not fit, and its meaning in the wanted type is certain, it is converted."""
    before = copy.deepcopy(value)

    result = coerced(schema, value)

    assert result == expected
    assert type(result) is type(expected)
    assert value == before


KEPT = [
    pytest.param(INTEGER, "3.5", id="fraction for an integer"),
    pytest.param(INTEGER, 3.5, id="fractional float for an integer"),
    pytest.param(INTEGER, True, id="true for an integer"),
    pytest.param(INTEGER, "007", id="leading zeros"),
    pytest.param(INTEGER, "1_000", id="underscores"),
    pytest.param(INTEGER, "1,000", id="thousands separator"),
    pytest.param(INTEGER, "+5", id="plus sign"),
    pytest.param(INTEGER, "0x10", id="hexadecimal"),
    pytest.param(INTEGER, "٣", id="digits of another script"),
    pytest.param(INTEGER, "1 2", id="blanks inside"),
    pytest.param(INTEGER, "", id="empty text"),
    pytest.param(INTEGER, "1e400", id="exponent beyond every double"),
    pytest.param(INTEGER, "1e999999999", id="exponent without end"),
    pytest.param(INTEGER, "9" * 5000, id="more digits than can be read"),
    pytest.param(INTEGER, float("inf"), id="infinite float"),
    pytest.param(NUMBER, "inf", id="inf"),
    pytest.param(NUMBER, "NaN", id="nan"),
    pytest.param(NUMBER, "Infinity", id="infinity"),
    pytest.param(NUMBER, "1.", id="number that JSON does not write"),
    pytest.param(NUMBER, ".5", id="number without its zero"),
    pytest.param(NUMBER, "1e-400", id="underflow"),
    pytest.param(NUMBER, "0.12345678901234567890123", id="more digits than a double holds"),
    pytest.param(NUMBER, 3.0, id="a float is a number already"),
    pytest.param(BOOLEAN, "yes", id="yes"),
    pytest.param(BOOLEAN, 1, id="one for true"),
    pytest.param(BOOLEAN, "1", id="one as text for true"),
    pytest.param(STRING, 5, id="number for a string"),
    pytest.param(STRING, "5", id="number text for a string"),
    pytest.param(STRING, '["a"]', id="array text for a string"),
    pytest.param({"type": ["string", "integer"]}, "5", id="string allowed first"),
    pytest.param({"type": ["integer", "string"]}, "5", id="string allowed second"),
    pytest.param({"anyOf": [INTEGER, STRING]}, "5", id="string allowed in a branch"),
    pytest.param({"type": ["string", "null"]}, "null", id="null text where strings are allowed"),
    pytest.param({"anyOf": [ARRAY, STRING]}, '["a"]', id="array text where strings are allowed"),
    pytest.param(INTEGER, "null", id="null text where null is not allowed"),
    pytest.param(INTEGER, None, id="null for a required argument"),
    pytest.param(ARRAY, None, id="null is not wrapped"),
    pytest.param(OBJECT, "[1]", id="array text for an object"),
    pytest.param(OBJECT, '{"a": 1', id="broken object text"),
    pytest.param(OBJECT, '{"a": 1, "a": 2}', id="object text with a repeated key"),
    pytest.param(OBJECT, '{"a": NaN}', id="object text with NaN"),
    pytest.param(OBJECT, '{"a":' * 100_000, id="object text without end"),
    pytest.param({"enum": ["a", "b"]}, "A", id="case of an enum member"),
    pytest.param({"enum": ["1", 1]}, "1", id="the text itself is a member"),
    pytest.param({"enum": [True]}, "True", id="Python spelling in an enum"),
    pytest.param({"enum": [1]}, "true", id="true is not one"),
    pytest.param({"$ref": "#/$defs/loop"}, "1", id="reference that never arrives"),
    pytest.param({"$ref": "#/$defs/missing"}, "1", id="reference to nothing"),
    pytest.param({"$ref": "https://example.com/x"}, "1", id="remote reference"),
    pytest.param({}, "1", id="no type at all"),
    pytest.param(True, "1", id="boolean schema"),
    pytest.param({"properties": {"n": INTEGER}, "required": ["n"]}, {"n": None}, id="null for a required property"),
    pytest.param({"properties": {"n": {"type": ["integer", "null"]}}}, {"n": None}, id="null that is allowed"),
    pytest.param({"patternProperties": {"^n": STRING}, "additionalProperties": INTEGER}, {"n": "1"}, id="patterns"),
]


@pytest.mark.parametrize(("schema", "value"), KEPT)
def test_what_cannot_be_read_without_loss_or_fits_already_stays(schema: Any, value: Any) -> None:
    """Failures and values that fit keep the very object that was given."""
    assert coerced(schema, value) is value


def test_nested_values_are_shared_where_nothing_changed() -> None:
    """Only the containers on the way to a change are copied."""
    schema = {"properties": {"a": {"type": "array", "items": INTEGER}, "b": ARRAY}}
    arguments = {"a": [1, "2"], "b": [[]]}

    result = coerce(schema, arguments)

    assert result == {"a": [1, 2], "b": [[]]}
    assert arguments == {"a": [1, "2"], "b": [[]]}
    assert result["b"] is arguments["b"]


def test_the_result_is_a_new_dict_even_when_nothing_changed() -> None:
    """Whoever changes the result does not change the call."""
    arguments = {"a": 1}

    assert coerce({}, arguments) is not arguments


def test_an_invalid_schema_still_guides_coercion() -> None:
    """A schema that cannot be compiled is followed as far as it can be understood."""
    schema = {"properties": {"n": INTEGER, "m": {"anyOf": [INTEGER, NULL]}, "p": {"pattern": "("}}}

    result = coerce(schema, {"n": "1", "m": "2", "p": "3"})

    assert result == {"n": 1, "m": 2, "p": "3"}


def test_branching_without_end_is_cut_off() -> None:
    """A schema whose branches double at every level costs a bounded number of steps."""
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}}
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {**node, "required": ["x"]}, "b": {**node, "required": ["y"]}}}
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"next": value}

    assert coerce(schema, value) == value


# Property tests

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
NUMBER_TEXTS = st.one_of(st.integers().map(str), st.decimals(allow_nan=False, allow_infinity=False).map(str))
WORDS = st.one_of(
    st.sampled_from(["true", "False", "null", "1e3", "3.0", "007", "[1]", '{"a": "1"}', "[", ""]), NUMBER_TEXTS
)
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(NAMES, inner, max_size=3),
        st.lists(inner, max_size=2).map(json.dumps),
        st.dictionaries(NAMES, inner, max_size=2).map(json.dumps),
    ),
    max_leaves=8,
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
LEAVES = st.one_of(
    st.just({}),
    st.booleans(),
    TYPES.map(lambda name: {"type": name}),
    st.lists(TYPES, min_size=1, max_size=3, unique=True).map(lambda names: {"type": names}),
    st.lists(SCALARS, min_size=1, max_size=3).map(lambda members: {"enum": members}),
    SCALARS.map(lambda member: {"const": member}),
    st.integers(-5, 5).map(lambda limit: {"type": "integer", "minimum": limit}),
    st.sampled_from([{"$ref": "#/properties/a"}, {"$ref": "#"}, {"minLength": 2}, {"type": "array", "maxItems": 1}]),
)


def _composite(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({}, optional={"properties": named, "required": st.lists(NAMES, unique=True)}),
        st.fixed_dictionaries(
            {"type": st.just("object")}, optional={"properties": named, "additionalProperties": inner}
        ),
        st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner, "prefixItems": several}),
        several.map(lambda branches: {"anyOf": branches}),
        several.map(lambda branches: {"oneOf": branches}),
        several.map(lambda branches: {"allOf": branches}),
        inner.map(lambda part: {"not": part}),
    )


SCHEMAS = st.recursive(LEAVES, _composite, max_leaves=8)
PARAMETERS = st.fixed_dictionaries(
    {"properties": st.fixed_dictionaries({"a": SCHEMAS, "b": SCHEMAS, "c": SCHEMAS})},
    optional={"type": st.just("object"), "required": st.lists(NAMES, unique=True), "additionalProperties": SCHEMAS},
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)


def is_same(left: Any, right: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, but never true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return bool(left == right)


def means(before: Any, after: Any) -> bool:
    """Whether `after` can only have come from something that says the same as `before`."""
    if is_same(before, after):
        return True
    if isinstance(before, dict) and isinstance(after, dict):
        dropped = [before[name] for name in before if name not in after]
        return all(name in before and means(before[name], after[name]) for name in after) and dropped.count(
            None
        ) == len(dropped)
    if (
        isinstance(before, list)
        and isinstance(after, list)
        and len(before) == len(after)
        and all(map(means, before, after))
    ):
        return True
    if isinstance(before, str) and _says(before, after):
        return True
    return isinstance(after, list) and len(after) == 1 and not isinstance(before, list) and means(before, after[0])


def _says(text: str, value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return text.strip().lower() == json.dumps(value)
    if isinstance(value, (int, float)):
        return Decimal(text.strip()) == Decimal(repr(value))
    try:
        return isinstance(value, (list, dict)) and means(json.loads(text), value)
    except ValueError:
        return False


@given(parameters=PARAMETERS, arguments=ARGUMENTS)
@settings(max_examples=200, deadline=None)
def test_arguments_that_validate_are_never_changed(parameters: Any, arguments: Any) -> None:
    """Valid in, the same out."""
    result = coerce(parameters, arguments)

    if jsonschema_rs.validator_for(parameters).is_valid(arguments):
        assert is_same(result, arguments)


@given(parameters=PARAMETERS, arguments=ARGUMENTS)
@settings(max_examples=200, deadline=None)
def test_whatever_changes_keeps_its_meaning(parameters: Any, arguments: Any) -> None:
    """From every result one can tell what was sent; the input itself is not touched."""
    before = copy.deepcopy(arguments)

    result = coerce(parameters, arguments)

    assert means(before, result)
    assert is_same(before, arguments)


@given(parameters=PARAMETERS, arguments=ARGUMENTS)
@settings(max_examples=150, deadline=None)
def test_a_second_coercion_changes_nothing_once_the_first_gave_valid_arguments(parameters: Any, arguments: Any) -> None:
    """Coerced arguments that validate are at rest."""
    once = coerce(parameters, arguments)

    if jsonschema_rs.validator_for(parameters).is_valid(once):
        assert is_same(coerce(parameters, once), once)


@given(number=st.decimals(allow_nan=False, allow_infinity=False) | st.integers().map(Decimal))
@settings(max_examples=200, deadline=None)
def test_numbers_written_as_text_become_exactly_that_number_or_stay(number: Decimal) -> None:
    """No digit of a number is ever lost."""
    result = coerced(NUMBER, str(number))

    assert result == str(number) or Decimal(repr(result)) == number
