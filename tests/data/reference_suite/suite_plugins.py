"""How a plugin or caller of the reference system uses `hermes_cli.plugins` and its neighbours."""

import json
import threading

import hermes_cli.plugins as plugins_module
import pytest
from hermes_cli import middleware
from hermes_cli.plugins import (
    VALID_HOOKS,
    PluginContext,
    PluginManager,
    PluginToolOverrideError,
    clear_thread_tool_whitelist,
    discover_plugins,
    get_plugin_manager,
    get_plugin_toolsets,
    get_pre_tool_call_block_message,
    get_pre_tool_call_directive,
    has_hook,
    has_middleware,
    invoke_hook,
    invoke_middleware,
    resolve_pre_tool_block,
    set_thread_tool_whitelist,
)
from model_tools import handle_function_call
from tools.registry import registry


@pytest.fixture
def tool():
    def handler(args, **kwargs):
        return json.dumps({"args": args})

    registry.register("suite_tool", "suite", {"description": "d"}, handler)
    yield "suite_tool"
    registry.deregister("suite_tool")


@pytest.fixture
def on():
    """Registers callbacks for one test."""
    manager = get_plugin_manager()
    added = []

    def register(name, callback, kind="hook"):
        (manager.register_hook if kind == "hook" else manager.register_middleware)(name, callback)
        added.append(callback)

    yield register
    for callback in added:
        manager.hooks.unregister(callback)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("TOOLCRIB_HOME", raising=False)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    return tmp_path


def test_names():
    assert get_plugin_manager() is get_plugin_manager()
    assert {"pre_tool_call", "post_tool_call", "transform_tool_result", "on_session_start"} <= VALID_HOOKS
    assert issubclass(PluginToolOverrideError, PermissionError)
    assert all(
        hasattr(PluginContext, name)
        for name in ("register_tool", "register_hook", "register_middleware", "register_command", "dispatch_tool")
    )
    assert middleware.MIDDLEWARE_SCHEMA_VERSION == "hermes.middleware.v1"
    assert {"tool_request", "tool_execution", "llm_request", "llm_execution"} == middleware.VALID_MIDDLEWARE
    assert discover_plugins() is None


def test_invoke_hook_drops_none_and_failures(on):
    on("post_llm_call", lambda **kw: None)
    on("post_llm_call", lambda **kw: 1 / 0)
    on("post_llm_call", lambda **kw: kw["telemetry_schema_version"])
    on("post_llm_call", lambda model: model)
    assert invoke_hook("post_llm_call", model="m") == ["hermes.observer.v1", "m"]
    assert invoke_hook("no_such_hook") == []
    assert has_hook("post_llm_call")
    assert not has_hook("no_such_hook")


def test_invoke_middleware(on):
    on("llm_request", lambda middleware_schema_version, **kw: middleware_schema_version, "middleware")
    assert invoke_middleware("llm_request") == ["hermes.middleware.v1"]
    assert has_middleware("llm_request")
    assert not has_middleware("llm_execution")


def test_directives(on):
    answers = []
    on("pre_tool_call", lambda **kw: answers[0])
    for nonsense in (None, "block", {"action": "maybe"}, 3):
        answers[:] = [nonsense]
        assert get_pre_tool_call_directive("t", {}) == (None, None)
        assert resolve_pre_tool_block("t", {}) is None
    answers[:] = [{"action": "block", "message": "no"}]
    assert get_pre_tool_call_directive("t", {}, "task", session_id="s") == ("block", "no")
    assert get_pre_tool_call_block_message("t", {}) == "no"
    assert resolve_pre_tool_block("t", {}) == "no"
    answers[:] = [{"action": "approve", "message": "sure?", "rule_key": "r"}]
    assert get_pre_tool_call_block_message("t", {}) is None
    assert "sure?" in resolve_pre_tool_block("todo", {})


def test_a_policy_that_raises_blocks(on, tool):
    on("pre_tool_call", lambda **kw: 1 / 0)
    assert get_pre_tool_call_block_message(tool, {}) is not None
    assert "error" in json.loads(handle_function_call(tool, {}))


def test_first_block_wins_and_all_see_the_call(on, tool):
    seen = []
    on("pre_tool_call", lambda **kw: {"action": "block", "message": "first"})
    on("pre_tool_call", lambda tool_name, **kw: seen.append(tool_name) or {"action": "block", "message": "second"})
    on("post_tool_call", lambda status, error_type, **kw: seen.append((status, error_type)))
    assert json.loads(handle_function_call(tool, {}))["error"] == "first"
    assert seen == [tool, ("blocked", "plugin_block")]


def test_hooks_around_a_call(on, tool):
    seen = []
    on("tool_request", lambda args, **kw: {"args": {**args, "more": 1}}, "middleware")
    on("tool_execution", lambda next_call, **kw: next_call().replace("more", "most"), "middleware")
    on("pre_tool_call", lambda args, **kw: seen.append(args))
    on("post_tool_call", lambda result, status, **kw: seen.append((result, status)))
    on("transform_tool_result", lambda result, **kw: result + "!")
    assert handle_function_call(tool, {}) == '{"args": {"most": 1}}!'
    assert seen == [{"more": 1}, ('{"args": {"most": 1}}', "ok")]


@pytest.mark.parametrize("replaced", [False, True])
def test_same_hooks_on_the_way_with_replacements(on, tool, monkeypatch, replaced):
    if replaced:
        dispatch = registry.dispatch
        monkeypatch.setattr(registry, "dispatch", lambda name, args, **kw: json.dumps({"args": args}))
        assert registry.dispatch != dispatch
    seen = []
    on("tool_request", lambda args, **kw: {"args": {**args, "more": 1}}, "middleware")
    on("tool_execution", lambda next_call, **kw: next_call().replace("more", "most"), "middleware")
    on("pre_tool_call", lambda **kw: seen.append("pre"))
    on("post_tool_call", lambda **kw: seen.append("post"))
    on("transform_tool_result", lambda result, **kw: result + "!")
    assert handle_function_call(tool, {}) == '{"args": {"most": 1}}!'
    assert seen == ["pre", "post"]


def test_async_hooks_are_awaited(on, tool):
    async def block(**kwargs):
        return {"action": "block", "message": "async no"}

    on("pre_tool_call", block)
    assert get_pre_tool_call_block_message(tool, {}) == "async no"
    assert json.loads(handle_function_call(tool, {}))["error"] == "async no"


class TestThreadWhitelist:
    @pytest.fixture(autouse=True)
    def clear(self):
        yield
        clear_thread_tool_whitelist()

    def test_bounds_this_thread(self, tool):
        set_thread_tool_whitelist({"other"}, "not {tool_name} here")
        assert json.loads(handle_function_call(tool, {})) == {"error": f"not {tool} here"}
        assert resolve_pre_tool_block(tool, {}) == f"not {tool} here"
        clear_thread_tool_whitelist()
        assert "args" in json.loads(handle_function_call(tool, {}))

    def test_allows_what_it_names(self, tool):
        set_thread_tool_whitelist([tool], "no")
        assert json.loads(handle_function_call(tool, {"a": 1})) == {"args": {"a": 1}}

    def test_sees_through_tool_call(self, tool):
        set_thread_tool_whitelist(["tool_call"], "no")
        assert json.loads(handle_function_call("tool_call", {"name": tool, "arguments": {}})) == {"error": "no"}

    def test_other_threads_are_free(self, tool):
        set_thread_tool_whitelist(set(), "no")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(handle_function_call(tool, {})))
        thread.start()
        thread.join()
        assert "args" in json.loads(answers[0])

    def test_real_hooks_still_see_the_call(self, tool, on):
        seen = []
        on("post_tool_call", lambda status, **kw: seen.append(status))
        set_thread_tool_whitelist(set(), "no")
        handle_function_call(tool, {})
        set_thread_tool_whitelist({tool}, "no")
        handle_function_call(tool, {})
        assert seen == ["blocked", "ok"]


class TestOwnManager:
    PLUGIN = (
        "def register(ctx):\n"
        "    ctx.register_tool('greet_suite', 'greetings', {'description': 'd'}, lambda args, **kw: '\"hi\"')\n"
        "    ctx.register_hook('pre_tool_call', lambda **kw: {'action': 'block', 'message': 'from the plugin'})\n"
    )

    @pytest.fixture
    def plugin(self, home):
        folder = home / "plugins" / "greeter"
        folder.mkdir(parents=True)
        (folder / "plugin.yaml").write_text("name: greeter\nversion: '1.0'\ndescription: greets\n")
        (folder / "__init__.py").write_text(self.PLUGIN)
        (home / "config.yaml").write_text("plugins:\n  enabled: [greeter]\n")
        yield folder
        registry.deregister("greet_suite")

    def test_loads_and_lists(self, plugin, monkeypatch):
        manager = PluginManager()
        manager.discover_and_load()
        assert list(manager._plugins) == ["greeter"]
        assert manager.list_plugins()[0]["enabled"] is True
        assert manager.has_hook("pre_tool_call")
        assert list(manager._hooks) == ["pre_tool_call"]
        assert "greetings" in [name for name, _, _ in get_plugin_toolsets()]
        assert not has_hook("pre_tool_call")
        monkeypatch.setattr(plugins_module, "_plugin_manager", manager)
        assert json.loads(handle_function_call("greet_suite", {})) == {"error": "from the plugin"}

    def test_force_loads_again_without_doubling(self, plugin):
        manager = PluginManager()
        manager.discover_and_load()
        manager.discover_and_load(force=True)
        assert len(manager.invoke_hook("pre_tool_call", tool_name="x")) == 1

    def test_default_manager_follows_the_config(self, plugin, home):
        discover_plugins(force=True)
        discover_plugins(force=True)
        assert has_hook("pre_tool_call")
        assert json.loads(handle_function_call("greet_suite", {}))["error"] == "from the plugin"
        (home / "config.yaml").write_text("")
        discover_plugins(force=True)
        assert not has_hook("pre_tool_call")
        assert registry.get_entry("greet_suite") is None


class TestConfig:
    def test_load_and_save(self, home):
        from hermes_cli.config import DEFAULT_CONFIG, get_config_path, get_env_path, load_config, save_config

        assert get_config_path() == home / "config.yaml"
        assert get_env_path() == home / ".env"
        assert load_config() == DEFAULT_CONFIG
        get_config_path().write_text("# mine\ntools:\n  max_parallel: 3  # few\nsomebody_elses: {a: 1}\n")
        config = load_config()
        assert config["tools"]["max_parallel"] == 3
        assert config["somebody_elses"] == {"a": 1}
        config["tools"]["max_parallel"] = 5
        config["plugins"]["enabled"] = ["x"]
        config["somebody_elses"]["b"] = 2
        save_config(config)
        assert load_config() == config
        text = get_config_path().read_text()
        assert "# mine" in text
        assert "# few" in text
        del config["plugins"]
        save_config(config)
        assert load_config()["plugins"] == DEFAULT_CONFIG["plugins"]

    def test_bad_values_are_refused(self, home):
        from hermes_cli.config import get_config_path, load_config, save_config

        config = load_config()
        config["tools"]["max_parallel"] = "many"
        with pytest.raises(Exception, match="max_parallel"):
            save_config(config)
        assert not get_config_path().exists()

    def test_env_values(self, home, monkeypatch):
        import os

        from hermes_cli.config import OPTIONAL_ENV_VARS, get_env_value, load_env, remove_env_value, save_env_value

        monkeypatch.delenv("SUITE_KEY", raising=False)
        assert get_env_value("SUITE_KEY") is None
        save_env_value("SUITE_KEY", "a b")
        assert get_env_value("SUITE_KEY") == os.environ["SUITE_KEY"] == load_env()["SUITE_KEY"] == "a b"
        assert (home / ".env").stat().st_mode & 0o077 == 0
        assert remove_env_value("SUITE_KEY") is True
        assert get_env_value("SUITE_KEY") is None
        assert remove_env_value("SUITE_KEY") is False
        assert {"description", "prompt", "url", "password"} <= OPTIONAL_ENV_VARS["EXA_API_KEY"].keys()

    def test_home(self, home, monkeypatch):
        from hermes_constants import display_hermes_home, get_hermes_home

        assert get_hermes_home() == home
        monkeypatch.setenv("HOME", str(home.parent))
        assert display_hermes_home() == f"~/{home.name}"
