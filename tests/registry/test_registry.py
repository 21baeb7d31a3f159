"""The registry: what a registration keeps, what every read gives, and that threads and overlays do no harm."""

from __future__ import annotations

import copy
import enum
import gc
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolcrib
from tests.registry.declaring import declare, ok, schema
from toolcrib.core.errors import RegistrationError
from toolcrib.core.types import Effect, Source, Unavailable
from toolcrib.registry.registry import ToolRegistry

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry()


# What a registration keeps


def test_all_twelve_parameters_and_the_effects_are_kept(registry: ToolRegistry) -> None:
    """The entry holds everything that the author said, under the contract's names."""

    def check() -> bool:
        return True

    def overrides() -> dict[str, Any]:
        return {}

    effects = [Effect("network", "example.org")]
    registry.register(
        "weather", "forecast", schema(), ok, check, ["KEY_A", "KEY_B"],
        True, "Tells", "🌤", 500, overrides, False, effects,
    )  # fmt: skip

    entry = registry.get_entry("weather")
    assert entry is not None
    assert (entry.name, entry.toolset, entry.handler, entry.check_fn) == ("weather", "forecast", ok, check)
    assert (entry.requires_env, entry.is_async, entry.description, entry.emoji) == (
        ["KEY_A", "KEY_B"], True, "Tells", "🌤",
    )  # fmt: skip
    assert (entry.max_result_size_chars, entry.dynamic_schema_overrides) == (500, overrides)
    assert entry.effects == (Effect("network", "example.org"),)


def test_only_the_first_four_parameters_are_needed(registry: ToolRegistry) -> None:
    """Everything else has the contract's default."""
    registry.register("weather", "forecast", schema("Says the weather"), ok)

    entry = registry.get_entry("weather")
    assert entry is not None
    assert (entry.check_fn, entry.requires_env, entry.is_async, entry.emoji) == (None, [], False, "")
    assert (entry.max_result_size_chars, entry.dynamic_schema_overrides, entry.effects) == (None, None, None)
    assert entry.description == "Says the weather"


def test_a_missing_name_and_missing_parameters_are_filled(registry: ToolRegistry) -> None:
    """The name comes from the argument, and no parameters mean an empty object."""
    declare(registry, "bare", schema={"description": "x"})

    assert registry.get_schema("bare") == {
        "description": "x",
        "name": "bare",
        "parameters": {"type": "object", "properties": {}},
    }


def test_the_argument_decides_about_the_name(registry: ToolRegistry) -> None:
    """A schema that carries another name is offered under the registered one."""
    declare(registry, "real", schema={"name": "other", "parameters": {}})

    assert registry.get_schema("real") == {"name": "real", "parameters": {}}


@pytest.mark.parametrize("parameters", [True, {}, {"type": ["object", "null"]}, {"$ref": "#/$defs/x"}, [], "odd"])
def test_odd_parameters_are_accepted(registry: ToolRegistry, parameters: Any) -> None:
    """Only what is not a dict or not JSON is refused; the dialects repair the rest."""
    declare(registry, "odd", schema={"parameters": parameters})

    assert registry.get_schema("odd") == {"name": "odd", "parameters": parameters}


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("given_schema", "kept"),
    [
        (OrderedDict(x=1), {"x": 1}),
        ({"enum": ("a", "b")}, {"enum": ["a", "b"]}),
        ({"enum": [Colour.RED]}, {"enum": ["red"]}),
        ({1: "number as key"}, {"1": "number as key"}),
    ],
)
def test_what_json_can_say_is_kept_as_plain_json(registry: ToolRegistry, given_schema: Any, kept: Any) -> None:
    """Tuples, enums and subclasses become the values that reach a provider."""
    declare(registry, "plain", schema={"parameters": given_schema})

    assert registry.get_schema("plain") == {"name": "plain", "parameters": kept}
    assert type(registry.get_schema("plain")["parameters"]) is dict  # type: ignore[index]


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_every_json_object_is_a_schema(json_object: dict[str, Any]) -> None:
    """Whatever JSON an author or a server writes, it is registered and offered."""
    registry = ToolRegistry()
    declare(registry, "any", schema=json_object)

    [definition] = registry.get_definitions({"any"})
    assert json.loads(json.dumps(definition)) == definition
    assert definition["function"]["name"] == "any"


def test_an_author_who_changes_his_schema_afterwards_changes_nothing(registry: ToolRegistry) -> None:
    """Entries are never changed: not by the dict they were made from."""
    mine = schema()
    declare(registry, "stable", schema=mine)
    before = copy.deepcopy(registry.get_schema("stable"))

    mine["parameters"]["properties"]["text"]["type"] = {"not", "json"}

    assert registry.get_schema("stable") == before


def endless() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    return loop


def deep() -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for _ in range(20_000):
        nested = {"items": nested}
    return nested


UNUSABLE: dict[str, dict[str, Any]] = {
    "schema is a list": {"schema": [1]},
    "schema is None": {"schema": None},
    "schema is text": {"schema": "{}"},
    "schema holds a set": {"schema": {"enum": {1}}},
    "schema holds bytes": {"schema": {"default": b"x"}},
    "schema holds NaN": {"schema": {"default": float("nan")}},
    "schema holds infinity": {"schema": {"default": float("inf")}},
    "schema holds itself": {"schema": endless()},
    "schema is too deep": {"schema": deep()},
    "schema holds half a character": {"schema": {"description": "\ud800"}},
    "schema holds a function": {"schema": {"default": ok}},
    "schema has a tuple as key": {"schema": {(1, 2): 3}},
    "name is empty": {"name": ""},
    "name is None": {"name": None},
    "name is half a character": {"name": "\udc00"},
    "toolset is empty": {"toolset": ""},
    "toolset is a list": {"toolset": ["a"]},
    "handler is None": {"handler": None},
    "handler is text": {"handler": "ok"},
    "check_fn is True": {"check_fn": True},
    "overrides are a dict": {"dynamic_schema_overrides": {}},
    "variables are a number": {"requires_env": 5},
    "variables are dicts": {"requires_env": [{"name": "KEY"}]},
    "effects are text": {"effects": "network"},
    "effects are one effect": {"effects": Effect("network")},
    "effects hold text": {"effects": ("network",)},
    "limit is zero": {"max_result_size_chars": 0},
    "limit is negative": {"max_result_size_chars": -1},
    "limit is NaN": {"max_result_size_chars": float("nan")},
    "limit is text": {"max_result_size_chars": "100"},
    "limit is True": {"max_result_size_chars": True},
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_cannot_be_used_is_an_error_for_the_author(registry: ToolRegistry, what: str) -> None:
    """Code that registers gets a RegistrationError (a ValueError), and nothing is registered."""
    with pytest.raises(RegistrationError) as caught:
        declare(registry, **{"name": "broken", **UNUSABLE[what]})

    assert isinstance(caught.value, ValueError)
    assert registry.get_all_tool_names() == []
    assert registry.generation == 0


@pytest.mark.parametrize("what", UNUSABLE)
def test_inside_a_tool_file_the_error_costs_one_tool(
    registry: ToolRegistry, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the file goes on, and the error is logged and kept for `doctor`."""
    with registry.loading(Source("user", "mine.py")) as loading:
        declare(registry, "before")
        declare(registry, **{"name": "broken", **UNUSABLE[what]})
        declare(registry, "after")

    assert registry.get_all_tool_names() == ["after", "before"]
    assert loading.registered == ["before", "after"]
    assert len(registry.rejections) == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("limit", [1, 100_000, 0.5, float("inf"), None, 10**400])
def test_a_result_limit_is_a_number_infinity_or_none(registry: ToolRegistry, limit: Any) -> None:
    """`inf` means never cut; None means the default."""
    declare(registry, "limited", max_result_size_chars=limit)

    assert registry.get_max_result_size("limited") == (100_000 if limit is None else limit)
    assert registry.get_max_result_size("limited", 7) == (7 if limit is None else limit)


def test_one_variable_may_be_given_as_text(registry: ToolRegistry) -> None:
    """A single name is one variable, not one for each letter."""
    declare(registry, "one", requires_env="SOME_KEY")

    assert registry.get_toolset_requirements()["some"]["env_vars"] == ["SOME_KEY"]


def plain(args: Any) -> str:
    return "ok"


def named(args: Any, task_id: Any = None, *, session_id: Any = None) -> str:
    return f"{task_id}{session_id}"


def with_context(args: Any, ctx: Any) -> str:
    return "ok"


def positional_only(args: Any, ctx: Any = None, /, task_id: Any = None) -> str:
    return "ok"


class Handlers:
    def method(self, args: Any, ctx: Any = None) -> str:
        return "ok"

    def __call__(self, args: Any, task_id: Any = None) -> str:
        return "ok"


@pytest.mark.parametrize(
    ("handler", "takes_context", "keywords"),
    [
        (plain, False, frozenset()),
        (ok, False, None),
        (named, False, frozenset({"task_id", "session_id"})),
        (with_context, True, frozenset({"ctx"})),
        (positional_only, False, frozenset({"task_id"})),
        (Handlers().method, True, frozenset({"ctx"})),
        (Handlers(), False, frozenset({"task_id"})),
        (partial(named, session_id="s"), False, frozenset({"task_id"})),
        (partial(Handlers.method, Handlers()), True, frozenset({"ctx"})),
        (lambda args, **extra: "ok", False, None),
        (print, False, None),
        (Handlers, False, None),
    ],
)
def test_what_a_handler_takes_by_keyword_is_known(
    registry: ToolRegistry, handler: Any, takes_context: bool, keywords: Any
) -> None:
    """A handler receives the context only if it names it, and no keyword that it does not take."""
    declare(registry, "some_tool", handler=handler)

    entry = registry.get_entry("some_tool")
    assert entry is not None
    assert entry.takes_context is takes_context
    assert entry.keywords == keywords


# Reading


@pytest.fixture
def filled(registry: ToolRegistry) -> ToolRegistry:
    declare(registry, "zebra", "animals", emoji="🦓", requires_env=["ZOO", "KEY"])
    declare(registry, "ant", "animals", check_fn=never, requires_env=["KEY"], max_result_size_chars=10)
    declare(registry, "oak", "trees", check_fn=never, requires_env=["FOREST"])
    declare(registry, "ivy", "plants")
    return registry


def never() -> bool:
    return False


def always() -> bool:
    return True


def test_names_and_toolsets_come_sorted(filled: ToolRegistry) -> None:
    """The order does not depend on who registered first."""
    assert filled.get_all_tool_names() == ["ant", "ivy", "oak", "zebra"]
    assert filled.get_tool_names_for_toolset("animals") == ["ant", "zebra"]
    assert filled.get_registered_toolset_names() == ["animals", "plants", "trees"]
    assert filled.get_tool_to_toolset_map() == {
        "ant": "animals", "ivy": "plants", "oak": "trees", "zebra": "animals",
    }  # fmt: skip


def test_unknown_names_read_as_nothing(filled: ToolRegistry) -> None:
    """Lookups answer as the reference does and never raise."""
    assert filled.get_entry("nobody") is None
    assert filled.get_schema("nobody") is None
    assert filled.get_toolset_for_tool("nobody") is None
    assert filled.get_tool_names_for_toolset("nothing") == []
    assert filled.get_toolset_alias_target("nothing") is None
    assert filled.get_emoji("nobody") == "⚡"
    assert filled.get_emoji("nobody", "?") == "?"
    assert filled.get_max_result_size("nobody") == 100_000
    assert filled.get_max_result_size("nobody", 5) == 5
    assert filled.get_definitions({"nobody"}) == []


def test_a_tool_without_emoji_has_the_default_one(filled: ToolRegistry) -> None:
    """`⚡`, or what the caller prefers."""
    assert filled.get_emoji("zebra", "?") == "🦓"
    assert filled.get_emoji("ivy") == "⚡"
    assert filled.get_emoji("ivy", "?") == "?"


def test_definitions_are_sorted_and_leave_out_what_is_not_available(filled: ToolRegistry) -> None:
    """Each is `{type, function}` with the tool's schema and name; the caller's order does not matter."""
    definitions = filled.get_definitions(["zebra", "ivy", "ant", "nobody"])

    assert definitions == [
        {"type": "function", "function": {**schema(), "name": "ivy"}},
        {"type": "function", "function": {**schema(), "name": "zebra"}},
    ]


def test_overviews_have_the_shapes_of_the_reference(filled: ToolRegistry) -> None:
    """A user interface finds the keys that it knows."""
    assert filled.check_toolset_requirements() == {"animals": True, "plants": True, "trees": False}
    assert filled.get_available_toolsets() == {
        "animals": {
            "available": True,
            "tools": ["ant", "zebra"],
            "description": "",
            "requirements": ["KEY", "ZOO"],
        },
        "plants": {"available": True, "tools": ["ivy"], "description": "", "requirements": []},
        "trees": {"available": False, "tools": ["oak"], "description": "", "requirements": ["FOREST"]},
    }
    assert filled.get_toolset_requirements() == {
        "animals": {
            "name": "animals",
            "env_vars": ["KEY", "ZOO"],
            "check_fn": never,
            "setup_url": None,
            "tools": ["ant", "zebra"],
        },
        "plants": {"name": "plants", "env_vars": [], "check_fn": None, "setup_url": None, "tools": ["ivy"]},
        "trees": {"name": "trees", "env_vars": ["FOREST"], "check_fn": never, "setup_url": None, "tools": ["oak"]},
    }
    assert filled.check_tool_availability(quiet=True) == (
        ["animals", "plants"],
        [{"name": "trees", "env_vars": ["FOREST"], "tools": ["oak"]}],
    )


def test_a_toolset_is_available_when_nothing_is_checked_or_one_tool_passes(registry: ToolRegistry) -> None:
    """The contract's rule, toolset by toolset."""
    declare(registry, "a", "unchecked")
    declare(registry, "b", "refused", check_fn=never)
    declare(registry, "c", "half", check_fn=never)
    declare(registry, "d", "half", check_fn=always)

    assert registry.is_toolset_available("unchecked")
    assert not registry.is_toolset_available("refused")
    assert registry.is_toolset_available("half")
    assert not registry.is_toolset_available("unknown")


def test_what_a_reader_changes_is_his_own(filled: ToolRegistry) -> None:
    """Lists and dicts that are handed out are copies."""
    filled.get_all_tool_names().clear()
    filled.entries().clear()
    filled.get_registered_toolset_names().clear()
    filled.get_tool_to_toolset_map().clear()
    filled.get_registered_toolset_aliases()["x"] = "y"
    filled.get_definitions({"ivy"})[0]["function"]["name"] = "changed"

    assert filled.get_all_tool_names() == ["ant", "ivy", "oak", "zebra"]
    assert filled.get_registered_toolset_names() == ["animals", "plants", "trees"]
    assert filled.get_registered_toolset_aliases() == {}
    assert filled.get_definitions({"ivy"})[0]["function"]["name"] == "ivy"


def test_the_package_s_registry_module_stands_for_the_default_registry() -> None:
    """`from toolcrib import registry` can be used like the object, although it is a module with submodules."""
    facade = toolcrib.registry

    assert facade.entries() == facade.registry.entries()
    assert facade.get_all_tool_names() == facade.registry.get_all_tool_names()
    assert facade._tools is facade.registry._tools
    with pytest.raises(AttributeError):
        _ = facade.no_such_thing


# Dynamic schemas


def test_overrides_are_merged_anew_at_every_build(registry: ToolRegistry) -> None:
    """The merge is shallow, and what it gave before does not stick."""
    answers = [{"description": "first"}, {"parameters": {"type": "object"}}]
    declare(registry, "live", dynamic_schema_overrides=lambda: answers.pop(0))

    [first], [second] = registry.get_definitions({"live"}), registry.get_definitions({"live"})

    assert first["function"] == {**schema(), "name": "live", "description": "first"}
    assert second["function"] == {**schema(), "name": "live", "parameters": {"type": "object"}}


@pytest.mark.parametrize("answer", [None, [], "text", 5])
def test_overrides_that_are_no_dict_are_ignored(registry: ToolRegistry, answer: Any) -> None:
    """The static schema stands."""
    declare(registry, "live", dynamic_schema_overrides=lambda: answer)

    assert registry.get_definitions({"live"})[0]["function"] == {**schema(), "name": "live"}


def test_overrides_that_raise_leave_the_static_schema(registry: ToolRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """A warning says so, and the other tools are not touched."""
    declare(registry, "live", dynamic_schema_overrides=lambda: 1 / 0)
    declare(registry, "other")

    definitions = registry.get_definitions({"live", "other"})

    assert [tool["function"]["name"] for tool in definitions] == ["live", "other"]
    assert [(record.levelno, "live" in record.getMessage()) for record in caplog.records] == [(logging.WARNING, True)]


# Generation, removal, aliases


def test_every_change_moves_the_generation(registry: ToolRegistry) -> None:
    """Registering, replacing, aliasing and removing each count; reading and failing do not."""
    assert registry._generation == 0
    declare(registry, "a")
    declare(registry, "a")
    registry.register_toolset_alias("other", "some")
    registry.deregister("a")
    assert registry._generation == 4

    before = registry.generation
    registry.deregister("a")
    registry.get_definitions(registry.get_all_tool_names())
    registry.check_tool_availability()
    assert registry.generation == before


def test_removing_an_unknown_tool_does_nothing(registry: ToolRegistry) -> None:
    """No error, no change."""
    declare(registry, "a")
    registry.deregister("b")

    assert registry.get_all_tool_names() == ["a"]


def test_the_last_tool_of_a_toolset_takes_its_check_and_aliases_along(registry: ToolRegistry) -> None:
    """As long as one tool is left, both stay, even if another one brought the check."""
    declare(registry, "a", "pair", check_fn=always)
    declare(registry, "b", "pair")
    declare(registry, "c", "other", check_fn=never)
    registry.register_toolset_alias("couple", "pair")
    registry.register_toolset_alias("rest", "other")

    registry.deregister("a")
    assert registry._toolset_checks == {"pair": always, "other": never}
    assert registry.get_registered_toolset_aliases() == {"couple": "pair", "rest": "other"}

    registry.deregister("b")
    assert registry._toolset_checks == {"other": never}
    assert registry.get_registered_toolset_aliases() == {"rest": "other"}


def test_a_tool_that_moves_to_another_toolset_leaves_nothing_behind(registry: ToolRegistry) -> None:
    """An override that empties a toolset also drops its check and aliases."""
    declare(registry, "a", "old", check_fn=always)
    registry.register_toolset_alias("ancient", "old")
    declare(registry, "a", "new", override=True)

    assert registry.get_registered_toolset_names() == ["new"]
    assert registry._toolset_checks == {}
    assert registry.get_registered_toolset_aliases() == {}


def test_an_alias_that_is_claimed_twice_points_to_the_later(
    registry: ToolRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning; the same claim again is silent."""
    registry.register_toolset_alias("short", "one")
    registry.register_toolset_alias("short", "one")
    assert not caplog.records

    registry.register_toolset_alias("short", "two")

    assert registry.get_toolset_alias_target("short") == "two"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# Overlays


@pytest.fixture
def overlay(registry: ToolRegistry) -> ToolRegistry:
    declare(registry, "below", "base", check_fn=always, emoji="1")
    registry.register_toolset_alias("ground", "base")
    return ToolRegistry(parent=registry)


def test_an_overlay_sees_its_parent_and_adds_to_it(registry: ToolRegistry, overlay: ToolRegistry) -> None:
    """What is added stays in the overlay; what the parent gains is seen at once."""
    declare(overlay, "above", "top")
    declare(registry, "later", "base")

    assert overlay.get_all_tool_names() == ["above", "below", "later"]
    assert overlay.get_registered_toolset_names() == ["base", "top"]
    assert overlay.get_toolset_alias_target("ground") == "base"
    assert overlay.get_toolset_requirements()["base"]["check_fn"] is always
    assert registry.get_all_tool_names() == ["below", "later"]


def test_an_overlay_never_changes_its_parent(registry: ToolRegistry, overlay: ToolRegistry) -> None:
    """Replacing, removing and aliasing in the overlay leave the parent and other overlays as they are."""
    sibling = ToolRegistry(parent=registry)
    before = (registry.generation, registry.entries(), registry.get_registered_toolset_aliases())

    declare(overlay, "below", "base", emoji="2")
    overlay.register_toolset_alias("ground", "top")
    overlay.deregister("below")
    overlay.deregister("below")
    with overlay.loading(Source("user", "mine.py")):
        declare(registry, "from_file")
        registry.register_toolset_alias("mine", "some")

    assert (registry.generation, registry.entries(), registry.get_registered_toolset_aliases()) == before
    assert sibling.entries() == registry.entries()
    assert overlay.get_all_tool_names() == ["from_file"]
    assert overlay.get_registered_toolset_aliases() == {"ground": "top", "mine": "some"}


def test_removing_in_an_overlay_gives_up_its_own_tool_first(registry: ToolRegistry, overlay: ToolRegistry) -> None:
    """Then the parent's shows again; removing once more hides that one too, and a new one may take the name."""
    declare(overlay, "below", "base", emoji="2")

    overlay.deregister("below")
    assert overlay.get_emoji("below") == "1"

    before = overlay.generation
    overlay.deregister("below")
    assert overlay.generation > before
    assert overlay.get_entry("below") is None
    assert overlay.get_all_tool_names() == []
    assert overlay.get_registered_toolset_names() == []

    declare(overlay, "below", "anything", emoji="3")
    assert overlay.get_emoji("below") == "3"
    assert registry.get_emoji("below") == "1"


def test_an_alias_lives_as_long_as_the_parent_has_tools_of_its_toolset(
    registry: ToolRegistry, overlay: ToolRegistry
) -> None:
    """The overlay's last own tool of a toolset is not the last one."""
    declare(overlay, "above", "base")
    overlay.register_toolset_alias("mine", "base")

    overlay.deregister("above")

    assert overlay.get_toolset_alias_target("mine") == "base"


def test_a_file_that_fails_can_be_taken_back(registry: ToolRegistry, overlay: ToolRegistry) -> None:
    """What it registered, replaced and hid is as before."""
    declare(overlay, "mine", emoji="1")
    before = overlay.entries()

    with overlay.loading(Source("user", "bad.py")) as loading:
        declare(registry, "mine", emoji="2")
        declare(registry, "new")
        registry.deregister("below")
    assert overlay.get_all_tool_names() == ["mine", "new"]
    overlay.take_back(loading)

    assert overlay.entries() == before


# Dispatch without a runtime


def test_a_bare_dispatch_runs_the_handler(registry: ToolRegistry) -> None:
    """It receives the arguments as they are, and those keywords that it takes."""
    declare(registry, "echo", handler=lambda args, task_id=None: json.dumps([args, task_id]))

    assert json.loads(registry.dispatch("echo", {"a": "1"}, task_id="t", session_id="s")) == [{"a": "1"}, "t"]


def test_a_multimodal_result_passes(registry: ToolRegistry) -> None:
    """As the very object that the handler gave."""
    result = {"_multimodal": True, "content": []}
    declare(registry, "picture", handler=lambda args, **kwargs: result)

    assert registry.dispatch("picture", {}) is result


async def nothing() -> None:
    return None


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "NoneType"), ({}, "dict"), ({"_multimodal": True}, "dict"), (5, "int"), (b"x", "bytes"), ([], "list")],
)
def test_any_other_result_breaks_the_contract(registry: ToolRegistry, value: Any, kind: str) -> None:
    """The error names the tool and the type."""
    declare(registry, "odd", handler=lambda args, **kwargs: value)

    assert json.loads(registry.dispatch("odd", {})) == {
        "error": f"Tool handler returned unsupported result type: {kind}",
        "error_type": "tool_result_contract",
        "tool": "odd",
        "result_type": kind,
    }


def test_a_coroutine_of_a_handler_that_is_not_declared_async_is_a_broken_contract(registry: ToolRegistry) -> None:
    """It is closed, so that Python does not warn about it later."""
    declare(registry, "forgot", handler=lambda args, **kwargs: nothing())

    assert json.loads(registry.dispatch("forgot", {}))["result_type"] == "coroutine"
    gc.collect()


def test_an_async_handler_is_awaited_and_its_loop_is_closed_with_the_registry() -> None:
    """A registry that goes away leaves no open loop behind."""

    async def greet(args: Any, **kwargs: Any) -> str:
        return "hello"

    registry = ToolRegistry()
    declare(registry, "greet", handler=greet, is_async=True)
    declare(registry, "quick", handler=ok, is_async=True)

    assert registry.dispatch("greet", {}) == "hello"
    assert registry.dispatch("quick", {}) == '{"ok": true}'
    del registry
    gc.collect()


def test_an_unknown_tool_is_answered_with_the_nearest_names(registry: ToolRegistry) -> None:
    """The text is exactly the contract's."""
    declare(registry, "weather")

    assert json.loads(registry.dispatch("wether", {})) == {
        "error": "Unknown tool: wether",
        "did_you_mean": ["weather"],
    }
    assert json.loads(registry.dispatch("zzzzzz", {})) == {"error": "Unknown tool: zzzzzz"}


def test_an_exception_becomes_a_result_and_is_logged_with_its_traceback(
    registry: ToolRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """The first error layer; the log is for people, at level error."""
    declare(registry, "fails", handler=lambda args, **kwargs: 1 / 0)

    result = json.loads(registry.dispatch("fails", {}))

    assert result == {"error": "Tool execution failed: ZeroDivisionError: division by zero"}
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_shown_is_a_result_too(registry: ToolRegistry) -> None:
    """Dispatch never raises for what an exception's own text does."""

    def fail(args: Any, **kwargs: Any) -> str:
        raise Unspeakable

    declare(registry, "fails", handler=fail)

    assert json.loads(registry.dispatch("fails", {}))["error"].startswith("Tool execution failed: Unspeakable: ")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(registry: ToolRegistry, stop: type[BaseException]) -> None:
    """Ctrl-C and exit are the caller's."""

    def fail(args: Any, **kwargs: Any) -> str:
        raise stop

    declare(registry, "stops", handler=fail)

    with pytest.raises(stop):
        registry.dispatch("stops", {})


def test_an_agent_loop_tool_is_answered_with_the_stub(registry: ToolRegistry) -> None:
    """A bare dispatch has no agent to hand it to."""
    declare(registry, "todo")

    assert json.loads(registry.dispatch("todo", {})) == {"error": "todo must be handled by the agent loop"}


# Explaining


def unavailable_with_reason() -> Unavailable:
    return Unavailable("the server is asleep")


def unavailable_with_both() -> Unavailable:
    return Unavailable("the server is asleep", "wake it up")


def unavailable_without_anything() -> Unavailable:
    return Unavailable("")


def raising() -> bool:
    raise KeyError("SOME_UNSET_KEY")


@pytest.mark.parametrize(
    ("check", "variables", "reason", "remedy"),
    [
        (never, ["SOME_UNSET_KEY"], "SOME_UNSET_KEY is not set", "toolcrib setup"),
        (never, ["SOME_UNSET_KEY", "ANOTHER_UNSET"], "SOME_UNSET_KEY, ANOTHER_UNSET are not set", "toolcrib setup"),
        (never, [], "its availability check failed", "toolcrib tools explain"),
        (raising, ["SOME_UNSET_KEY"], "SOME_UNSET_KEY is not set", "toolcrib setup"),
        (raising, [], "its availability check raised KeyError: 'SOME_UNSET_KEY'", "toolcrib tools explain"),
        (unavailable_with_reason, ["SOME_UNSET_KEY"], "the server is asleep", "toolcrib setup"),
        (unavailable_with_reason, [], "the server is asleep", "toolcrib tools explain"),
        (unavailable_with_both, ["SOME_UNSET_KEY"], "the server is asleep", "wake it up"),
        (unavailable_without_anything, [], "its availability check failed", "toolcrib tools explain"),
    ],
)
def test_an_unavailable_tool_always_has_a_reason_and_a_remedy(
    registry: ToolRegistry, check: Callable[[], Any], variables: list[str], reason: str, remedy: str
) -> None:
    """What the check says stands; otherwise the variables that are missing explain it."""
    declare(registry, "hidden", check_fn=check, requires_env=variables)

    outcome = registry.outcome(registry.get_entry("hidden"))  # type: ignore[arg-type]

    assert not outcome.available
    assert outcome.reason == reason
    assert remedy in outcome.remedy


def test_missing_variables_alone_hide_nothing(registry: ToolRegistry) -> None:
    """`requires_env` is for display and set-up."""
    declare(registry, "shown", requires_env=["SOME_UNSET_KEY"])

    assert len(registry.get_definitions({"shown"})) == 1


# Threads and size


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` … at the same time, and raise the first error of any of them."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def body(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.services
@pytest.mark.parametrize("overlaid", [False, True])
def test_threads_may_register_remove_and_read_at_once(registry: ToolRegistry, overlaid: bool) -> None:
    """No exception, no lost tool, every change counted, and nobody is served an old list."""
    target = ToolRegistry(parent=registry) if overlaid else registry

    def work(number: int) -> None:
        writer = registry if number % 2 else target
        for step in range(300):
            mine = f"tool_{number}_{step}"
            declare(writer, mine, f"set_{number}")
            assert mine in target.get_all_tool_names()
            if step % 3:
                writer.deregister(mine)
                assert mine not in target.get_all_tool_names()
                assert target.get_entry(mine) is None
            if step % 50 == 0:
                target.get_definitions({mine})
                target.check_tool_availability(quiet=True)
                target.get_toolset_requirements()
                writer.register_toolset_alias(f"alias_{number}", f"set_{number}")

    in_threads(8, work)

    expected = {f"tool_{number}_{step}" for number in range(8) for step in range(0, 300, 3)}
    assert set(target.get_all_tool_names()) == expected
    changes = 8 * (300 + 200 + 6)
    assert registry._generation + (target._generation if overlaid else 0) == changes


class RacingRegistry(ToolRegistry):
    """Something is registered in the very moment between looking at the tools and remembering them."""

    def _snapshot_entries(self) -> list[Any]:
        entries = super()._snapshot_entries()
        if "late" not in self._tools:
            declare(self, "late")
        return entries


def test_a_list_that_was_old_when_it_was_made_is_not_kept() -> None:
    """What is registered while a reader looks is in what the next reader gets."""
    registry = RacingRegistry()
    declare(registry, "early")
    registry.get_all_tool_names()

    assert registry.get_all_tool_names() == ["early", "late"]


def test_threads_that_fight_for_one_name_leave_one_owner(registry: ToolRegistry) -> None:
    """Exactly one toolset gets it; the others are refused and said so."""
    in_threads(8, lambda number: declare(registry, "wanted", f"set_{number}"))

    assert len(registry.get_all_tool_names()) == 1
    assert len(registry.rejections) == 7


@pytest.mark.services
def test_reads_stay_direct_with_ten_thousand_tools(registry: ToolRegistry) -> None:
    """Nothing compares every tool with every other: all definitions of 10,000 tools come in one pass."""
    for number in range(10_000):
        declare(registry, f"tool_{number}", f"set_{number % 40}", check_fn=always if number % 2 else never)

    assert len(registry.get_definitions(registry.get_all_tool_names())) == 5_000
    assert len(registry.get_tool_names_for_toolset("set_7")) == 250
    assert registry.get_entry("tool_9999") is not None
