"""What a session is offered: selected, available, sorted, the same bytes every time."""

import json
import os
import subprocess
import sys
from copy import deepcopy

import pytest

from toolcrib.definitions.build import DefinitionBuilder
from toolcrib.registry.registry import ToolRegistry
from toolcrib.toolsets.resolve import ToolsetResolver


def schema(text="A tool"):
    return {
        "description": text,
        "parameters": {"type": "object", "properties": {"n": {"type": "integer", "description": "How many"}}},
    }


def handler(args, **kwargs):
    return "ok"


@pytest.fixture
def registry():
    made = ToolRegistry()
    for name, toolset in (("zebra", "animals"), ("ant", "animals"), ("oak", "plants")):
        made.register(name, toolset, schema(), handler)
    return made


@pytest.fixture
def builder(registry):
    return DefinitionBuilder(registry, ToolsetResolver(registry))


def test_definitions_are_sorted_and_in_openai_s_form(builder):
    """Each tool is a function with its name, description and parameters."""
    definitions = builder.build(["animals"])
    assert definitions.names == ["ant", "zebra"]
    assert definitions.tools[0] == {"type": "function", "function": {**schema(), "name": "ant"}}


@pytest.mark.parametrize(
    ("enabled", "disabled", "expected"),
    [
        (None, None, ["ant", "oak", "zebra"]),
        ([], None, []),
        (["plants", "animals"], ["animals"], ["oak"]),
        (None, ["animals"], ["oak"]),
        (["nothing_like_it"], None, []),
        (["nothing_like_it", "plants"], None, ["oak"]),
    ],
)
def test_toolsets_select_and_deny_wins(builder, enabled, disabled, expected):
    """None means all, an empty list none, an unknown name nothing."""
    assert builder.build(enabled, disabled).names == expected


def test_an_unknown_toolset_is_logged_as_an_error(builder, caplog):
    """The name is told, to people and in the value."""
    assert builder.build(["plnats"]).unknown == ["plnats"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "plnats" in caplog.text


def test_availability_is_asked_at_every_build(registry, builder):
    """A tool comes and goes with its check; a shared check is asked once a build."""
    asked = []
    answers = iter([True, False, True])

    def check():
        asked.append(1)
        return next(answers)

    for name in ("bat", "cat"):
        registry.register(name, "animals", schema(), handler, check_fn=check)
    seen = ["bat" in builder.build(["animals"]).names for _ in range(3)]
    assert seen == [True, False, True]
    assert len(asked) == 3


def test_dynamic_overrides_are_asked_at_every_build(registry, builder):
    """An override function decides anew each time, also one that changes what it returned before."""
    state = {"description": "first", "parameters": {"type": "object", "properties": {}}}
    registry.register("moody", "moods", schema(), handler, dynamic_schema_overrides=lambda: state)
    before = builder.build(["moods"]).tools[0]["function"]
    state["description"] = "second"
    state["parameters"]["properties"]["new"] = {"type": "string"}
    after = builder.build(["moods"]).tools[0]["function"]
    assert (before["description"], list(before["parameters"]["properties"])) == ("first", [])
    assert (after["description"], list(after["parameters"]["properties"])) == ("second", ["new"])


@pytest.mark.parametrize("override", [lambda: 1 / 0, lambda: None, lambda: "text"])
def test_an_override_that_fails_leaves_the_schema(registry, builder, override):
    """The static schema stands in."""
    registry.register("moody", "moods", schema("static"), handler, dynamic_schema_overrides=override)
    assert builder.build(["moods"]).tools[0]["function"]["description"] == "static"


def test_nobody_can_change_what_others_are_given(registry, builder):
    """Whatever a caller does to his definitions, the registry and the next caller see nothing of it."""
    untouched = deepcopy(builder.build().tools)
    kept = deepcopy([entry.schema for entry in registry.entries()])
    mine = builder.build().tools
    mine[0]["function"]["description"] = "changed"
    mine[0]["function"]["parameters"]["properties"]["evil"] = {"type": "string"}
    mine[1]["function"]["parameters"]["properties"]["n"].clear()
    del mine[2:]
    assert builder.build().tools == untouched
    assert builder.available(None) == untouched
    assert [entry.schema for entry in registry.entries()] == kept


def test_a_change_of_the_registry_shows_at_once(registry, builder):
    """New, replaced and removed tools are in the next build."""
    builder.build()
    registry.register("ant", "animals", schema("newer"), handler)
    registry.register("bee", "animals", schema(), handler)
    registry.deregister("zebra")
    definitions = builder.build(["animals"])
    assert definitions.names == ["ant", "bee"]
    assert definitions.tools[0]["function"]["description"] == "newer"


def test_many_selections_are_remembered_within_bounds(registry, builder):
    """Each selection is right, however many there were before."""
    for number in range(40):
        registry.register(f"tool_{number}", f"set_{number}", schema(), handler)
    for _ in range(2):
        assert [builder.build([f"set_{number}"]).names for number in range(40)] == [[f"tool_{n}"] for n in range(40)]


def nested(levels):
    made = {}
    for _ in range(levels):
        made = {"type": "object", "properties": {"a": made}}
    return {"description": "A deep tool", "parameters": made}


@pytest.mark.parametrize("levels", [60, 300, 450])
def test_a_schema_that_is_too_deep_costs_its_own_tool_alone(registry, builder, caplog, levels):
    """It is set aside with a reason, and again when it is registered anew; every other tool is offered."""
    for _ in range(2):
        registry.register("deep", "animals", nested(levels), handler)

        definitions = builder.build(["animals"])

        assert definitions.names == ["ant", "zebra"]
        assert "levels deep" in definitions.set_aside["deep"]
        assert builder.available(["deep", "ant"])[0]["function"]["name"] == "ant"
    assert "'deep' is not offered" in caplog.text


def test_a_schema_as_deep_as_people_write_is_offered(registry, builder):
    """Forty objects inside each other are no trouble."""
    registry.register("deep", "animals", nested(40), handler)

    definitions = builder.build(["animals"])

    assert definitions.names == ["ant", "deep", "zebra"]
    assert definitions.set_aside == {}


def test_an_override_that_is_too_deep_leaves_the_schema_as_it_was(registry, builder):
    """What a function gives for a schema harms nobody, though it may have no end."""
    endless = {}
    endless["parameters"] = endless
    registry.register("odd", "animals", schema("As it was"), handler, dynamic_schema_overrides=lambda: endless)

    for _ in range(2):
        definitions = builder.build(["animals"])

        assert definitions.names == ["ant", "odd", "zebra"]
        assert definitions.tools[1]["function"]["description"] == "As it was"


PRINTED = """
import json
from toolcrib import get_tool_definitions
print(json.dumps(get_tool_definitions(quiet_mode=True)))
"""


@pytest.mark.services
def test_definitions_are_the_same_bytes_in_every_process(tmp_path):
    """Prompt caches depend on it: no order of hashing or loading shows."""
    texts = set()
    for seed in ("0", "1", "4242"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TOOLCRIB_HOME": str(tmp_path / "home"),
        }
        done = subprocess.run(
            [sys.executable, "-c", PRINTED], capture_output=True, text=True, env=environment, timeout=60
        )
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1
    names = [tool["function"]["name"] for tool in json.loads(texts.pop())]
    assert names == sorted(names)
    assert "todo" in names


def test_a_search_index_is_built_once_for_the_same_tools(registry, builder):
    """Searching again costs no new index; a tool that comes or goes shows at once."""
    registry.register("door", "house", schema("Open the door"), handler)
    first = builder.index(None)
    assert builder.index(None) is first
    assert [match.name for match in first.search("door")] == ["door"]

    registry.register("gate", "house", schema("Open the gate"), handler)
    assert [match.name for match in builder.index(None).search("gate")] == ["gate"]

    registry.deregister("gate")
    assert builder.index(None).search("gate") == []


def test_one_new_tool_leaves_the_others_as_they_were_prepared(registry, builder):
    """Each entry is prepared once: callers share its parts across builds and selections."""
    before = {tool["function"]["name"]: tool["function"] for tool in builder.build().tools}
    registry.register("bee", "animals", schema(), handler)

    after = {tool["function"]["name"]: tool["function"] for tool in builder.build(["animals"]).tools}

    assert list(after) == ["ant", "bee", "zebra"]
    assert after["ant"]["parameters"] is before["ant"]["parameters"]


def test_a_single_definition_is_found_by_name(builder):
    """Only the tools that the session may use are found."""
    assert builder.find(None, "oak") == {"type": "function", "function": {**schema(), "name": "oak"}}
    assert builder.find(["ant"], "oak") is None
