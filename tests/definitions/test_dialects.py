"""The same definitions, as each provider takes them on the wire."""

import copy
import json
import os
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.definitions.dialect_rules import CHECKS, check_openai
from tests.definitions.dialect_schemas import junk, objects, root_schemas
from tests.definitions.dialect_tools import GNARLY, tool
from toolcrib.core.errors import ToolcribError
from toolcrib.definitions.dialects import Dialect, Rendered, render

GOLDEN = Path(__file__).parent / "golden"
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
LOOSE_DIALECTS: tuple[Dialect, ...] = ("openai", "anthropic", "llama_cpp")
WILD = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def declarations(rendered: Rendered, dialect: Dialect) -> list[dict[str, Any]]:
    if dialect != "gemini":
        return rendered.tools
    return rendered.tools[0]["functionDeclarations"] if rendered.tools else []


def one(parameters: Any, dialect: Dialect) -> dict[str, Any]:
    """The rendered schema of a single tool."""
    [rendered] = declarations(render([tool("t", "Does it.", parameters)], dialect), dialect)
    found = rendered.get("function", rendered)
    schema: dict[str, Any] = found["input_schema"] if dialect == "anthropic" else found["parameters"]
    return schema


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_wire_form_of_gnarly_tools_is_the_golden_one(dialect: Dialect) -> None:
    """What goes over the wire only changes on purpose: `UPDATE_GOLDEN=1` rewrites the files for review."""
    rendered = render(GNARLY, dialect)
    body = {"set_aside": {left.name: left.reason for left in rendered.set_aside}, "tools": rendered.tools}
    text = json.dumps(body, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    file = GOLDEN / f"{dialect}.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(text, encoding="utf-8")

    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_gnarly_tools_obey_the_rules_of_the_provider(dialect: Dialect) -> None:
    """Each rendered tool keeps to the structure that its provider demands."""
    for declaration in declarations(render(GNARLY, dialect), dialect):
        CHECKS[dialect](declaration)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_bad_tool_is_set_aside_with_a_reason_and_the_rest_are_sent(dialect: Dialect) -> None:
    """A tool that cannot be expressed never costs the request."""
    rendered = render([tool("b", "", {}), tool("bad name!", "", {}), None, tool("a", "", {})], dialect)  # type: ignore[list-item]

    assert [found.get("function", found)["name"] for found in declarations(rendered, dialect)] == ["a", "b"]
    assert [left.name for left in rendered.set_aside] == ["#2", "bad name!"]
    assert all(left.reason for left in rendered.set_aside)


def test_a_name_that_is_taken_is_set_aside() -> None:
    """Providers refuse two tools of one name, so the first one is sent."""
    rendered = render([tool("t", "first", {}), tool("t", "second", {})], "openai")

    assert [found["function"]["description"] for found in rendered.tools] == ["first"]
    assert "same name" in rendered.set_aside[0].reason


@pytest.mark.parametrize(
    ("name", "dialect", "is_sent"),
    [
        ("a" * 64, "openai", True),
        ("a" * 65, "openai", False),
        ("with-dash_9", "anthropic", True),
        ("with.dot", "anthropic", False),
        ("line\n", "openai", False),
        ("ünï", "openai", False),
        ("", "llama_cpp", False),
        ("9lives", "openai", True),
        ("9lives", "gemini", False),
        ("9lives", "openai_gemini", False),
    ],
)
def test_only_names_that_the_provider_takes_are_sent(name: str, dialect: Dialect, is_sent: bool) -> None:
    """Names are 1 to 64 of a-z A-Z 0-9 _ -; Gemini's also start with a letter or an underscore."""
    assert bool(render([tool(name, "", {})], dialect).tools) is is_sent


def test_no_tools_are_an_empty_field() -> None:
    """Nothing to offer is an empty list, also where the provider wraps the tools."""
    assert [render([], dialect).tools for dialect in DIALECTS] == [[]] * len(DIALECTS)


def test_gemini_behind_openais_protocol_gets_its_own_schemas_in_openais_frame() -> None:
    """Only the frame differs between the two ways to reach Gemini."""
    framed = [found["function"] for found in render(GNARLY, "openai_gemini").tools]

    assert framed == declarations(render(GNARLY, "gemini"), "gemini")


def test_a_schema_that_holds_itself_does_not_hang_or_raise() -> None:
    """A Python object that contains itself is cut, not followed for ever."""
    loop: dict[str, Any] = {"type": "object", "properties": {}}
    loop["properties"]["self"] = loop
    loop["properties"]["again"] = loop

    rendered = render([tool("loop", "", loop), tool("fine", "", {})], "openai")

    assert "fine" in [found["function"]["name"] for found in rendered.tools]


def test_definitions_that_multiply_when_written_out_stay_bounded() -> None:
    """Shared definitions that refer to each other twice would double at each level; the result stays small."""
    definitions = {
        f"d{level}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/d{level + 1}"} for side in "lr"}}
        for level in range(40)
    }
    schema = {"type": "object", "properties": {"top": {"$ref": "#/$defs/d0"}}, "$defs": definitions}

    for dialect in DIALECTS:
        assert len(json.dumps(one(schema, dialect))) < 500_000


@pytest.mark.parametrize("dialect", ["gemini", "openai_gemini", "llama_cpp", "openai"])
def test_a_recursive_reference_ends_in_a_plain_object(dialect: Dialect) -> None:
    """Recursion is written out a few times and then replaced."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
    inner = one({"type": "object", "properties": {"list": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}, dialect)
    depth = 0
    while "properties" in inner:
        [inner] = inner["properties"].values()
        depth += 1

    assert inner == {"type": "object"}
    assert 1 < depth < 6


def test_ordinary_references_are_kept_where_the_provider_takes_them() -> None:
    """A shared definition is sent once to those who know references, and written out for the others."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/S"}, "b": {"$ref": "#/definitions/S"}},
        "definitions": {"S": {"type": "string"}, "unused": {"type": "null"}},
    }

    assert one(schema, "anthropic")["properties"] == {"a": {"$ref": "#/$defs/S"}, "b": {"$ref": "#/$defs/S"}}
    assert one(schema, "anthropic")["$defs"] == {"S": {"type": "string"}}
    assert one(schema, "gemini")["properties"] == {"a": {"type": "string"}, "b": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"m": {"type": "object"}}}, "a free-form map"),
        ({"type": "object", "properties": {"m": {}}}, "a value of any type"),
        ({"type": "object", "properties": {"m": {"type": "string"}}, "additionalProperties": True}, "an open object"),
        ({"type": "object", "properties": {"m": {"type": "array"}}}, "an array of anything"),
        ({"type": "object", "properties": {}, "required": ["m"]}, "a required property without a schema"),
    ],
)
def test_strict_is_given_up_for_what_it_cannot_express(schema: dict[str, Any], reason: str) -> None:
    """A tool that strict mode cannot say is sent with `strict: false`, and alone in that."""
    rendered = render([tool("loose", "", schema), tool("tight", "", {})], "openai_strict")

    assert [found["function"]["strict"] for found in rendered.tools] == [False, True], reason
    assert rendered.tools[0]["function"]["parameters"] == one(schema, "openai")


def test_optional_properties_are_nullable_in_strict_mode() -> None:
    """Strict mode requires every property, so leaving one out is saying null."""
    schema = {
        "type": "object",
        "properties": {
            "must": {"type": "string"},
            "may": {"type": "integer", "default": None},
            "pick": {"enum": ["a", "b"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        },
        "required": ["must"],
    }

    properties = one(schema, "openai_strict")["properties"]

    assert properties == {
        "must": {"type": "string"},
        "may": {"type": ["integer", "null"]},
        "pick": {"type": ["string", "null"], "enum": ["a", "b", None]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
    }


def test_constraints_that_are_left_out_are_told_in_the_description() -> None:
    """What a provider refuses as a keyword still reaches the model, as words."""
    code = {"type": "string", "description": "The code.", "pattern": r"^\d+$", "maxLength": 9999}
    level = {"type": "integer", "enum": [1, 2]}
    schema = {"type": "object", "properties": {"code": code, "level": level}}

    described = one(schema, "llama_cpp")["properties"]["code"]["description"]

    assert described == r"The code. (pattern: ^\d+$) (at most 9999 characters)"
    assert one(schema, "gemini")["properties"]["level"] == {"type": "integer", "description": "(one of 1, 2)"}


def test_alternatives_at_the_root_are_folded_into_one_object() -> None:
    """Providers refuse a choice at the root; the needed sets of arguments are told instead."""
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    }

    [found] = render([tool("t", "Finds it.", schema)], "anthropic").tools

    assert found["input_schema"] == {"type": "object", "properties": schema["properties"]}
    assert found["description"] == "Finds it. (give one of these sets of arguments: id; or name)"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_property_named_like_a_keyword_stays_a_property(dialect: Dialect) -> None:
    """Keywords are known by their place, not by their spelling."""
    names = ["type", "pattern", "format", "enum", "required", "default", "properties", "items", "anyOf", "nullable"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}

    assert one(schema, dialect)["properties"] == schema["properties"]


NESTED_LIST = {"type": "array", "items": {"$ref": "#/$defs/L"}}
OPEN_UNION = [
    {"properties": {"kind": {"const": "f"}, "path": {"type": "string"}}},
    {"properties": {"kind": {"const": "u"}}},
]
TRAPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "keys by pattern in a closed object": (
        {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        {"x1": 1},
    ),
    "a nested closed object with keys by pattern": (
        {"properties": {"m": {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False}}},
        {"m": {"x1": 1}},
    ),
    "recursion that is no object": (
        {"properties": {"l": {"$ref": "#/$defs/L"}}, "$defs": {"L": NESTED_LIST}},
        {"l": [[[[[[]]]]]]},
    ),
    "recursion of any type": (
        {"properties": {"l": {"$ref": "#/$defs/L"}}, "$defs": {"L": {"anyOf": [{"type": "string"}, NESTED_LIST]}}},
        {"l": [[[[["deep"]]]]]},
    ),
    "a property that an open alternative does not mention": ({"anyOf": OPEN_UNION}, {"kind": "u", "path": 5}),
    "one of, where loosened branches overlap": (
        {"properties": {"v": {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}}},
        {"v": "a"},
    ),
    "a negation around what is left out": (
        {"properties": {"v": {"not": {"type": "string", "pattern": "^a"}}}},
        {"v": "b"},
    ),
    "a key that Anthropic refuses in a closed object": (
        {"properties": {"filter[id]": {"type": "string"}}, "required": ["filter[id]"], "additionalProperties": False},
        {"filter[id]": "1"},
    ),
    "siblings of a reference, which draft 7 ignores": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"v": {"$ref": "#/definitions/V", "maxLength": 1}},
            "definitions": {"V": {"type": "string"}},
        },
        {"v": "long"},
    ),
    "a reference inside a schema with its own base": (
        {
            "properties": {
                "v": {
                    "$id": "https://example.com/inner",
                    "$ref": "#/$defs/X",
                    "$defs": {"X": {"type": "integer"}},
                }
            },
            "$defs": {"X": {"type": "string"}},
        },
        {"v": 5},
    ),
    "true and 1 in alternatives": (
        {"anyOf": [{"properties": {"v": {"const": flag}}, "required": ["v"]} for flag in (1, True)]},
        {"v": True},
    ),
}


@pytest.mark.parametrize("dialect", LOOSE_DIALECTS)
@pytest.mark.parametrize("trap", TRAPS)
def test_a_rendered_schema_never_refuses_what_the_author_accepts(trap: str, dialect: Dialect) -> None:
    """Where leaving a constraint out could forbid more instead of less, it does not."""
    schema, arguments = TRAPS[trap]
    assert jsonschema_rs.validator_for(schema).is_valid(arguments)

    assert jsonschema_rs.Draft202012Validator(one(schema, dialect)).is_valid(arguments)


@settings(WILD)
@given(root_schemas())
def test_every_legal_schema_obeys_each_providers_rules(schema: dict[str, Any]) -> None:
    """Whatever a third party's schema looks like, what is sent has the structure that the provider demands."""
    for dialect in DIALECTS:
        for declaration in declarations(render([tool("t", "", schema)], dialect), dialect):
            CHECKS[dialect](declaration)


@settings(WILD)
@given(junk)
def test_even_an_illegal_schema_never_breaks_the_request(schema: Any) -> None:
    """A malformed schema is repaired or set aside; the tool beside it is sent."""
    for dialect in DIALECTS:
        rendered = render([tool("t", "", schema), tool("fine", "", {})], dialect)
        found = declarations(rendered, dialect)
        json.dumps(found, allow_nan=False)
        assert len(found) + len(rendered.set_aside) == 2
        for declaration in found:
            CHECKS[dialect](declaration)


@settings(WILD)
@given(root_schemas(), st.lists(objects, min_size=8, max_size=15))
def test_what_the_author_accepts_can_still_be_said(schema: dict[str, Any], candidates: list[Any]) -> None:
    """An object that is valid under the author's schema is valid under the rendered one."""
    original = jsonschema_rs.Draft202012Validator(schema)
    valid = [candidate for candidate in candidates if original.is_valid(candidate)]
    for dialect in LOOSE_DIALECTS:
        if not render([tool("t", "", schema)], dialect).tools:
            assert valid == []
            continue
        rendered = jsonschema_rs.Draft202012Validator(one(schema, dialect))
        for candidate in valid:
            assert rendered.is_valid(candidate), (dialect, candidate)


@settings(WILD)
@given(root_schemas())
def test_rendering_is_stable_and_leaves_its_input_alone(schema: dict[str, Any]) -> None:
    """The same input gives the same bytes, nothing in it changes, and nothing of it is handed on."""
    definitions = [tool("b", "", schema), tool("a", "", schema)]
    before = copy.deepcopy(definitions)
    for dialect in DIALECTS:
        first = render(definitions, dialect)
        text = json.dumps(first.tools)
        assert text == json.dumps(render(copy.deepcopy(definitions), dialect).tools)
        assert definitions == before
        assert containers(first.tools).isdisjoint(containers(definitions))


def containers(value: Any) -> set[int]:
    """The identities of every list and dict inside a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = {id(value)} if isinstance(value, (dict, list)) else set()
    return found.union(*(containers(item) for item in inner))


def test_the_checkers_notice_a_broken_rule() -> None:
    """The rules of this test file can fail: an untouched odd schema does not pass them."""
    with pytest.raises(AssertionError):
        check_openai(tool("t", "", {"type": "object", "properties": {}, "oneOf": [{}]}))


def test_an_unknown_dialect_is_told_with_the_nearest():
    """A slip in a dialect's name is an error that helps, not a KeyError."""
    with pytest.raises(ToolcribError, match="unknown dialect 'openai-strict'; did you mean 'openai_strict'"):
        render([], "openai-strict")
