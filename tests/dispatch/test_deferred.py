"""Tools behind the search: offered as a trio, called under their own names."""

import json

import pytest

from toolcrib.core.approvals import ApprovalAnswer
from toolcrib.core.types import SEARCH_TOOLS, Effect, ToolCall
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry

LONG = {
    "description": "Measures rainfall at a place. " + "x" * 4000,
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
}


def handler(args, **kwargs):
    return json.dumps(args)


@pytest.fixture
def crowded(make_runtime, add_tool):
    """A runtime with one tool that is not part of the core; `config` says what is done about it."""

    def make(config="", count=1, **options):
        runtime = make_runtime(config, registry=ToolRegistry(parent=default_registry), **options)
        for number in range(count):
            add_tool(runtime, f"rain_{number}", handler, schema=LONG, toolset="rain", effects=())
        return runtime

    return make


@pytest.mark.parametrize(
    ("config", "count", "window", "deferred"),
    [
        ("tools: {tool_search: off}", 50, None, False),
        ("tools: {tool_search: on}", 1, None, True),
        ("", 1, None, False),
        ("", 50, None, True),
        ("", 50, 10_000_000, False),
        ("", 2, 8_000, True),
        ("tools: {tool_search: {enabled: auto, threshold_pct: 90}}", 2, 8_000, False),
    ],
)
def test_tools_outside_the_core_are_deferred_when_they_cost_too_much(crowded, config, count, window, deferred):
    """on, off, or by their share of the context; the trio is there exactly when something is hidden."""
    definitions = crowded(config, count).definitions(["rain", "todo"], context_window_tokens=window)
    names = set(definitions.names)
    assert (names >= SEARCH_TOOLS) is deferred
    assert bool(names & SEARCH_TOOLS) is deferred
    assert ("rain_0" in names) is not deferred
    assert "todo" in names
    assert definitions.deferred == (sorted(f"rain_{n}" for n in range(count)) if deferred else [])
    assert definitions.names == sorted(names)


def test_nothing_is_deferred_where_nobody_asked_for_it(crowded):
    """defer=False gives all tools by name."""
    assert "rain_0" in crowded("tools: {tool_search: on}").definitions(["rain"], defer=False).names


def test_nothing_is_hidden_that_could_not_be_found(make_runtime, add_tool):
    """A registry without the trio hides nothing."""
    runtime = make_runtime("tools: {tool_search: on}")
    add_tool(runtime, "rain", handler)
    assert runtime.definitions(["test"]).names == ["rain"]


async def test_search_describe_and_call(crowded):
    """What the search finds can be described and called."""
    runtime = crowded("tools: {tool_search: on}")
    found = json.loads((await runtime.call("tool_search", {"query": "rainfall"})).content)
    assert [tool["name"] for tool in found["matches"]] == ["rain_0"]
    described = json.loads((await runtime.call("tool_describe", {"name": "rain_0"})).content)
    assert described["parameters"] == LONG["parameters"]
    result = await runtime.call("tool_call", {"name": "rain_0", "arguments": {"n": "3"}})
    assert (result.name, result.content) == ("rain_0", '{"n": 3}')


@pytest.mark.parametrize("arguments", [{"n": 1}, '{"n": 1}'])
async def test_an_inner_call_passes_the_pipeline_under_its_own_name_with_all_ids(crowded, arguments):
    """Hooks see the tool that runs, once, with the ids of the call."""
    runtime = crowded()
    seen = []
    for name in ("pre_tool_call", "post_tool_call"):
        runtime.hooks.register(name, lambda **kwargs: seen.append(kwargs))
    ids = {"session_id": "s", "task_id": "t", "turn_id": "u", "api_request_id": "r"}
    ctx = runtime.context(call_id="c", **ids)
    await runtime.call("tool_call", {"name": "rain_0", "arguments": arguments}, ctx=ctx)
    assert len(seen) == 2
    for kwargs in seen:
        assert (kwargs["tool_name"], kwargs["args"], kwargs["tool_call_id"]) == ("rain_0", {"n": 1}, "c")
        assert {key: kwargs[key] for key in ids} == ids


async def test_the_scope_of_a_session_holds_behind_the_search(crowded):
    """The trio may be used by every session, and reaches only that session's tools."""
    runtime = crowded(count=2)
    ctx = runtime.context(allowed_tools=frozenset({"rain_0"}))
    found = json.loads((await runtime.call("tool_search", {"query": "rainfall"}, ctx=ctx)).content)
    assert [tool["name"] for tool in found["matches"]] == ["rain_0"]
    assert (await runtime.call("tool_describe", {"name": "rain_1"}, ctx=ctx)).is_error
    assert (await runtime.call("tool_call", {"name": "rain_0"}, ctx=ctx)).content == "{}"
    blocked = await runtime.call("tool_call", {"name": "rain_1"}, ctx=ctx)
    assert (blocked.name, blocked.error_type) == ("rain_1", "tool_scope_block")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"name": "tool_call"},
        {"name": "tool_search"},
        {"name": "rain_0", "arguments": 5},
        {"name": 5},
        "{",
        "[]",
        "5",
    ],
)
async def test_an_inner_call_that_cannot_be_found_is_a_clear_error(crowded, arguments):
    """A call of nothing, or of the trio itself, tells the model how it is done."""
    result = await crowded().call("tool_call", arguments)
    assert (result.is_error, result.name) == (True, "tool_call")


async def test_an_unknown_inner_tool_is_an_unknown_tool(crowded):
    """The error speaks of the tool that was meant."""
    result = await crowded().call("tool_call", {"name": "rain_O", "arguments": {}})
    assert json.loads(result.content) == {"error": "Unknown tool: rain_O", "did_you_mean": ["rain_0"]}


async def test_the_gate_and_the_deadlines_apply_to_the_inner_tool(crowded, add_tool):
    """Wrapping a call changes nothing about what it may do."""
    runtime = crowded()
    add_tool(runtime, "eraser", handler, effects=(Effect("delete", "/x"),))
    assert (await runtime.call("tool_call", {"name": "eraser", "arguments": {}})).error_type == "denied"


async def test_batches_plan_by_the_effects_of_the_inner_call(crowded, add_tool):
    """Two wrapped writes to one file do not overlap; two wrapped calls without effects do."""
    from toolcrib.dispatch.parallel import plan

    class Yes:
        async def ask(self, request):
            return ApprovalAnswer(choice="once")

    runtime = crowded(approver=Yes())
    add_tool(runtime, "writer", handler, effects=(Effect("write", "/x"),))

    def wrapped(*names):
        return [
            ToolCall(id=str(i), name="tool_call", arguments={"name": n, "arguments": {}}) for i, n in enumerate(names)
        ]

    def groups(*names):
        pipeline = runtime._pipeline
        return plan(pipeline, [pipeline.prepare(one.name, one.arguments) for one in wrapped(*names)], runtime.context())

    assert groups("writer", "writer") == [[0], [1]]
    assert groups("rain_0", "rain_0", "writer") == [[0, 1, 2]]
    results = await runtime.call_many(wrapped("writer", "rain_0"))
    assert [result.name for result in results] == ["writer", "rain_0"]
