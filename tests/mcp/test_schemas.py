"""Schemas of servers, of every broken kind: each costs its own tool, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mcp.real_servers import raw, text_of
from toolcrib.mcp.client.tool_list import repair_tool_page, schema_problem

WithServers = Callable[..., Any]
GOOD = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BROKEN: dict[str, Any] = {
    "no schema": {"name": "bad"},
    "null": {"name": "bad", "inputSchema": None},
    "text": {"name": "bad", "inputSchema": "object"},
    "list": {"name": "bad", "inputSchema": []},
    "root is a string": {"name": "bad", "inputSchema": {"type": "string"}},
    "root is an array": {"name": "bad", "inputSchema": {"type": "array", "items": {}}},
    "unknown type": {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"type": "sting"}}}},
    "properties is a list": {"name": "bad", "inputSchema": {"type": "object", "properties": ["a"]}},
    "property is text": {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": "string"}}},
    "required is text": {"name": "bad", "inputSchema": {"type": "object", "required": "a"}},
    "bad pattern": {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"pattern": "("}}}},
    "reference to nothing": {
        "name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}}},
    "reference to the network": {
        "name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/s.json"}}}},
    "negative length": {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"minLength": -1}}}},
    "too deep": {"name": "bad", "inputSchema": nested(60)},
    "deeper than can be read": {"name": "bad", "inputSchema": nested(150)},
    "too long": {"name": "bad", "inputSchema": {"type": "object", "description": "x" * 300_000}},
    "doubles with each step": {"name": "bad", "inputSchema": {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": {
            **{f"s{step}": {"anyOf": [{"$ref": f"#/$defs/s{step + 1}"}] * 2} for step in range(40)}, "s40": {}}}},
    "no name": {"inputSchema": {"type": "object"}},
    "empty name": {"name": " ", "inputSchema": {"type": "object"}},
    "name is a number": {"name": 7, "inputSchema": {"type": "object"}},
    "twice": {**GOOD},
    "no object": "a tool",
    "needs a task": {"name": "bad", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
}  # fmt: skip


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("wrong", BROKEN)
async def test_a_broken_tool_is_set_aside_with_a_reason(with_servers: WithServers, tmp_path: Path, wrong: str) -> None:
    """The other tools of the server work, and people are told which one is missing and why."""
    listed = tmp_path / "tools.json"
    listed.write_text(json.dumps([GOOD, BROKEN[wrong]]))
    runtime = await with_servers({"s": raw(tools_file=str(listed))})

    [status] = runtime.mcp.servers()

    assert status.state == "ready"
    assert set(runtime.mcp.tool_names("s")) == {"echo"}
    [(_, reason)] = status.rejected
    assert reason
    assert text_of(await runtime.call("mcp__s__echo", {"text": "x"})) == "x"


ODD = {
    "no type": {"properties": {"text": {}}},
    "empty": {},
    "several types": {"type": ["object", "null"], "properties": {"text": {}}},
    "boolean property": {"type": "object", "properties": {"text": True}},
    "choice at the root": {"type": "object", "oneOf": [{"required": ["text"]}, {"required": ["other"]}]},
    "definitions": {
        "type": "object",
        "properties": {"text": {"$ref": "#/$defs/t"}},
        "$defs": {"t": {"type": "string"}},
    },
    "recursive": {"type": "object", "properties": {"text": {"type": "string"}, "child": {"$ref": "#"}}},
    "older draft": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
    "unknown keywords": {"type": "object", "x-mine": 1, "properties": {"text": {"format": "unknown"}}},
}


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("schema", ODD.values(), ids=ODD)
async def test_an_odd_but_legal_schema_is_accepted(with_servers: WithServers, schema: dict[str, Any]) -> None:
    """What JSON Schema allows, or everybody understands, is no reason to lose a tool."""
    runtime = await with_servers({"s": raw(tools=[{"name": "echo", "inputSchema": schema}])})

    assert runtime.mcp.servers()[0].rejected == ()
    assert text_of(await runtime.call("mcp__s__echo", {"text": "x"})) == "x"


OPTIONAL: list[dict[str, Any]] = [
    {"annotations": {"readOnlyHint": "yes of course"}},
    {"annotations": "read only"},
    {"outputSchema": {"type": "string"}},
    {"outputSchema": 5},
    {"description": ["a", "list"]},
    {"title": 1},
    {"icons": "none"},
]


@pytest.mark.parametrize("part", OPTIONAL, ids=str)
async def test_a_broken_part_that_nobody_needs_is_left_out(with_servers: WithServers, part: dict[str, Any]) -> None:
    """The tool stays, without it; a hint that cannot be read is none."""
    runtime = await with_servers({"s": raw(tools=[{**GOOD, **part}], trust="read_only")})

    entry = runtime.registry.get_entry("mcp__s__echo")

    assert entry is not None
    assert entry.effects is None


async def test_a_result_that_breaks_its_own_schema_is_an_error(with_servers: WithServers) -> None:
    """Structured output that is not what the tool promised is not handed on."""
    promised = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"name": "bad_output", "inputSchema": {"type": "object"}, "outputSchema": promised}
    runtime = await with_servers({"s": raw(tools=[tool])})

    result = await runtime.call("mcp__s__bad_output", {})

    assert result.is_error
    assert "structured output" in result.error_message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "required", "name", "inputSchema", "items", "$ref", "enum"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
def test_no_list_of_tools_breaks_the_reading(tools: list[Any]) -> None:
    """Whatever stands in the list: what is left is what the SDK accepts, and each tool is either there or set aside."""
    result = {"tools": [GOOD, *tools]}

    rejected = repair_tool_page(result, "2025-11-25").rejected

    assert len(result["tools"]) + len(rejected) == len(tools) + 1
    assert result["tools"][0]["name"] == "echo"
    assert repair_tool_page({"tools": list(result["tools"])}, "2025-11-25").rejected == []


@given(JSON.filter(lambda value: isinstance(value, dict)))
def test_every_schema_is_judged_without_failing(schema: dict[str, Any]) -> None:
    """A verdict for whatever a server sends."""
    assert isinstance(schema_problem(schema), str)
