"""The official JSON Schema test suite, draft 2020-12, through our validator and our argument checker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from toolcrib.core.types import ToolEntry
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.dispatch.schema import CompiledSchema, validate

SUITE = Path(__file__).parent.parent / "data" / "json_schema_suite_2020_12.json"


@dataclass(frozen=True)
class Group:
    keyword: str
    description: str
    schema: Any
    cases: list[tuple[str, Any, bool]]

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of a tool whose only argument, `value`, is what the group is about."""
        schema = self.schema
        if isinstance(schema, dict) and "$id" not in schema:
            # Its own identity, so that "#/…" keeps meaning the group's schema and not the tool's.
            schema = {"$id": "https://case.invalid/schema", **schema}
        return {"type": "object", "properties": {"value": schema}, "required": ["value"]}


GROUPS = [
    Group(keyword, description, schema, [tuple(case) for case in cases])
    for keyword, description, schema, cases in json.loads(SUITE.read_text(encoding="utf-8"))
]


def checker(parameters: Any) -> ArgumentChecker:
    return ArgumentChecker(ToolEntry("probe", "test", {"parameters": parameters}, lambda args: "ok"))


KEYWORDS = sorted({group.keyword for group in GROUPS})


def groups_of(keyword: str) -> list[Group]:
    return [group for group in GROUPS if group.keyword == keyword]


def test_the_suite_is_there_in_full() -> None:
    """A cut data file would make the other tests pass for the wrong reason."""
    assert sum(len(group.cases) for group in GROUPS) > 1_150
    assert len({group.keyword for group in GROUPS}) >= 43


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_verdicts_equal_those_of_the_suite(keyword: str) -> None:
    """Whether a value is valid is decided as the official suite decides it, also inside of a tool's schema."""
    for group in groups_of(keyword):
        compiled = CompiledSchema(group.parameters)

        verdicts = [compiled.is_valid({"value": instance}) for _, instance, _ in group.cases]

        assert compiled.problem is None, group.description
        assert verdicts == [is_valid for _, _, is_valid in group.cases], group.description


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_valid_arguments_are_accepted_and_never_altered(keyword: str) -> None:
    """What the suite calls valid passes through `prepare` as it is; the invalid passes only after a change."""
    for group in groups_of(keyword):
        ours = checker(group.parameters)

        for description, instance, is_valid in group.cases:
            prepared, problem = ours.prepare({"value": instance})
            if is_valid:
                assert (prepared, problem) == ({"value": instance}, None), (group.description, description)
            else:
                assert problem is not None or prepared != {"value": instance}, (group.description, description)
                assert problem is not None or validate(group.parameters, prepared), (group.description, description)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_object_instances_are_judged_as_whole_calls(keyword: str) -> None:
    """Where the suite's instance is an object, it is a call of a tool with that schema, with the same verdict."""
    for group in groups_of(keyword):
        if not isinstance(group.schema, dict):
            continue
        ours = checker(group.schema)

        for description, instance, is_valid in group.cases:
            if not isinstance(instance, dict):
                continue
            prepared, problem = ours.prepare(json.dumps(instance))
            if is_valid:
                assert (prepared, problem) == (instance, None), (group.description, description)
            else:
                assert problem is not None or prepared != instance, (group.description, description)
