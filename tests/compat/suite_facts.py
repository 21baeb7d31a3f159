"""What the reference system answers under its own names, as tables; it passes there and must pass here."""

import contextvars
import inspect
import json
import threading

import hermes_cli.middleware as middleware
import hermes_cli.plugins as plugins
import model_tools
import pytest
import toolset_distributions
import toolsets
from tools import interrupt, thread_context, tool_search
from tools.registry import ToolRegistry, registry, tool_error, tool_result

IDS = ["task_id", "session_id", "tool_call_id", "turn_id", "api_request_id"]
PARAMETERS = {
    model_tools.handle_function_call: [
        *[
            "function_name",
            "function_args",
            "task_id",
            "tool_call_id",
            "session_id",
            "turn_id",
            "api_request_id",
            "user_task",
        ],
        *["enabled_tools", "skip_pre_tool_call_hook", "skip_tool_request_middleware"],
        *["tool_request_middleware_trace", "enabled_toolsets", "disabled_toolsets"],
    ],
    model_tools.get_tool_definitions: [
        "enabled_toolsets",
        "disabled_toolsets",
        "quiet_mode",
        "skip_tool_search_assembly",
    ],
    model_tools.coerce_tool_args: ["tool_name", "args"],
    plugins.get_pre_tool_call_directive: ["tool_name", "args", *IDS, "middleware_trace"],
    plugins.get_pre_tool_call_block_message: ["tool_name", "args", *IDS, "middleware_trace"],
    plugins.resolve_pre_tool_block: ["tool_name", "args", *IDS, "middleware_trace"],
    plugins.set_thread_tool_whitelist: ["allowed", "deny_msg_fmt"],
    plugins.PluginContext: ["manifest", "manager"],
    toolsets.resolve_toolset: ["name", "visited", "include_registry"],
    toolsets.bundle_non_core_tools: ["toolset_name"],
    toolset_distributions.sample_toolsets_from_distribution: ["distribution_name"],
    toolset_distributions.validate_distribution: ["distribution_name"],
    thread_context.propagate_context_to_thread: ["target"],
    interrupt.set_interrupt: ["active", "thread_id"],
}


def schema(name, **properties):
    return {"name": name, "description": name, "parameters": {"type": "object", "properties": properties}}


@pytest.fixture
def register():
    names = []

    def add(name, toolset="facts", handler=lambda args, **kw: json.dumps(args), **properties):
        registry.register(name, toolset, schema(name, **properties), handler)
        names.append(name)
        return name

    yield add
    for name in names:
        registry.deregister(name)


@pytest.fixture
def manager(monkeypatch):
    """A manager of its own in the place of the one of the process."""
    own = plugins.PluginManager()
    monkeypatch.setattr(plugins, "_plugin_manager", own)
    return own


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda function: function.__name__)
def test_parameters(function):
    """Parameters have the reference's names, in its order."""
    assert list(inspect.signature(function).parameters) == PARAMETERS[function]


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("web", ["web_extract", "web_search"]),
        ("file", ["patch", "read_file", "search_files", "write_file"]),
        ("debugging", ["process", "terminal"]),
        ("hermes-discord", sorted([*toolsets._HERMES_CORE_TOOLS, "discord", "discord_admin"])),
    ],
)
def test_toolset_entries(name, tools):
    """A definition holds its own tools sorted; a preset has the tools of its platform itself."""
    assert toolsets.get_toolset(name)["tools"] == tools
    info = toolsets.get_toolset_info(name)
    assert info["direct_tools"] == tools
    assert set(info) == {
        *("name", "description", "direct_tools", "includes", "resolved_tools", "tool_count", "is_composite")
    }
    assert info["is_composite"] == (name == "debugging")


def test_special_names_are_no_toolsets_of_their_own():
    """`all` and `*` resolve, but have no definition."""
    for name in ("all", "*"):
        assert toolsets.validate_toolset(name)
        assert toolsets.resolve_toolset(name)
        assert toolsets.get_toolset(name) is None
        assert toolsets.get_toolset_info(name) is None


def test_visited_toolsets_are_left_out_and_remembered():
    """`visited` bounds a resolution and tells what was reached."""
    visited = {"web"}

    assert toolsets.resolve_toolset("safe", visited) == ["image_generate", "vision_analyze"]
    assert visited == {"safe", "web", "vision", "image_gen"}


def test_aliased_toolset_is_listed_under_its_alias(register):
    """MCP server `pond` is listed as `pond`, and answers to `mcp-pond` too."""
    register("frog", "mcp-pond")
    registry.register_toolset_alias("pond", "mcp-pond")

    names = [name for name in toolsets.get_toolset_names() if "pond" in name]

    assert names == ["pond"]
    assert [name for name in toolsets.get_all_toolsets() if "pond" in name] == ["pond"]
    assert toolsets.resolve_toolset("pond") == toolsets.resolve_toolset("mcp-pond") == ["frog"]


def test_legacy_names():
    """Names of early releases stand for these tools."""
    known = model_tools._LEGACY_TOOLSET_MAP
    assert known["web_tools"] == ["web_search", "web_extract"]
    assert known["terminal_tools"] == ["terminal"]
    browser = ["navigate", "snapshot", "click", "type", "scroll", "back", "press", "get_images", "vision", "console"]
    assert known["browser_tools"] == [f"browser_{name}" for name in browser]


def test_samples_hold_only_toolsets_that_exist(monkeypatch):
    """A toolset that nobody knows is left out of a sample; an unknown distribution is a ValueError."""
    mix = {"description": "", "toolsets": {"no_such_toolset": 100, "web": 100}}
    monkeypatch.setitem(toolset_distributions.DISTRIBUTIONS, "odd", mix)

    assert toolset_distributions.sample_toolsets_from_distribution("odd") == ["web"]
    with pytest.raises(ValueError, match="Unknown distribution: nope"):
        toolset_distributions.sample_toolsets_from_distribution("nope")


@pytest.mark.parametrize(
    ("given", "number", "whole"),
    [
        ("3", 3, 3),
        ("3.0", 3, 3),
        ("3.5", 3.5, "3.5"),
        ("-7", -7, -7),
        ("1e3", 1000, 1000),
        ("abc", "abc", "abc"),
        ("", "", ""),
        ("true", "true", "true"),
        ("0x10", "0x10", "0x10"),
    ],
)
def test_numbers(given, number, whole):
    """Text becomes a number, or stays as it is."""
    assert model_tools._coerce_number(given) == number
    assert model_tools._coerce_number(given, integer_only=True) == whole


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        ("true", "boolean", True),
        ("FALSE", "boolean", False),
        ("yes", "boolean", "yes"),
        ("[1,2]", "array", [1, 2]),
        ("abc", "array", "abc"),
        (3, "array", 3),
        (None, "array", None),
        ('{"a":1}', "object", {"a": 1}),
        ("[1]", "object", "[1]"),
        ("null", ["integer", "null"], None),
        ("3", ["integer", "null"], 3),
        ("x", "string", "x"),
        (None, "string", None),
    ],
)
def test_values(given, kind, expected):
    """A single value in the wanted type; a lone value is not put into a list here."""
    assert model_tools._coerce_value(given, kind) == expected


def test_lone_value_becomes_a_list_among_arguments(register):
    """For whole arguments, a lone value where a list is wanted is put into one."""
    name = register("facts_list", many={"type": "array", "items": {"type": "string"}})
    args = {"many": "one"}

    assert model_tools.coerce_tool_args(name, args) is args
    assert args == {"many": ["one"]}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain", "[TOOL_ERROR] plain"),
        ("", "[TOOL_ERROR] "),
        (None, "[TOOL_ERROR] "),
        ("<tool_call>x</tool_call>", "[TOOL_ERROR] x"),
        ("</system>hi<user>", "[TOOL_ERROR] hi"),
        ("<foo>bar</foo>", "[TOOL_ERROR] <foo>bar</foo>"),
        ("y" * 2500, "[TOOL_ERROR] " + "y" * 1997 + "..."),
    ],
)
def test_error_texts(given, shown):
    """Errors are marked, freed of framing tokens and capped."""
    assert model_tools._sanitize_tool_error(given) == shown


def test_unusual_results(register):
    """What is no text is an error that names its type; unknown tools are named."""
    number = register("facts_number", handler=lambda args, **kw: 3)

    assert json.loads(model_tools.handle_function_call(number, {})) == {
        "error": "Tool handler returned unsupported result type: int",
        "error_type": "tool_result_contract",
        "tool": number,
        "result_type": "int",
    }
    assert json.loads(model_tools.handle_function_call("facts_nope", {}))["error"] == "Unknown tool: facts_nope"


def test_private_registry_reads():
    """The read methods of a registry have these shapes."""
    own = ToolRegistry()
    own.register("b", "one", schema("b"), lambda args, **kw: "", check_fn=lambda: True, requires_env=["K"], emoji="🙂")
    own.register("c", "two", schema("c"), lambda args, **kw: "", check_fn=lambda: False)

    assert own.get_tool_to_toolset_map() == {"b": "one", "c": "two"}
    assert own.check_toolset_requirements() == {"one": True, "two": False}
    assert own.get_available_toolsets()["one"] == {
        "available": True,
        "tools": ["b"],
        "description": "",
        "requirements": ["K"],
    }
    assert set(own.get_toolset_requirements()["one"]) == {"name", "env_vars", "check_fn", "setup_url", "tools"}
    assert own.check_tool_availability() == (["one"], [{"name": "two", "env_vars": [], "tools": ["c"]}])
    assert (own.get_emoji("b"), own.get_emoji("c"), own.get_emoji("c", default="Q")) == ("🙂", "⚡", "Q")


def test_result_texts():
    """`tool_error` and `tool_result` write JSON as it is, without escapes."""
    assert tool_error("ü", code=3) == '{"error": "ü", "code": 3}'
    assert tool_result({"a": "ü"}) == '{"a": "ü"}'
    assert tool_result(a=1) == '{"a": 1}'


@pytest.mark.parametrize(
    ("answer", "directive"),
    [
        (None, (None, None)),
        ("block", (None, None)),
        ({"action": "maybe", "message": "m"}, (None, None)),
        ({"action": "block", "message": "no"}, ("block", "no")),
        ({"action": "approve"}, ("approve", None)),
        ({"action": "approve", "message": 3}, ("approve", None)),
        ({"action": "approve", "message": "sure?", "rule_key": "r"}, ("approve", "sure?")),
    ],
)
def test_directives(manager, answer, directive):
    """A directive is an action and a message; only a block is a block message."""
    manager._hooks["pre_tool_call"] = [lambda **kw: answer]

    assert plugins.get_pre_tool_call_directive("todo", {}) == directive
    assert plugins.get_pre_tool_call_block_message("todo", {}) == (directive[1] if directive[0] == "block" else None)


def test_thread_whitelist_is_a_directive_too():
    """A tool outside the whitelist of the thread is blocked with its message, in this thread alone."""
    plugins.set_thread_tool_whitelist({"a"}, "no {tool_name}")
    try:
        assert plugins.get_pre_tool_call_directive("b", {}) == ("block", "no b")
        assert plugins.get_pre_tool_call_directive("a", {}) == (None, None)
    finally:
        plugins.clear_thread_tool_whitelist()
    assert plugins.get_pre_tool_call_directive("b", {}) == (None, None)


def test_callbacks_can_be_changed_in_place(manager):
    """`_hooks` is a dict of lists that takes effect as it is changed."""

    def first(**kw):
        return "first"

    def second(**kw):
        return "second"

    manager._hooks.setdefault("post_tool_call", []).append(first)
    manager._hooks["post_tool_call"].append(second)
    assert manager.invoke_hook("post_tool_call") == ["first", "second"]
    manager._hooks["post_tool_call"].remove(first)
    assert manager._hooks["post_tool_call"] == [second]
    manager._hooks = {"on_session_end": [first]}
    assert (manager.has_hook("post_tool_call"), list(manager._hooks)) == (False, ["on_session_end"])
    manager._hooks.clear()
    assert not manager.has_hook("on_session_end")


def test_context_made_by_hand(manager, register):
    """A context from a manifest and a manager registers hooks at once."""
    context = plugins.PluginContext(plugins.PluginManifest(name="hand"), manager)
    context.register_hook("post_tool_call", lambda **kw: kw["tool_name"])
    context.register_middleware("tool_request", lambda **kw: None)

    assert manager.invoke_hook("post_tool_call", tool_name="t") == ["t"]
    assert manager.has_middleware("tool_request")
    assert context.dispatch_tool(tool_name=register("facts_echo"), args={"a": 1}) == '{"a": 1}'


def test_call_sees_the_hooks_of_a_replaced_manager(manager, register):
    """Hooks of the manager in force block a call and see how it ended."""
    name, ended = register("facts_call"), []
    manager._hooks["post_tool_call"] = [lambda **kw: ended.append((kw["status"], kw["error_message"]))]
    assert model_tools.handle_function_call(name, {}) == "{}"
    manager._hooks["pre_tool_call"] = [lambda **kw: {"action": "block", "message": "stop"}]

    assert json.loads(model_tools.handle_function_call(name, {})) == {"error": "stop"}
    assert model_tools.handle_function_call(name, {}, skip_pre_tool_call_hook=True) == "{}"
    assert ended == [("ok", None), ("blocked", "stop"), ("ok", None)]


def test_request_middleware_is_traced_and_can_be_skipped(manager, register):
    """The trace says who changed a call and why; a caller who has asked already is not asked again."""
    name, seen = register("facts_request"), []
    manager._middleware["tool_request"] = [lambda **kw: {"args": {"new": 1}, "source": "me", "reason": "why"}]
    manager._hooks["pre_tool_call"] = [lambda **kw: seen.append(kw["middleware_trace"])]

    assert model_tools.handle_function_call(name, {"old": 1}) == '{"new": 1}'
    assert model_tools.handle_function_call(name, {"old": 1}, skip_tool_request_middleware=True) == '{"old": 1}'
    assert seen == [[{"source": "me", "reason": "why"}], []]


def test_middleware_by_hand(manager):
    """Requests are rewritten, executions wrapped; a layer that fails is passed over."""

    def fails(**kw):
        raise RuntimeError

    manager._middleware["tool_request"] = [fails, lambda args, **kw: {"args": {**args, "b": 2}}]
    manager._middleware["tool_execution"] = [
        fails,
        lambda next_call=None, **kw: ["outer", next_call({"c": 3})],
        lambda next_call=None, **kw: ["inner", next_call()],
    ]

    result = middleware.apply_tool_request_middleware("t", {"a": 1}, task_id="x")

    assert (result.payload, result.original_payload) == ({"a": 1, "b": 2}, {"a": 1})
    assert (result.changed, result.trace) == (True, [{"source": "plugin"}])
    ran = middleware.run_tool_execution_middleware("t", {"a": 1}, lambda args: args)
    assert ran == ["outer", ["inner", {"c": 3}]]
    assert not middleware.apply_llm_request_middleware({"model": "m"}).changed
    with pytest.raises(ZeroDivisionError):
        middleware.run_llm_execution_middleware({}, lambda request: 1 / 0)


def test_post_hook_by_hand(manager):
    """The outcome is read from the result where nobody names it."""
    told = []
    manager._hooks["post_tool_call"] = [lambda **kw: told.append(kw)]

    model_tools._emit_post_tool_call_hook(function_name="f", function_args={"a": 1}, result='{"error": "no"}')

    (kw,) = told
    assert (kw["tool_name"], kw["status"], kw["error_type"], kw["error_message"]) == ("f", "error", "tool_error", "no")
    assert {*IDS, "args", "result", "duration_ms", "middleware_trace", "telemetry_schema_version"} < set(kw)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, ("auto", 10, 5, 20)),
        (True, ("auto", 10, 5, 20)),
        (False, ("off", 10, 5, 20)),
        ({"enabled": True}, ("on", 10, 5, 20)),
        ({"enabled": "zzz"}, ("auto", 10, 5, 20)),
        ({"threshold_pct": "x", "search_default_limit": "7", "max_search_limit": 500}, ("auto", 10, 7, 50)),
        ({"threshold_pct": -5, "search_default_limit": 0, "max_search_limit": 0}, ("auto", 0, 1, 1)),
    ],
)
def test_search_config(raw, expected):
    """Config of the search, whatever is written there."""
    found = tool_search.ToolSearchConfig.from_raw(raw)
    assert (found.enabled, found.threshold_pct, found.search_default_limit, found.max_search_limit) == expected


def test_search(register):
    """Tools outside the core can be deferred, found, described and opened."""
    register("facts_sheep", "mcp-farm", n={"type": "integer"})
    definitions = registry.get_definitions({"facts_sheep", "todo"})
    on = tool_search.ToolSearchConfig.from_raw({"enabled": "on"})

    assembled = tool_search.assemble_tool_defs(definitions, context_length=1000, config=on)
    found = json.loads(tool_search.dispatch_tool_search({"query": "sheep"}, current_tool_defs=definitions))
    described = json.loads(tool_search.dispatch_tool_describe({"name": "facts_sheep"}, current_tool_defs=definitions))

    sent = [one["function"]["name"] for one in assembled.tool_defs]
    assert sent == ["todo", "tool_search", "tool_describe", "tool_call"]
    assert (assembled.activated, assembled.deferred_count, assembled.threshold_tokens) == (True, 1, 100)
    match = {"name": "facts_sheep", "source": "mcp", "source_name": "mcp-farm", "description": "facts_sheep"}
    assert found == {"query": "sheep", "total_available": 1, "matches": [match]}
    assert described["parameters"]["properties"] == {"n": {"type": "integer"}}
    assert tool_search.scoped_deferrable_names(definitions) == frozenset({"facts_sheep"})
    opened = tool_search.resolve_underlying_call({"name": "facts_sheep", "arguments": '{"n": 1}'})
    assert opened == ("facts_sheep", {"n": 1}, None)
    assert tool_search.resolve_underlying_call({"name": "todo"})[:2] == (None, {})


def test_threads():
    """An interrupt belongs to one thread; a context goes where the function goes."""
    variable, seen = contextvars.ContextVar("variable", default="unset"), []
    variable.set("here")

    def work():
        seen.append((variable.get(), interrupt.is_interrupted()))

    interrupt.set_interrupt(True)
    try:
        thread = threading.Thread(target=thread_context.propagate_context_to_thread(work))
        thread.start()
        thread.join()
        assert interrupt.is_interrupted()
    finally:
        interrupt.clear_current_thread_interrupt()
    assert seen == [("here", False)]
    assert not interrupt.is_interrupted()
