"""Loading plugins: what they add, what their failures cost, and who is said to own what."""

from __future__ import annotations

import builtins
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.core.errors import PluginError, UsageError
from toolcrib.plugins.load import load_plugins
from toolcrib.registry.compat_imports import HERMES_PACKAGES
from toolcrib.runtime import Runtime

HELLO = """
    def register(ctx):
        ctx.register_tool("hello", "greetings", {"description": "Greet"}, lambda args, **_: "hi")
"""


@contextmanager
def runtime_of(crib, *enabled: str) -> Iterator[Runtime]:
    """A runtime that has loaded the named plugins, closed at the end of the block."""
    runtime = Runtime(settings=crib.settings(*enabled))
    try:
        yield runtime.load()
    finally:
        runtime.close()


def test_an_enabled_plugin_adds_its_tool_with_its_own_name_as_the_owner(crib):
    """A tool of a plugin is registered, and the entry says which plugin it came from and where that is."""
    folder = crib.write("greeter", HELLO, manifest="name: greeter\nversion: 1.10\n")

    loaded = crib.load_one("greeter")

    assert (loaded.name, loaded.version, loaded.origin, loaded.problem) == ("greeter", "1.10", "user", "")
    assert loaded.tools == ("hello",)
    assert str(crib.owner("hello")) == f"plugin greeter ({folder})"
    assert crib.registry.dispatch("hello", {}) == "hi"


def test_a_plugin_that_is_not_enabled_stays_off(crib, tmp_path: Path):
    """Opt-in: a folder alone runs no code."""
    crib.write("sneaky", f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef register(ctx): pass")
    crib.write("greeter", HELLO)

    crib.load("greeter")

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("blocked", [{"disabled": ("greeter",)}, {"safe_mode": True}])
def test_disabling_and_safe_mode_win_over_enabling(crib, blocked):
    """The disable list and safe mode keep an enabled plugin off."""
    crib.write("greeter", HELLO)

    loaded = load_plugins(crib.settings("greeter", **blocked), crib.registry, crib.hooks)

    assert loaded == []
    assert crib.registry.get_entry("hello") is None


def test_a_folder_name_in_the_disable_list_wins_over_the_plugin_name_in_the_enable_list(crib):
    """Whatever of its two names the operator used, a disabled plugin stays off."""
    crib.write("folder", HELLO, manifest="name: greeter")

    assert crib.load("greeter", disabled=("folder",)) == []


def test_plugins_load_and_their_hooks_run_in_the_order_of_the_config(crib):
    """The operator decides the order, of plugins and so of hooks."""
    for name in ("a", "b", "c"):
        crib.write(name, f"def register(ctx): ctx.register_hook('pre_llm_call', lambda: {name!r})")

    loaded = crib.load("c", "a", "b")

    assert [plugin.name for plugin in loaded] == ["c", "a", "b"]
    assert crib.hooks.invoke("pre_llm_call") == ["c", "a", "b"]
    assert [hook.source.name for hook in crib.hooks.hooks("pre_llm_call")] == ["c", "a", "b"]


def test_hooks_and_middleware_are_listed_and_called(crib):
    """A load result names the hooks and middleware; an observer is registered as one."""
    crib.write(
        "watcher",
        """
        def register(ctx):
            ctx.register_hook("pre_tool_call", lambda **_: None, observer=True)
            ctx.register_middleware("tool_request", lambda args: {"args": {**args, "seen": True}})
        """,
    )

    loaded = crib.load_one("watcher")

    assert (loaded.hooks, loaded.middleware) == (("pre_tool_call",), ("tool_request",))
    assert crib.hooks.hooks("pre_tool_call")[0].observer
    assert crib.hooks.invoke_middleware("tool_request", args={"x": 1}) == [{"args": {"x": 1, "seen": True}}]


FAILURES = {
    "import error": ("import no_such_package_anywhere", "imports 'no_such_package_anywhere', which is not installed"),
    "syntax error": ("def register(ctx:\n", "__init__.py:1: "),
    "no register": ("x = 1", "has no function `register(ctx)`"),
    "register is no function": ("register = 3", "is not a function"),
    "async register": ("async def register(ctx): pass", "is async"),
    "register takes nothing": ("def register(): pass", "TypeError"),
    "exception": ("def register(ctx): raise ValueError('boom')", "__init__.py:1: ValueError: boom; correct that line"),
    "exit": ("def register(ctx): raise SystemExit(2)", "tried to end the program (SystemExit: 2)"),
    "own module missing": ("from .helper import x", "its own module 'helper', which is not in "),
    "hook is no function": ("def register(ctx): ctx.register_hook('pre_tool_call', 3)", "is not callable: 3"),
    "command is no function": ("def register(ctx): ctx.register_command('hi', None)", "is not callable: None"),
}


@pytest.mark.parametrize(("code", "reason"), FAILURES.values(), ids=FAILURES)
def test_a_plugin_that_fails_is_reported_and_the_others_load(crib, code: str, reason: str):
    """Every kind of failure becomes the problem of that plugin alone."""
    crib.write("broken", code)
    crib.write("greeter", HELLO)

    broken, greeter = crib.load("broken", "greeter")

    assert reason in broken.problem
    assert (greeter.problem, greeter.tools) == ("", ("hello",))


def test_a_plugin_that_fails_late_leaves_nothing_behind(crib):
    """All or nothing: tools, replaced tools, removed tools, hooks and modules are as before."""
    crib.write(
        "halfway",
        """
        from . import part
        def register(ctx):
            ctx.register_tool("mine", "halfway", {}, print)
            ctx.register_tool("terminal", "other", {}, print, override=True)
            ctx.register_hook("post_tool_call", print)
            ctx.register_middleware("tool_request", print)
            raise RuntimeError("too late")
        """,
        part="x = 1",
    )
    before = crib.registry.get_entry("terminal")

    loaded = crib.load_one("halfway", consent=("halfway",))

    assert "too late" in loaded.problem
    assert loaded.tools == loaded.hooks == ()
    assert crib.registry.get_all_tool_names() == ["terminal"]
    assert crib.registry.get_entry("terminal") is before
    assert not crib.hooks.has("post_tool_call")
    assert not crib.hooks.has_middleware("tool_request")
    assert not [name for name in sys.modules if name.endswith(("_plugins.halfway", "_plugins.halfway.part"))]


def test_a_tool_that_a_failing_plugin_removed_is_back(crib):
    """Removing a tool is taken back too."""
    crib.write(
        "remover",
        """
        def register(ctx):
            ctx._loading.target.deregister("terminal")
            raise RuntimeError
        """,
    )
    before = crib.registry.get_entry("terminal")

    crib.load_one("remover", consent=("remover",))

    assert crib.registry.get_entry("terminal") is before


def test_a_name_that_does_not_exist_is_a_problem_with_the_nearest_names(crib):
    """A misspelt plugin is reported with what was probably meant."""
    crib.write("greeter", HELLO)

    loaded = crib.load_one("greter")

    assert loaded.problem == (
        "no plugin is named 'greter'; did you mean 'greeter'? run `toolcrib plugins list` to see all"
    )
    assert loaded.origin == "missing"


def test_submodules_and_relative_imports_work(crib):
    """A plugin is a package: it imports its own modules relatively, at once and later, and under both namespaces."""
    crib.write(
        "my-pack",
        """
        from .first import GREETING
        def handler(args, **_):
            from . import second
            from hermes_plugins.my_pack.third import END
            return GREETING + second.NAME + END
        def register(ctx):
            ctx.register_tool("hello", "greetings", {}, handler)
        """,
        first="GREETING = 'hi '",
        second="NAME = 'you'",
        third="from .second import NAME\nEND = '!'",
    )

    loaded = crib.load_one("my-pack")

    assert loaded.problem == ""
    assert crib.registry.dispatch("hello", {}) == "hi you!"
    assert sys.modules["hermes_plugins.my_pack"] is sys.modules["toolcrib_plugins.my_pack"]
    third = importlib.import_module("hermes_plugins.my_pack.third")
    assert third is sys.modules["toolcrib_plugins.my_pack.third"]
    assert sys.modules["toolcrib_plugins.my_pack.third"].__name__ == "toolcrib_plugins.my_pack.third"


def test_names_that_make_the_same_module_name_do_not_meet(crib):
    """`my-plugin` and `my_plugin` are two plugins with modules of their own."""
    crib.write(
        "my-plugin",
        "from . import part\ndef register(ctx): ctx.register_hook('pre_llm_call', lambda: part.x)",
        part="x = 1",
    )
    crib.write(
        "my_plugin",
        "from . import part\ndef register(ctx): ctx.register_hook('pre_llm_call', lambda: part.x)",
        part="x = 2",
    )

    crib.load("my-plugin", "my_plugin")

    assert crib.hooks.invoke("pre_llm_call") == [1, 2]


def test_a_changed_plugin_is_loaded_anew(crib, make_crib):
    """Loading again reads the files again, submodules included."""
    folder = crib.write(
        "greeter", "from .part import x\ndef register(ctx): ctx.register_hook('pre_llm_call', lambda: x)", part="x = 1"
    )
    crib.load("greeter")
    (folder / "part.py").write_text("x = 'changed'")
    again = make_crib()

    again.load("greeter")

    assert again.hooks.invoke("pre_llm_call") == ["changed"]
    assert crib.hooks.invoke("pre_llm_call") == [1]


def test_tool_files_in_the_folder_are_found_and_one_that_fails_costs_only_itself(crib):
    """A plugin may hold tool files; they need no `register(ctx)`, and a failing one is reported beside the others."""
    tool = """
        from toolcrib.registry import registry
        registry.register("{name}", "pack", {{}}, print)
        {last}
    """
    crib.write(
        "pack",
        good=tool.format(name="good", last=""),
        bad=tool.format(name="bad", last="1 / 0"),
        plain="raise RuntimeError('not a tool file')",
    )

    with runtime_of(crib, "pack") as runtime:
        (loaded,) = runtime.loaded_plugins

        assert loaded.problem == ""
        assert loaded.tools == ("good",)
        assert [(file.path.name, bool(file.problem)) for file in loaded.files] == [("bad.py", True), ("good.py", False)]
        assert runtime.registry.get_entry("bad") is None


def test_a_tool_file_that_the_plugin_imported_itself_is_not_loaded_twice(crib):
    """The scan leaves alone what `register(ctx)` has imported."""
    crib.write(
        "pack",
        "def register(ctx):\n    from . import mine",
        mine="""
        import builtins
        from toolcrib.registry import registry
        builtins.toolcrib_test_imports = getattr(builtins, "toolcrib_test_imports", 0) + 1
        registry.register("mine", "pack", {}, print)
        """,
    )
    try:
        with runtime_of(crib, "pack") as runtime:
            assert runtime.loaded_plugins[0].tools == ("mine",)
            assert builtins.toolcrib_test_imports == 1
    finally:
        del builtins.toolcrib_test_imports


def test_missing_variables_are_reported_and_offered_to_the_set_up_but_hide_nothing(crib):
    """A plugin with unset variables is loaded; they are named, and the wizard knows how to ask for them."""
    crib.write(
        "needy",
        HELLO,
        manifest="""
name: needy
requires_env:
  - NEEDY_PLAIN_KEY
  - name: NEEDY_HOST
    description: Where it answers
    password: false
""",
    )
    try:
        loaded = crib.load_one("needy")

        assert (loaded.tools, loaded.missing_env) == (("hello",), ("NEEDY_PLAIN_KEY", "NEEDY_HOST"))
        assert OPTIONAL_ENV_VARS["NEEDY_PLAIN_KEY"]["password"] is True
        assert OPTIONAL_ENV_VARS["NEEDY_HOST"] == {
            "description": "Where it answers",
            "prompt": "NEEDY_HOST",
            "url": "",
            "tools": ["hello"],
            "password": False,
        }
    finally:
        for name in ("NEEDY_PLAIN_KEY", "NEEDY_HOST"):
            OPTIONAL_ENV_VARS.pop(name, None)


def test_two_runtimes_with_the_same_plugin_share_neither_hooks_nor_tools_nor_state(crib):
    """Each runtime loads its own copy of a plugin."""
    crib.write(
        "counter",
        """
        calls = []
        def count(**_):
            calls.append(1)
            return len(calls)
        def register(ctx):
            ctx.register_hook("pre_llm_call", count)
            ctx.register_tool("count", "counter", {}, lambda args, **_: str(len(calls)))
        """,
    )
    with runtime_of(crib, "counter") as one, runtime_of(crib, "counter") as other:
        assert one.hooks.invoke("pre_llm_call") == [1]
        assert one.hooks.invoke("pre_llm_call") == [2]
        assert other.hooks.invoke("pre_llm_call") == [1]
        assert one.call_sync("count", {}).content == "2"
        assert other.call_sync("count", {}).content == "1"


def test_dispatch_tool_goes_through_the_pipeline_of_the_runtime(crib):
    """A plugin calls other tools with their hooks and checks."""
    crib.write(
        "caller",
        """
        seen = []
        def register(ctx):
            ctx.register_tool("inner", "caller", {}, lambda args, **_: "inner result")
            ctx.register_tool("outer", "caller", {}, lambda args, **_: ctx.dispatch_tool("inner", {}) + str(seen))
            ctx.register_hook("pre_tool_call", lambda tool_name: seen.append(tool_name))
        """,
    )
    with runtime_of(crib, "caller") as runtime:
        assert runtime.call_sync("outer", {}).content == "inner result['outer', 'inner']"


def test_the_context_keeps_declarations_for_parts_that_use_them(crib):
    """Commands, skills, providers and the like are kept by kind and name, with what was passed."""
    crib.write(
        "generous",
        """
        class Provider: name = "acme"
        def register(ctx):
            ctx.register_command("/hi", print, description="Greet", args_hint="NAME")
            ctx.register_skill("cooking", "skills/cooking.md")
            ctx.register_cli_command(name="acme", help="Do it", setup_fn=print)
            ctx.register_platform("irc", label="IRC", adapter_factory=print)
            ctx.register_context_engine(Provider())
            ctx.register_auxiliary_task(key="title", display_name="Titles")
            for kind in ("image_gen", "video_gen", "web_search", "browser", "tts", "transcription", "dashboard_auth"):
                getattr(ctx, f"register_{kind}_provider")(Provider())
            ctx.register_secret_source(Provider())
            ctx.register_slack_action_handler("approve", print)
        """,
    )

    loaded = crib.load_one("generous")

    assert loaded.problem == ""
    assert (loaded.commands, loaded.skills) == (("hi",), ("cooking",))
    assert {(item.kind, item.name) for item in loaded.declarations} >= {
        ("cli_command", "acme"),
        ("platform", "irc"),
        ("context_engine", "acme"),
        ("auxiliary_task", "title"),
        ("tts_provider", "acme"),
        ("slack_action_handler", "approve"),
    }
    command = loaded.declarations[0]
    assert command.arguments == ("hi", print, "Greet")
    assert command.options == {"args_hint": "NAME"}
    assert command.source.name == "generous"


def test_services_that_do_not_exist_say_so(crib):
    """Without an agent, the model and the conversation are refused with a sentence; the profile has its name."""
    crib.write("curious", "held = []\ndef register(ctx): held.append(ctx)")
    crib.load_one("curious")
    (ctx,) = sys.modules["toolcrib_plugins.curious"].held

    with pytest.raises(UsageError, match=r"ctx\.llm cannot be used"):
        _ = ctx.llm
    with pytest.raises(UsageError, match="the user message 'hi' cannot be delivered"):
        ctx.inject_message("hi")
    with pytest.raises(UsageError, match="registered a skill too late"):
        ctx.register_skill("late")
    assert ctx.profile_name == "default"
    assert ctx.manifest.name == "curious"


def test_a_plugin_written_for_the_reference_system_runs_unmodified(crib):
    """The reference system's module names resolve, and a direct registration belongs to the plugin."""
    crib.write(
        "classic",
        """
        from tools.registry import registry, tool_result
        from hermes_cli.plugins import invoke_hook

        registry.register(name="at_import", toolset="classic", schema={"description": "x"}, handler=lambda a, **k: "i")

        def register(ctx):
            registry.register(name="classic", toolset="classic", schema={"description": "x"},
                              handler=lambda args, **kw: tool_result(ok=True))
        """,
    )
    with runtime_of(crib, "classic") as runtime:
        (loaded,) = runtime.loaded_plugins

        assert (loaded.problem, loaded.tools) == ("", ("at_import", "classic"))
        assert runtime.registry.get_entry("classic").source.name == "classic"
        assert runtime.registry.parent.get_entry("classic") is None
        assert runtime.call_sync("classic", {}).content == '{"ok": true}'


def test_a_failed_context_refuses_everything(crib):
    """A plugin that failed can add nothing later, from a thread for example."""
    crib.write(
        "thrower",
        """
        import sys
        def register(ctx):
            sys.toolcrib_test_context = ctx
            raise RuntimeError
        """,
    )
    try:
        crib.load_one("thrower")
        with pytest.raises(PluginError, match="can no longer add anything"):
            sys.toolcrib_test_context.register_tool("late", "thrower", {}, print)
        with pytest.raises(PluginError, match="can no longer add anything"):
            sys.toolcrib_test_context.register_hook("pre_llm_call", print)
        assert crib.registry.get_entry("late") is None
    finally:
        del sys.toolcrib_test_context


def test_a_tool_that_cannot_be_registered_costs_only_itself(crib):
    """A schema that cannot be used is reported; the plugin and its other tools load."""
    crib.write(
        "sloppy",
        """
        def register(ctx):
            ctx.register_tool("bad", "sloppy", "not a dict", print)
            ctx.register_tool("good", "sloppy", {}, print, max_result_size_chars=10, effects=())
        """,
    )

    loaded = crib.load_one("sloppy")

    assert (loaded.problem, loaded.tools) == ("", ("good",))
    assert "schema of tool 'bad' is a str" in crib.registry.rejections[0]
    good = crib.registry.get_entry("good")
    assert (good.max_result_size_chars, good.effects) == (10, ())


INSTALLING = """
    import subprocess, sys

    def register(ctx):
        {call}
        ctx.register_tool("hello", "greetings", {{"description": "Greet"}}, lambda args, **_: "hi")
"""
CALL = "subprocess.check_call([sys.executable, '-m', 'pip', 'install', 'no-such-package-for-toolcrib'])"


@pytest.fixture
def offline_pip(monkeypatch) -> None:
    """Should the guard ever fail, pip finds nothing and asks nobody."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", "")


@pytest.mark.usefixtures("offline_pip")
def test_a_plugin_that_installs_packages_on_load_is_refused(crib):
    """The reason has the line, what it wanted to install, and the command that the person can run instead."""
    folder = crib.write("greedy", INSTALLING.format(call=CALL))

    loaded = crib.load_one("greedy")

    assert loaded.problem == (
        f"{folder / '__init__.py'}:5: it tried to install 'no-such-package-for-toolcrib' while it was being loaded, "
        "which toolcrib does not allow; if you trust that, "
        f"run `{sys.executable} -m pip install no-such-package-for-toolcrib` and start again"
    )
    assert crib.registry.get_entry("hello") is None


@pytest.mark.usefixtures("offline_pip")
def test_a_plugin_that_works_without_what_it_may_not_install_loads_with_a_note(crib):
    """Nothing is installed; a plugin that copes with that is of use, and the person learns what it tried."""
    crib.write("modest", INSTALLING.format(call=f"try: {CALL}\n        except OSError: pass"))

    loaded = crib.load_one("modest")

    assert (loaded.problem, loaded.tools) == ("", ("hello",))
    assert "it tried to install 'no-such-package-for-toolcrib'" in loaded.notes[0]


def test_a_package_that_hermes_agent_brings_is_named_with_the_extra(crib, monkeypatch):
    """A plugin that takes PyYAML for granted says which command installs it."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    folder = crib.write("config-reader", "import yaml\ndef register(ctx): pass")

    loaded = crib.load_one("config-reader")

    assert loaded.problem == (
        f"{folder / '__init__.py'}:1: it needs the package 'PyYAML', which Hermes Agent brings with it; "
        "run `pip install 'toolcrib[hermes]'` and start again"
    )


def test_the_extra_installs_the_packages_that_the_message_names():
    """The names in the message are those of the distribution."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if not project.exists():
        pytest.skip("runs in a checkout")
    extra = tomllib.loads(project.read_text())["project"]["optional-dependencies"]["hermes"]

    assert sorted(re.split("[<>=]", need)[0] for need in extra) == sorted(HERMES_PACKAGES.values())
