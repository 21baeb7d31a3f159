"""How a caller of the reference system uses `model_tools`, written as a test suite for that system."""

import json
from unittest.mock import MagicMock, call, patch

import model_tools
import pytest
from model_tools import (
    _AGENT_LOOP_TOOLS,
    _LEGACY_TOOLSET_MAP,
    TOOL_TO_TOOLSET_MAP,
    TOOLSET_REQUIREMENTS,
    _coerce_number,
    _compute_tool_definitions,
    _emit_post_tool_call_hook,
    _sanitize_tool_error,
    coerce_tool_args,
    get_tool_definitions,
    handle_function_call,
)
from tools.registry import registry


def names(definitions):
    return [tool["function"]["name"] for tool in definitions]


@pytest.fixture
def tool():
    def handler(args, **kwargs):
        return json.dumps({"args": args, "kwargs": kwargs})

    parameters = {"type": "object", "properties": {"n": {"type": "integer"}, "items": {"type": "array"}}}
    registry.register("suite_tool", "suite", {"description": "d", "parameters": parameters}, handler)
    yield "suite_tool"
    registry.deregister("suite_tool")


class TestDefinitions:
    def test_shape_and_order(self, tool):
        found = get_tool_definitions(quiet_mode=True)
        assert names(found) == sorted(names(found))
        assert tool in names(found)
        assert all(item["type"] == "function" for item in found)

    def test_empty_and_unknown_mean_nothing(self):
        assert get_tool_definitions(enabled_toolsets=[], quiet_mode=True) == []
        assert get_tool_definitions(enabled_toolsets=["no such toolset"], quiet_mode=True) == []

    def test_disabled_always_wins(self, tool):
        assert names(get_tool_definitions(["suite"], quiet_mode=True)) == [tool]
        assert get_tool_definitions(["suite"], ["suite"], quiet_mode=True) == []

    def test_last_resolved_names(self, tool):
        get_tool_definitions(["suite", "todo"], quiet_mode=True)
        assert model_tools._last_resolved_tool_names == [tool, "todo"]

    def test_nothing_on_stdout(self, capsys):
        get_tool_definitions(quiet_mode=False)
        assert capsys.readouterr().out == ""

    def test_computed_directly(self, tool):
        model_tools._clear_tool_defs_cache()
        assert names(_compute_tool_definitions(["suite"], None, True, skip_tool_search_assembly=True)) == [tool]

    def test_a_new_answer_of_a_check_counts_at_once(self):
        open_now = [False]
        schema = {"description": "d"}
        registry.register("suite_gate", "suite_gate", schema, lambda a, **k: "", check_fn=lambda: open_now[0])
        try:
            assert names(get_tool_definitions(["suite_gate"], quiet_mode=True)) == []
            open_now[0] = True
            assert names(get_tool_definitions(["suite_gate"], quiet_mode=True)) == ["suite_gate"]
        finally:
            registry.deregister("suite_gate")


class TestHandleFunctionCall:
    @pytest.mark.parametrize("name", sorted(_AGENT_LOOP_TOOLS))
    def test_agent_loop_tools(self, name):
        assert json.loads(handle_function_call(name, {})) == {"error": f"{name} must be handled by the agent loop"}
        assert json.loads(registry.dispatch(name, {})) == {"error": f"{name} must be handled by the agent loop"}

    def test_unknown(self):
        assert json.loads(handle_function_call("no_such_tool_xyz", {}))["error"] == "Unknown tool: no_such_tool_xyz"

    def test_coerced_arguments_and_keywords(self, tool):
        answer = json.loads(handle_function_call(tool, {"n": "3"}, task_id="t", session_id="s", user_task="u"))
        assert answer == {"args": {"n": 3}, "kwargs": {"task_id": "t", "session_id": "s", "user_task": "u"}}

    def test_the_order_of_parameters(self, tool):
        answer = json.loads(handle_function_call(tool, {}, "task", "call", "session", "turn", "request", "wish"))
        assert answer["kwargs"] == {"task_id": "task", "session_id": "session", "user_task": "wish"}

    def test_execute_code_gets_the_enabled_tools(self):
        seen = {}

        def run(args, **kwargs):
            seen.update(kwargs)
            return "{}"

        with patch.dict(registry._tools):
            registry.register("execute_code", "code_execution", {"description": "d"}, run, override=True)
            handle_function_call("execute_code", {}, task_id="t", session_id="s", enabled_tools=["terminal"])
        assert seen == {"task_id": "t", "session_id": "s", "enabled_tools": ["terminal"]}


class TestReplacedParts:
    def test_dispatch_is_looked_up_at_call_time(self):
        with patch("model_tools.registry.dispatch", return_value='{"ok":true}') as dispatch:
            assert handle_function_call("web_search", {"q": "x"}, task_id="t", session_id="s") == '{"ok":true}'
        assert dispatch.call_args == call("web_search", {"q": "x"}, task_id="t", session_id="s", user_task=None)

    def test_hooks_are_looked_up_at_call_time(self):
        with (
            patch("model_tools.registry.dispatch", return_value='{"ok":true}'),
            patch("hermes_cli.plugins.invoke_hook", return_value=[]) as invoke,
        ):
            handle_function_call("web_search", {"q": "x"}, task_id="t", tool_call_id="c", session_id="s")
        assert [made.args[0] for made in invoke.call_args_list] == [
            "pre_tool_call", "post_tool_call", "transform_tool_result",
        ]  # fmt: skip
        ids = {"task_id": "t", "session_id": "s", "tool_call_id": "c", "turn_id": "", "api_request_id": ""}
        for made in invoke.call_args_list:
            assert made.kwargs["tool_name"] == "web_search"
            assert made.kwargs["args"] == {"q": "x"}
            assert ids.items() <= made.kwargs.items()
        after = invoke.call_args_list[1].kwargs
        assert after["result"] == '{"ok":true}'
        assert (after["status"], after["error_type"], after["error_message"]) == ("ok", None, None)
        assert after["duration_ms"] >= 0

    def test_real_tool_with_replaced_hooks(self, tool):
        with patch("hermes_cli.plugins.invoke_hook", return_value=[]) as invoke:
            assert json.loads(handle_function_call(tool, {"n": "4"}))["args"] == {"n": 4}
        assert invoke.call_count == 3

    def test_block(self, tool):
        answer = {"action": "block", "message": "not today"}
        with patch("hermes_cli.plugins.invoke_hook", side_effect=lambda name, **kw: [answer]):
            assert json.loads(handle_function_call(tool, {})) == {"error": "not today"}

    @pytest.mark.parametrize("answer", [None, "block", {"action": "block"}, {"action": "deny", "message": "x"}, 7])
    def test_answers_without_meaning_are_passed_over(self, tool, answer):
        pre = lambda name, **kw: [answer] if name == "pre_tool_call" else []  # noqa: E731
        with patch("hermes_cli.plugins.invoke_hook", side_effect=pre):
            assert "args" in json.loads(handle_function_call(tool, {}))

    def test_approval_without_a_person_is_no(self, tool):
        pre = lambda name, **kw: [{"action": "approve", "message": "sure?"}]  # noqa: E731
        with patch("hermes_cli.plugins.invoke_hook", side_effect=pre):
            assert "sure?" in json.loads(handle_function_call(tool, {}))["error"]

    def test_first_text_transforms(self, tool):
        answers = {"transform_tool_result": [None, {"no": 1}, "first", "second"]}
        with patch("hermes_cli.plugins.invoke_hook", side_effect=lambda name, **kw: answers.get(name, [])):
            assert handle_function_call(tool, {}) == "first"

    def test_has_hook_decides(self, tool):
        with (
            patch("hermes_cli.plugins.has_hook", return_value=False),
            patch("hermes_cli.plugins.invoke_hook") as invoke,
        ):
            handle_function_call(tool, {})
        assert not invoke.called

    def test_middleware_changes_arguments(self, tool):
        change = lambda kind, **kw: [{"args": {"n": kw["args"]["n"] + 1}}]  # noqa: E731
        with patch("hermes_cli.plugins.invoke_middleware", side_effect=change) as invoke:
            assert json.loads(handle_function_call(tool, {"n": 1}))["args"] == {"n": 2}
        assert invoke.call_args.args == ("tool_request",)
        assert invoke.call_args.kwargs["original_args"] == {"n": 1}

    def test_manager_is_looked_up_at_call_time(self, tool):
        manager = MagicMock()
        manager.has_hook.return_value = True
        manager.has_middleware.return_value = False
        manager.invoke_hook.return_value = []
        with patch("hermes_cli.plugins.get_plugin_manager", return_value=manager):
            handle_function_call(tool, {})
        assert {made.args[0] for made in manager.invoke_hook.call_args_list} >= {"pre_tool_call", "post_tool_call"}

    def test_raising_dispatch(self):
        with patch("model_tools.registry.dispatch", side_effect=RuntimeError("boom")):
            assert json.loads(handle_function_call("any", {})) == {"error": "Error executing any: boom"}

    def test_bad_json_never_runs(self):
        with patch("model_tools.registry.dispatch") as dispatch:
            assert "error" in json.loads(handle_function_call("any", "{broken"))
        assert not dispatch.called

    def test_skipping_the_pre_hook(self):
        with (
            patch("model_tools.registry.dispatch", return_value="{}"),
            patch("hermes_cli.plugins.invoke_hook", return_value=[]) as invoke,
        ):
            handle_function_call("any", {}, skip_pre_tool_call_hook=True)
        assert "pre_tool_call" not in [made.args[0] for made in invoke.call_args_list]

    def test_post_hook_by_hand(self):
        with patch("hermes_cli.plugins.invoke_hook") as invoke:
            _emit_post_tool_call_hook(
                function_name="t", function_args={"a": 1}, result='{"error": "no"}', task_id="x", duration_ms=5
            )
        assert invoke.call_args.args == ("post_tool_call",)
        assert invoke.call_args.kwargs["status"] == "error"
        assert invoke.call_args.kwargs["error_message"] == "no"


class TestCoercion:
    @pytest.mark.parametrize(
        ("kind", "given", "expected"),
        [
            ("integer", "42", 42),
            ("integer", "3.0", 3),
            ("integer", "3.5", "3.5"),
            ("integer", "abc", "abc"),
            ("number", "3.14", 3.14),
            ("number", "inf", "inf"),
            ("number", "nan", "nan"),
            ("boolean", "true", True),
            ("boolean", "False", False),
            ("boolean", "maybe", "maybe"),
            ("array", '["a"]', ["a"]),
            ("array", "a", ["a"]),
            ("array", None, None),
            ("object", '{"a": 1}', {"a": 1}),
            ("object", "{broken", "{broken"),
            ("string", "42", "42"),
            (["integer", "null"], "null", None),
            (["integer", "string"], "7", "7"),
        ],
    )
    def test_values(self, kind, given, expected):
        schema = {"name": "t", "parameters": {"type": "object", "properties": {"x": {"type": kind}}}}
        args = {"x": given}
        with patch("model_tools.registry.get_schema", return_value=schema):
            assert coerce_tool_args("t", args) is args
        assert args == {"x": expected}
        assert type(args["x"]) is type(expected)

    def test_unknown_tool_and_extra_arguments_stay(self, tool):
        assert coerce_tool_args("no_such_tool", {"a": "1"}) == {"a": "1"}
        assert coerce_tool_args(tool, {"extra": "1", "n": "2"}) == {"extra": "1", "n": 2}

    def test_numbers(self):
        assert _coerce_number("42") == 42
        assert isinstance(_coerce_number("42.0"), int)
        assert _coerce_number("3.14", integer_only=True) == "3.14"
        assert _coerce_number("no") == "no"


class TestSanitiser:
    def test_prefix_and_cap(self):
        assert _sanitize_tool_error("plain") == "[TOOL_ERROR] plain"
        long = _sanitize_tool_error("x" * 9000)
        assert len(long) == len("[TOOL_ERROR] ") + model_tools._TOOL_ERROR_MAX_LEN == len("[TOOL_ERROR] ") + 2000
        assert long.endswith("...")

    @pytest.mark.parametrize("tag", ["tool_call", "function_call", "result", "system", "assistant", "user", "output"])
    def test_framing(self, tag):
        assert _sanitize_tool_error(f"a<{tag}>b</{tag}>c") == "[TOOL_ERROR] abc"

    def test_fences_and_cdata(self):
        cleaned = _sanitize_tool_error("before\n```json\nx\n```\n<![CDATA[hidden]]>after")
        assert "```" not in cleaned
        assert "CDATA" not in cleaned
        assert "hidden" not in cleaned
        assert "after" in cleaned


def test_maps_and_questions(tool):
    assert tool not in TOOL_TO_TOOLSET_MAP
    assert TOOL_TO_TOOLSET_MAP["todo"] == "todo"
    assert TOOLSET_REQUIREMENTS["todo"].keys() == {"name", "env_vars", "check_fn", "setup_url", "tools"}
    assert tool in model_tools.get_all_tool_names()
    assert model_tools.get_toolset_for_tool(tool) == "suite"
    assert model_tools.get_available_toolsets()["suite"]["tools"] == [tool]
    assert model_tools.check_toolset_requirements()["suite"] is True
    assert "suite" in model_tools.check_tool_availability(quiet=True)[0]
    assert {"web_tools", "terminal_tools", "file_tools", "tts_tools"} <= set(_LEGACY_TOOLSET_MAP)
