"""The arguments of a call: raw text, validation, unknown names, and messages that a model can act on."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.core.types import Source, SourceKind, ToolEntry
from toolcrib.dispatch.arguments import ArgumentChecker, ArgumentError

TAG = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
READ_FILE = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "The file to read"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 2000},
        "mode": {"type": "string", "enum": ["text", "bytes"]},
        "tags": {"type": "array", "items": TAG},
    },
    "required": ["path"],
}


def checker(parameters: Any, source: SourceKind = "code") -> ArgumentChecker:
    schema = {"name": "read_file", "parameters": parameters}
    return ArgumentChecker(ToolEntry("read_file", "file", schema, lambda args: "ok", source=Source(source, "test")))


def problem_of(arguments: Any, parameters: Any = READ_FILE, source: SourceKind = "code") -> ArgumentError:
    _, problem = checker(parameters, source).prepare(arguments)
    assert problem is not None
    return problem


# Reading


@pytest.mark.parametrize("nothing", ["", "  \n\t", None, {}, "{}"])
def test_no_arguments_are_an_empty_object(nothing: Any) -> None:
    """Models send nothing, blanks or `{}` for a tool that needs nothing."""
    assert checker({"type": "object", "properties": {}}).prepare(nothing) == ({}, None)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"path": "a", "limit": 5}', id="object"),
        pytest.param(' \n{"path": "a", "limit": "5"}\n', id="blanks around it"),
        pytest.param(json.dumps('{"path": "a", "limit": 5}'), id="encoded twice"),
    ],
)
def test_raw_text_is_parsed_coerced_and_validated(text: str) -> None:
    """The model's own JSON text is as good as a dict."""
    assert checker(READ_FILE).prepare(text) == ({"path": "a", "limit": 5}, None)


def test_line_breaks_inside_of_strings_are_understood() -> None:
    """A raw line break in a JSON string has one meaning only."""
    assert checker(READ_FILE).prepare('{"path": "a\nb"}') == ({"path": "a\nb"}, None)


def test_any_mapping_is_accepted_and_copied() -> None:
    """The result is always a new plain dict."""
    given = {"path": "a"}

    from_dict, _ = checker(READ_FILE).prepare(given)
    from_proxy, _ = checker(READ_FILE).prepare(MappingProxyType(given))

    assert from_dict == from_proxy == given
    assert from_dict is not given
    assert type(from_proxy) is dict


UNREADABLE = [
    pytest.param('{"path": "a"', "line 1, column 13", id="cut off"),
    pytest.param('{"path": "a",\n "limit": }', "line 2, column 11, near", id="value missing"),
    pytest.param("path=a", "near 'path=a'", id="not JSON"),
    pytest.param('["a"]', "found an array of 1 item", id="array"),
    pytest.param("5", "found 5", id="number"),
    pytest.param("null", "found null", id="null"),
    pytest.param('"path"', 'found "path"', id="string"),
    pytest.param(json.dumps(json.dumps('{"path": "a"}')), "found", id="encoded three times"),
    pytest.param(json.dumps('{"path": '), "before the JSON is complete", id="encoded twice and cut off"),
    pytest.param('{"path": "a", "path": "b"}', "'path' is given more than once", id="repeated key"),
    pytest.param('{"path": "a", "x": {"y": 1, "y": 1}}', "'y' is given more than once", id="repeated key inside"),
    pytest.param('{"path": NaN}', "NaN", id="NaN"),
    pytest.param('{"path": -Infinity}', "-Infinity", id="Infinity"),
    pytest.param('{"path": 1e999}', "1e999 is too large", id="number beyond a double"),
    pytest.param('{"limit": ' + "9" * 5000 + "}", "4300 digits", id="huge integer"),
    pytest.param('{"path": ' + "[" * 200_000, "nested too deeply", id="endless nesting"),
    pytest.param(5, "Python int", id="not text at all"),
    pytest.param(b"{}", "Python bytes", id="bytes"),
]


@pytest.mark.parametrize(("raw", "says"), UNREADABLE)
def test_text_that_is_no_object_is_a_problem_and_never_an_empty_call(raw: Any, says: str) -> None:
    """What cannot be read is told with its place; it is never repaired and run."""
    arguments, problem = checker({"type": "object", "properties": {}}).prepare(raw)

    assert arguments == {}
    assert problem is not None
    assert says in problem.message
    assert problem.field == "arguments"
    assert problem.expected == "a JSON object"
    assert len(problem.message) < 600


# Validating

WRONG = [
    pytest.param({}, "path", "is required and missing (a string)", id="missing"),
    pytest.param({"path": 5}, "path", "must be a string, found 5", id="type"),
    pytest.param({"path": None}, "path", "must be a string, found null", id="null for a required argument"),
    pytest.param({"path": "a", "limit": 0}, "limit", "must be an integer from 1 to 2000, found 0", id="minimum"),
    pytest.param({"path": "a", "limit": "ten"}, "limit", 'found "ten"', id="unreadable number"),
    pytest.param({"path": "a", "mode": "Text"}, "mode", 'must be one of "text", "bytes", found "Text"', id="enum"),
    pytest.param({"path": "a", "tags": [{"id": 1}, {"id": "x"}]}, "tags[1].id", "must be an integer", id="nested"),
    pytest.param({"path": "a", "tags": [{}]}, "tags[0].id", "is required", id="missing inside"),
]


@pytest.mark.parametrize(("arguments", "field", "says"), WRONG)
def test_a_problem_names_field_expectation_and_finding(arguments: Any, field: str, says: str) -> None:
    """The model learns where it went wrong, what was expected, what was found, and a call that works."""
    problem = problem_of(arguments)

    assert problem.field == field
    assert says in problem.message.partition(f"'{field}' ")[2]
    assert problem.message.startswith("Invalid arguments for read_file: ")
    example = json.JSONDecoder().raw_decode(problem.message.partition("for example ")[2])[0]
    assert checker(READ_FILE).prepare(example) == (example, None)


def test_all_problems_are_told_the_missing_argument_first() -> None:
    """One round trip is enough to learn everything, in order of importance."""
    problem = problem_of({"limit": "ten", "mode": 1})

    assert problem.field == "path"
    assert problem.expected == "a string"
    assert problem.example == "text"
    positions = [problem.message.index(f"'{name}'") for name in ("path", "limit", "mode")]
    assert positions[0] < min(positions[1:])


def test_a_flood_of_problems_is_cut_at_five() -> None:
    """A message stays readable however much is wrong."""
    problem = problem_of({"items": ["x"] * 30}, {"properties": {"items": {"items": {"type": "integer"}}}})

    assert problem.message.count("must be an integer") == 5
    assert "and 25 more" in problem.message


def test_long_values_are_shortened() -> None:
    """What was found is shown, not repeated in full."""
    problem = problem_of({"path": "a", "limit": "x" * 10_000})

    assert len(problem.message) < 500


def test_the_example_keeps_what_was_right() -> None:
    """The example call is the model's own, corrected."""
    problem = problem_of({"path": "notes.md", "limit": "ten"})

    assert '{"path": "notes.md", "limit": 1}' in problem.message


def test_the_one_fitting_branch_of_a_union_is_told_in_detail() -> None:
    """For an optional object the message is about the object, not about the union."""
    item = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    problem = problem_of({"item": {}}, {"properties": {"item": {"anyOf": [item, {"type": "null"}]}}})

    assert problem.field == "item.id"


def test_a_union_that_nothing_fits_is_described_as_a_whole() -> None:
    """Every branch is named."""
    branches = [{"type": "integer"}, {"type": "boolean"}]
    problem = problem_of({"item": "x"}, {"properties": {"item": {"anyOf": branches}}})

    assert "'item' must be an integer or true or false" in problem.message


def test_rules_without_a_phrase_are_told_in_the_words_of_the_validator() -> None:
    """No violation goes unexplained."""
    problem = problem_of({"ids": [1, 1]}, {"properties": {"ids": {"uniqueItems": True}}})

    assert problem.field == "ids"
    assert "non-unique" in problem.message


def test_null_for_an_optional_argument_means_not_given() -> None:
    """Models send null for what they leave out."""
    assert checker(READ_FILE).prepare({"path": "a", "limit": None}) == ({"path": "a"}, None)


def test_nullable_lets_null_through() -> None:
    """OpenAPI's `nullable` is understood, for required arguments too."""
    parameters = {"properties": {"n": {"type": "integer", "nullable": True}}, "required": ["n"]}

    assert checker(parameters).prepare({"n": None}) == ({"n": None}, None)
    assert checker(parameters).prepare({"n": "null"}) == ({"n": None}, None)


@pytest.mark.parametrize("value", [3.0, "3", "3.0"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"n": {"type": "integer"}}},
        {"properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}},
        {"properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
        {"allOf": [{"properties": {"n": {"type": "integer"}}}]},
        {"additionalProperties": {"type": "integer"}},
    ],
)
def test_a_handler_that_asks_for_an_integer_gets_an_int(parameters: Any, value: Any) -> None:
    """3.0 is a valid integer in JSON Schema, but `range(3.0)` is not Python; wherever the integer is declared."""
    arguments, problem = checker(parameters).prepare({"n": value})

    assert problem is None
    assert type(arguments["n"]) is int


def test_whole_floats_are_found_inside_of_containers() -> None:
    """Nested integers are ints as well, and the input keeps its floats."""
    sent = {"path": "a", "tags": [{"id": 1}, {"id": 2.0}]}

    arguments, problem = checker(READ_FILE).prepare(sent)

    assert problem is None
    assert type(arguments["tags"][1]["id"]) is int
    assert type(sent["tags"][1]["id"]) is float


# Unknown arguments

CLOSED = {**READ_FILE, "additionalProperties": False}
UNEVALUATED = {**READ_FILE, "unevaluatedProperties": False}


@pytest.mark.parametrize(
    ("parameters", "source"),
    [
        pytest.param(CLOSED, "mcp", id="additionalProperties false"),
        pytest.param(UNEVALUATED, "plugin", id="unevaluatedProperties false"),
        pytest.param(READ_FILE, "builtin", id="a tool of ours"),
        pytest.param({"allOf": [READ_FILE]}, "builtin", id="ours, names inside of allOf"),
        pytest.param({"$ref": "#/$defs/r", "$defs": {"r": READ_FILE}}, "builtin", id="ours, names by reference"),
    ],
)  # fmt: skip
def test_an_unknown_argument_is_refused_with_the_nearest_name(parameters: Any, source: SourceKind) -> None:
    """A slip of the model is corrected, not ignored."""
    problem = problem_of({"path": "a", "limits": 3}, parameters, source)

    assert problem.field == "limits"
    assert "'limits' is not a known argument (did you mean 'limit'?)" in problem.message


def test_an_unknown_argument_like_no_other_lists_the_known_ones() -> None:
    """Without a near name, the names that exist are the best help."""
    problem = problem_of({"path": "a", "zzz": 3}, CLOSED)

    assert "known: 'path', 'limit', 'mode', 'tags'" in problem.message


@pytest.mark.parametrize(
    ("parameters", "source"),
    [
        pytest.param(READ_FILE, "mcp", id="a foreign tool that does not forbid it"),
        pytest.param({**READ_FILE, "additionalProperties": True}, "builtin", id="ours, explicitly open"),
        pytest.param(
            {**READ_FILE, "additionalProperties": {"type": "integer"}}, "builtin", id="ours, open for integers"
        ),
        pytest.param({**READ_FILE, "patternProperties": {"^x": {}}}, "builtin", id="ours, open for a pattern"),
    ],
)
def test_further_arguments_pass_where_they_are_welcome(parameters: Any, source: SourceKind) -> None:
    """Only tools that forbid further arguments, and ours that do not invite them, refuse them."""
    sent = {"path": "a", "x": 1}

    assert checker(parameters, source).prepare(sent) == (sent, None)


# Schemas of others

UNUSABLE = [
    pytest.param({"type": "thingy"}, "thingy", id="unknown type"),
    pytest.param({"properties": {"n": {"type": "integer"}, "p": {"pattern": "("}}}, "regex", id="broken pattern"),
    pytest.param({"properties": {"n": {"type": "integer"}}, "$ref": "#/$defs/none"}, "none", id="reference to nothing"),
    pytest.param({"properties": {"n": {"type": "integer"}}, "required": "n"}, "required", id="required is no list"),
]


@pytest.mark.parametrize(("parameters", "says"), UNUSABLE)
def test_an_invalid_schema_is_enforced_as_far_as_it_is_usable_and_says_why(parameters: Any, says: str) -> None:
    """A third party's mistake neither takes its tool away nor switches validation off; `doctor` shows the reason."""
    broken = checker(parameters, "mcp")

    arguments, problem = broken.prepare({"n": "5", "p": 1})

    assert problem is None
    assert arguments == ({"n": 5, "p": 1} if "properties" in parameters else {"n": "5", "p": 1})
    assert says in str(broken.schema_problem)
    assert "properties" not in parameters or broken.prepare({"n": "x"})[1] is not None


def test_a_usable_schema_has_no_problem() -> None:
    """Nothing to report where all is well."""
    assert checker(READ_FILE).schema_problem is None


def test_references_are_never_fetched() -> None:
    """A schema that points to the network is told apart, and nobody is asked for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        remote = checker({"properties": {"n": {"type": "integer"}, "m": {"$ref": address}}})

        result = remote.prepare({"n": "1", "m": "2"})

        assert result == ({"n": 1, "m": "2"}, None)
        assert "never fetches references" in str(remote.schema_problem)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("uri", ["http://json-schema.org/draft-03/schema#", "https://example.com/mine", 5])
def test_an_unknown_draft_is_read_as_2020_12(uri: Any) -> None:
    """An exotic `$schema` does not switch validation off."""
    exotic = checker({"$schema": uri, "properties": {"pair": {"prefixItems": [{"type": "boolean"}]}}})

    assert exotic.schema_problem is None
    assert exotic.prepare({"pair": [1]})[1] is not None


def test_the_draft_that_a_schema_names_is_honoured() -> None:
    """`items` as a list is a tuple in draft 7, and no schema at all in 2020-12."""
    parameters = {"properties": {"pair": {"items": [{"type": "boolean"}]}}}
    draft_7 = checker({"$schema": "http://json-schema.org/draft-07/schema#", **parameters})

    assert draft_7.prepare({"pair": ["true", 1]}) == ({"pair": [True, 1]}, None)
    assert draft_7.prepare({"pair": [1]})[1] is not None
    assert checker(parameters).schema_problem is not None


def test_unknown_formats_are_ignored() -> None:
    """A format that nobody knows forbids nothing."""
    assert checker({"properties": {"a": {"format": "moon-phase"}}}).prepare({"a": "x"}) == ({"a": "x"}, None)


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|aa)+(?=c)$", r"(?=(a+a+)+b)x", r"^(a|a)*\1(?=c)$"])
def test_a_pattern_that_explodes_is_told_as_a_mismatch(pattern: str) -> None:
    """Catastrophic backtracking is bounded: the call ends, refused."""
    problem = problem_of({"a": "a" * 5000 + "!"}, {"properties": {"a": {"type": "string", "pattern": pattern}}})

    assert problem.field == "a"


def test_deep_arguments_for_a_recursive_union_are_refused_at_once() -> None:
    """The validator's own list of errors would double with every level; the message is about the argument instead."""
    branch = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    node = {"anyOf": [{**branch, "required": ["x"]}, {**branch, "required": ["y"]}]}
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"next": value}

    problem = problem_of({"tree": value}, {"properties": {"tree": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})

    assert problem.field == "tree"


def test_a_wide_union_without_recursion_is_told_in_detail() -> None:
    """Only schemas that contain themselves are told in outline."""
    branches = [{"type": "object", "properties": {"n": {"type": "integer"}}, "required": [name]} for name in "abcdef"]
    parameters = {"properties": {"list": {"type": "array", "items": {"anyOf": [*branches, {"type": "null"}]}}}}

    problem = problem_of({"list": [{"a": [[[[1]]]], "n": 1}, 7]}, parameters)

    assert problem.field == "list[1]"


def test_many_threads_may_make_the_first_call_at_once() -> None:
    """The schema is compiled once, and nobody sees it half done."""
    for _ in range(20):
        shared, start = checker(READ_FILE, "builtin"), threading.Barrier(8)

        def call(number: int, shared: ArgumentChecker = shared, start: threading.Barrier = start) -> Any:
            start.wait(10)
            return shared.prepare({"path": "a", "limit": str(number + 1)})

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(call, range(8)))
        assert results == [({"path": "a", "limit": number + 1}, None) for number in range(8)]


@pytest.mark.parametrize(
    "value", [object(), b"x", {1}, {1: 2}, float("nan"), 10**5000], ids=lambda value: type(value).__name__
)
def test_values_that_json_cannot_express_are_problems(value: Any) -> None:
    """A Python caller's mistake is told, not raised."""
    assert problem_of({"path": value}).message.startswith("Invalid arguments for read_file: ")


@pytest.mark.parametrize("arguments", [{"path": "\ud800", "limit": 0}, {"path": "a", "mode": "\ud800"}, {"\ud800": 1}])
def test_messages_can_be_sent_whatever_the_arguments_hold(arguments: Any) -> None:
    """Half a character in an argument does not make a message that no provider accepts."""
    problem = problem_of(arguments, {**READ_FILE, "additionalProperties": False})

    assert problem.message.encode()


# Property tests

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
GARBAGE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT, st.binary(max_size=3), st.builds(object)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(ANY_TEXT | st.integers(), inner, max_size=3), st.tuples(inner)
    ),
    max_leaves=6,
)
KEYWORDS = st.sampled_from([
    "type", "properties", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "enum", "const", "required",
    "minimum", "$ref", "$schema", "$id", "nullable", "pattern", "additionalProperties", "unevaluatedProperties",
    "default", "a", "b",
])  # fmt: skip
WORDS = st.sampled_from(
    ["object", "integer", "string", "array", "null", "#", "#/properties/a", "#/items", "a", "b", "5", "[1]"]
)
ANY_SCHEMA = st.recursive(
    st.one_of(WORDS, st.booleans(), st.none(), st.integers(-3, 3), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYWORDS, inner, max_size=4)),
    max_leaves=12,
)
ANY_PARAMETERS = st.dictionaries(KEYWORDS, ANY_SCHEMA, max_size=5)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYWORDS, inner, max_size=3)),
    max_leaves=6,
)
CALLS = st.dictionaries(KEYWORDS, JSON, max_size=4)
SOURCES: st.SearchStrategy[SourceKind] = st.sampled_from(["code", "builtin"])


@given(parameters=ANY_PARAMETERS, raw=st.one_of(GARBAGE, CALLS, CALLS.map(json.dumps), ANY_TEXT), source=SOURCES)
@settings(max_examples=300, deadline=None)
def test_prepare_never_raises(parameters: Any, raw: Any, source: SourceKind) -> None:
    """Whatever the schema and whatever the model sends, the answer is arguments and perhaps a problem."""
    ours = checker(parameters, source)

    arguments, problem = ours.prepare(raw)

    assert type(arguments) is dict
    assert problem is None or (problem.message.encode() and problem.expected)
    assert ours.schema_problem is None or ours.schema_problem.strip()


@given(parameters=ANY_PARAMETERS.filter(lambda schema: "nullable" not in json.dumps(schema)), arguments=CALLS)
@settings(max_examples=300, deadline=None)
def test_a_problem_is_reported_exactly_when_the_coerced_arguments_are_invalid(parameters: Any, arguments: Any) -> None:
    """The verdict on what the handler would get is that of the validator, no more and no less."""
    ours = checker(parameters)
    prepared, problem = ours.prepare(arguments)
    if ours.schema_problem is not None:
        return

    validator = jsonschema_rs.Draft202012Validator(
        {key: value for key, value in parameters.items() if key != "$schema"}
    )

    assert (problem is None) == validator.is_valid(prepared)
    assert not validator.is_valid(arguments) or prepared == arguments
