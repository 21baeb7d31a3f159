"""Misspelt argument names: refused with the name that was meant; other unknown names stay legal."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dispatch.test_arguments import checker
from toolcrib.core.spelling import is_misspelling

MISSPELT = [
    ("filePath", "file_path"), ("file-path", "file_path"), ("FILE_PATH", "file_path"), ("filepath", "file_path"),
    ("fiel_path", "file_path"), ("pth", "path"), ("paht", "path"), ("paths", "path"), ("limt", "limit"),
    ("langauge", "language"), ("recipent", "recipient"), ("colour", "color"), ("maxResults", "max_results"),
    ("max_result", "max_results"), ("temparture", "temperature"), ("descripton", "description"), ("urls", "url"),
]  # fmt: skip
OTHER_NAMES = [
    ("test", "text"), ("data", "date"), ("min_value", "max_value"), ("start_date", "end_date"), ("line1", "line2"),
    ("message_id", "message"), ("include", "exclude"), ("node", "mode"), ("too", "to"), ("q", "query"),
    ("timeout_ms", "timeout"), ("x_path", "path"), ("verbose", "version"), ("note", "name"), ("source", "course"),
    ("uri", "url"), ("", "a"), ("ab", "ba"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "known"), MISSPELT)
def test_typing_errors_and_other_spellings_are_recognised(given: str, known: str) -> None:
    """A slip of a letter or two, another case or another separator."""
    assert is_misspelling(given, known)


@pytest.mark.parametrize(("given", "known"), OTHER_NAMES)
def test_other_words_are_not_misspellings(given: str, known: str) -> None:
    """Another word or another number is another name."""
    assert not is_misspelling(given, known)


PLACE = {"type": "object", "properties": {"city": {"type": "string"}, "zip_code": {"type": "string"}}}
SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer"},
        "place": PLACE,
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}},
        "options": {"anyOf": [PLACE, {"type": "null"}]},
    },
    "required": ["query"],
    "$defs": {"place": PLACE},
}
REFUSED = [
    ({"query": "x", "limt": 5}, "'limt'", "'limit'"),
    ({"query": "x", "place": {"zipCode": "1"}}, "'place.zipCode'", "'zip_code'"),
    ({"query": "x", "places": [{"city": "a"}, {"cty": "b"}]}, "'places[1].cty'", "'city'"),
    ({"query": "x", "options": {"zip-code": "1"}}, "'options.zip-code'", "'zip_code'"),
]


@pytest.mark.parametrize(("arguments", "name", "meant"), REFUSED)
def test_a_misspelt_optional_name_is_refused(arguments: Any, name: str, meant: str) -> None:
    """Otherwise the tool would ignore it without a word; nested objects count as well."""
    _, problem = checker(SEARCH, "mcp").prepare(arguments)

    assert problem is not None
    assert f"{name} is not a known argument (did you mean {meant}?)" in problem.message


LEGAL = [
    {"query": "x", "trace_id": 5},
    {"query": "x", "limit": 1, "limt": 5},
    {"query": "x", "place": {"country": "NO"}},
    {"query": "x", "places": [{"city": "a", "cty": "b"}]},
]


@pytest.mark.parametrize("arguments", LEGAL, ids=str)
def test_other_unknown_names_stay_legal(arguments: Any) -> None:
    """A name that resembles nothing, or only a name that is given as well, may be an undocumented argument."""
    assert checker(SEARCH, "mcp").prepare(arguments) == (arguments, None)


@pytest.mark.parametrize(
    "says", [{"additionalProperties": True}, {"additionalProperties": {"type": "integer"}},
             {"patternProperties": {"^l": {}}}, {"unevaluatedProperties": True}], ids=str,
)  # fmt: skip
def test_a_schema_that_says_what_else_is_legal_decides_itself(says: dict[str, Any]) -> None:
    """The author thought of further names."""
    parameters = {"type": "object", "properties": {"limit": {"type": "integer"}}, **says}

    assert checker(parameters, "mcp").prepare({"limt": 5}) == ({"limt": 5}, None)


def test_deep_values_and_recursive_schemas_cost_little() -> None:
    """Each part of the schema is looked at once for each value, whatever the number of branches."""
    node: dict[str, Any] = {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "value": {}}}
    arguments: dict[str, Any] = {"valeu": 1}
    for _ in range(15):
        arguments = {"next": arguments}

    _, problem = checker(node, "mcp").prepare(arguments)

    assert problem is not None
    assert "did you mean 'value'?" in problem.message
