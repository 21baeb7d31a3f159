"""How a caller of the reference system uses `tools.registry`, written as a test suite for that system."""

import functools
import json
import threading
from unittest.mock import patch

import pytest
from tools import registry as registry_module
from tools.registry import (
    ToolEntry,
    ToolRegistry,
    _check_fn_cached,
    discover_builtin_tools,
    invalidate_check_fn_cache,
    register_plugin_override_policy,
    registry,
    tool_error,
    tool_result,
)

FIELDS = (
    "name", "toolset", "schema", "handler", "check_fn", "requires_env", "is_async", "description", "emoji",
    "max_result_size_chars", "dynamic_schema_overrides",
)  # fmt: skip


def schema(name="echo", **properties):
    return {
        "name": name,
        "description": f"About {name}",
        "parameters": {"type": "object", "properties": properties},
    }


def echo(args, **kwargs):
    return json.dumps({"args": args, "kwargs": sorted(kwargs)})


def add(reg, name, toolset="alpha", handler=echo, **more):
    reg.register(name=name, toolset=toolset, schema=schema(name), handler=handler, **more)


def handler_of_module(name):
    namespace = {"__name__": name}
    exec("def handler(args, **kwargs):\n    return '{}'\n", namespace)
    return namespace["handler"]


class TestRegister:
    def test_takes_all_parameters_by_position(self):
        reg = ToolRegistry()
        reg.register("t", "alpha", schema("t"), echo, None, ["KEY"], False, "what", "🧪", 10, None, False)
        entry = reg.get_entry("t")
        assert [getattr(entry, field) for field in FIELDS] == [
            "t", "alpha", schema("t"), echo, None, ["KEY"], False, "what", "🧪", 10, None,
        ]  # fmt: skip

    def test_entry_has_the_fields_as_slots(self):
        assert set(FIELDS) <= set(ToolEntry.__slots__)
        assert "override" not in ToolEntry.__slots__

    def test_description_falls_back_to_the_schema(self):
        reg = ToolRegistry()
        add(reg, "t")
        assert reg.get_entry("t").description == "About t"

    def test_same_toolset_replaces(self):
        reg = ToolRegistry()
        add(reg, "t")
        add(reg, "t", handler=lambda args, **kw: "second")
        assert reg.dispatch("t", {}) == "second"

    def test_other_toolset_is_rejected_silently(self, caplog):
        reg = ToolRegistry()
        add(reg, "t")
        assert reg.register("t", "beta", schema("t"), lambda args, **kw: "x") is None
        assert reg.get_toolset_for_tool("t") == "alpha"
        assert any(record.levelname == "ERROR" for record in caplog.records)

    def test_mcp_over_mcp_and_override_replace(self):
        reg = ToolRegistry()
        add(reg, "m", "mcp-one")
        add(reg, "m", "mcp-two")
        add(reg, "m", "gamma", override=True)
        assert reg.get_toolset_for_tool("m") == "gamma"

    def test_generation_counts_every_change(self):
        reg = ToolRegistry()
        assert reg._generation == 0
        add(reg, "t")
        assert reg._generation == 1
        reg.register_toolset_alias("a", "alpha")
        assert reg._generation == 2
        reg.deregister("t")
        assert reg._generation == 3
        reg.deregister("t")
        assert reg._generation == 3

    def test_first_check_of_a_toolset_is_kept(self):
        reg = ToolRegistry()
        first, second = (lambda: True), (lambda: False)
        add(reg, "a", check_fn=first)
        add(reg, "b", check_fn=second)
        assert reg._toolset_checks == {"alpha": first}
        assert reg.get_toolset_requirements()["alpha"]["check_fn"] is first

    def test_last_tool_takes_check_and_aliases_along(self):
        reg = ToolRegistry()
        add(reg, "a", check_fn=lambda: True)
        reg.register_toolset_alias("short", "alpha")
        reg.deregister("a")
        assert reg._toolset_checks == {}
        assert reg._toolset_aliases == {}


class TestPluginOverride:
    def test_plugin_without_consent_is_stopped(self):
        reg = ToolRegistry()
        add(reg, "t")
        with pytest.raises(PermissionError):
            add(reg, "t", "beta", handler=handler_of_module("hermes_plugins.no_consent"), override=True)

    def test_partial_of_a_plugin_is_stopped_too(self):
        reg = ToolRegistry()
        add(reg, "t")
        handler = functools.partial(handler_of_module("hermes_plugins.no_consent"))
        with pytest.raises(PermissionError):
            add(reg, "t", "beta", handler=handler, override=True)

    def test_plugin_with_consent_may(self):
        reg = ToolRegistry()
        add(reg, "t")
        register_plugin_override_policy("hermes_plugins.has_consent", True)
        add(reg, "t", "beta", handler=handler_of_module("hermes_plugins.has_consent.deep"), override=True)
        assert reg.get_toolset_for_tool("t") == "beta"

    def test_plugin_cannot_consent_for_itself(self):
        namespace = {"__name__": "hermes_plugins.sly", "consent": register_plugin_override_policy}
        exec("def go():\n    consent('hermes_plugins.sly', True)\n", namespace)
        with pytest.raises(PermissionError):
            namespace["go"]()


class TestReading:
    def test_names_and_toolsets(self):
        reg = ToolRegistry()
        add(reg, "zed")
        add(reg, "abe", "beta", emoji="🐝", max_result_size_chars=5, requires_env=["KEY"])
        assert reg.get_all_tool_names() == ["abe", "zed"]
        assert reg.get_tool_names_for_toolset("alpha") == ["zed"]
        assert reg.get_tool_names_for_toolset("nothing") == []
        assert reg.get_registered_toolset_names() == ["alpha", "beta"]
        assert reg.get_toolset_for_tool("nothing") is None
        assert reg.get_tool_to_toolset_map() == {"abe": "beta", "zed": "alpha"}
        assert (reg.get_emoji("abe"), reg.get_emoji("zed"), reg.get_emoji("no", "?")) == ("🐝", "⚡", "?")
        assert (reg.get_max_result_size("abe"), reg.get_max_result_size("zed", 7)) == (5, 7)
        assert reg.get_schema("zed")["description"] == "About zed"
        assert reg.get_schema("no") is None
        assert reg.get_entry("no") is None

    def test_aliases(self, caplog):
        reg = ToolRegistry()
        add(reg, "t", "mcp-x")
        reg.register_toolset_alias("x", "mcp-x")
        assert reg.get_toolset_alias_target("x") == "mcp-x"
        assert reg.get_toolset_alias_target("y") is None
        reg.register_toolset_alias("x", "mcp-y")
        assert reg.get_registered_toolset_aliases() == {"x": "mcp-y"}
        assert any(record.levelname == "WARNING" for record in caplog.records)

    def test_definitions(self):
        reg = ToolRegistry()
        add(reg, "b")
        add(reg, "a", dynamic_schema_overrides=lambda: {"description": "fresh"})
        add(reg, "off", check_fn=lambda: False)
        add(reg, "broken", check_fn=lambda: 1 / 0)
        found = reg.get_definitions({"b", "a", "off", "broken", "unknown"}, quiet=True)
        assert [tool["function"]["name"] for tool in found] == ["a", "b"]
        assert found[0]["type"] == "function"
        assert found[0]["function"]["description"] == "fresh"

    @pytest.mark.parametrize("override", [lambda: 1 / 0, lambda: "text", lambda: None])
    def test_bad_dynamic_override_leaves_the_static_schema(self, override):
        reg = ToolRegistry()
        add(reg, "t", dynamic_schema_overrides=override)
        assert reg.get_definitions({"t"})[0]["function"] == schema("t")

    def test_shared_check_is_asked_once(self):
        calls = []
        reg = ToolRegistry()
        check = lambda: calls.append(1) or True  # noqa: E731
        add(reg, "a", check_fn=check)
        add(reg, "b", check_fn=check)
        assert len(reg.get_definitions({"a", "b"})) == 2
        assert calls == [1]

    def test_toolset_availability(self):
        reg = ToolRegistry()
        add(reg, "free")
        add(reg, "shut", "beta", check_fn=lambda: False, requires_env=["KEY"])
        add(reg, "raises", "gamma", check_fn=lambda: 1 / 0)
        assert reg.is_toolset_available("alpha")
        assert not reg.is_toolset_available("nothing at all")
        assert not reg.is_toolset_available("beta")
        assert reg.check_toolset_requirements() == {"alpha": True, "beta": False, "gamma": False}
        assert reg.get_available_toolsets()["beta"] == {
            "available": False, "tools": ["shut"], "description": "", "requirements": ["KEY"],
        }  # fmt: skip
        assert reg.get_toolset_requirements()["beta"].keys() == {"name", "env_vars", "check_fn", "setup_url", "tools"}
        available, missing = reg.check_tool_availability(quiet=True)
        assert available == ["alpha"]
        assert missing[0] == {"name": "beta", "env_vars": ["KEY"], "tools": ["shut"]}

    def test_writing_into_the_table_counts(self):
        reg = ToolRegistry()
        add(reg, "a")
        assert reg.get_all_tool_names() == ["a"]
        with patch.dict(reg._tools, {"b": reg.get_entry("a")}):
            assert len(reg._snapshot_entries()) == 2
        assert reg.get_all_tool_names() == ["a"]
        with reg._lock:
            reg._tools.clear()
        assert reg.get_all_tool_names() == []


class TestDispatch:
    def test_kwargs_reach_the_handler(self):
        reg = ToolRegistry()
        add(reg, "t")
        assert json.loads(reg.dispatch("t", {"a": 1}, task_id="x")) == {"args": {"a": 1}, "kwargs": ["task_id"]}

    def test_unknown(self):
        answer = json.loads(ToolRegistry().dispatch("nope", {}))
        assert answer["error"] == "Unknown tool: nope"

    def test_exception_becomes_an_error(self):
        reg = ToolRegistry()
        add(reg, "t", handler=lambda args, **kw: 1 / 0)
        assert json.loads(reg.dispatch("t", {})) == {
            "error": "Tool execution failed: ZeroDivisionError: division by zero"
        }

    def test_exit_passes_through(self):
        def leave(args, **kwargs):
            raise KeyboardInterrupt

        reg = ToolRegistry()
        add(reg, "t", handler=leave)
        with pytest.raises(KeyboardInterrupt):
            reg.dispatch("t", {})

    def test_result_contract(self):
        reg = ToolRegistry()
        multimodal = {"_multimodal": True, "content": [{"type": "text", "text": "hi"}]}
        add(reg, "good", handler=lambda args, **kw: multimodal)
        add(reg, "bad", handler=lambda args, **kw: {"a": 1})
        assert reg.dispatch("good", {}) == multimodal
        answer = json.loads(reg.dispatch("bad", {}))
        assert answer["error"] == "Tool handler returned unsupported result type: dict"
        assert (answer["error_type"], answer["tool"], answer["result_type"]) == ("tool_result_contract", "bad", "dict")

    def test_async_handler(self):
        async def answer(args, **kwargs):
            return "from a coroutine"

        reg = ToolRegistry()
        add(reg, "t", handler=answer, is_async=True)
        assert reg.dispatch("t", {}) == "from a coroutine"


class TestCheckCache:
    @pytest.fixture(autouse=True)
    def fresh(self):
        invalidate_check_fn_cache()
        yield
        invalidate_check_fn_cache()

    def test_answer_is_kept(self):
        calls = []
        check = lambda: calls.append(1) or True  # noqa: E731
        assert _check_fn_cached(check) is True
        assert _check_fn_cached(check) is True
        assert calls == [1]
        invalidate_check_fn_cache()
        assert _check_fn_cached(check) is True
        assert calls == [1, 1]

    def test_exception_is_no(self):
        assert _check_fn_cached(lambda: 1 / 0) is False

    def test_failure_after_a_pass_is_forgiven_until_the_grace_ends(self):
        answers = [True]
        check = lambda: answers[0]  # noqa: E731
        now = [1000.0]
        with patch.object(registry_module.time, "monotonic", lambda: now[0]):
            assert _check_fn_cached(check) is True
            answers[0] = False
            now[0] += registry_module._CHECK_FN_TTL_SECONDS + 1
            assert _check_fn_cached(check) is True
            now[0] += registry_module._CHECK_FN_FAILURE_GRACE_SECONDS
            assert _check_fn_cached(check) is False

    def test_numbers(self):
        assert registry_module._CHECK_FN_TTL_SECONDS == 30
        assert registry_module._CHECK_FN_FAILURE_GRACE_SECONDS == 60


def test_results_keep_letters():
    assert tool_error("für", code=4) == '{"error": "für", "code": 4}'
    assert tool_result({"a": "ü"}) == '{"a": "ü"}'
    assert tool_result(ok=True) == '{"ok": true}'


def test_discovery_of_a_folder(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "no_tool.py").write_text("x = 1\n")
    (tmp_path / "inside.py").write_text(
        "from tools.registry import registry\n\ndef f():\n    registry.register(name='suite_inside')\n"
    )
    (tmp_path / "broken_suite.py").write_text("import no_such_module_anywhere\nregistry.register()\n")
    (tmp_path / "found_suite.py").write_text(
        "from tools.registry import registry\n"
        "registry.register('suite_found', 'suite', {'description': 'd'}, lambda args, **kw: '{}')\n"
    )
    assert discover_builtin_tools(tmp_path) == ["tools.found_suite"]
    assert registry.get_toolset_for_tool("suite_found") == "suite"
    registry.deregister("suite_found")


def test_threads():
    reg = ToolRegistry()

    def work(number):
        for step in range(50):
            add(reg, f"t{number}_{step}")
            reg.get_all_tool_names()
            reg.deregister(f"t{number}_{step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reg.get_all_tool_names() == []
    assert reg._generation == 400
