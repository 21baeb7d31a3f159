"""What plugins subclass under reference names, what asks people, and what test suites replace and reset."""

import asyncio
import importlib
import inspect
import json
import threading
from pathlib import Path

import pytest


@pytest.fixture
def home():
    from hermes_constants import get_hermes_home

    return get_hermes_home()


# Providers that plugins subclass


def test_media_providers_and_their_results():
    """A subclass with a name and `generate` is complete; results have one form."""
    from agent import image_gen_provider as images
    from agent import video_gen_provider as videos

    class Paint(images.ImageGenProvider):
        name = "my-paint"

        def generate(self, prompt, aspect_ratio="landscape", **kwargs):
            return images.success_response(
                image="x.png", model="m", prompt=prompt, aspect_ratio=aspect_ratio, provider=self.name, extra={"k": 1}
            )

        def list_models(self):
            return [{"id": "first"}, {"id": "second"}]

    class Film(videos.VideoGenProvider):
        name = "my-film"

        def generate(self, prompt, **kwargs):
            return videos.error_response(error="no", prompt=prompt)

    assert (Paint().display_name, Paint().is_available(), Paint().default_model()) == ("My-Paint", True, "first")
    assert Paint().get_setup_schema() == {"name": "My-Paint", "badge": "", "tag": "", "env_vars": []}
    assert Paint().generate("p")["k"] == 1
    assert Paint().generate("p")["success"] is True
    assert (Film().default_model(), Film().capabilities()["max_duration"]) == (None, 10)
    assert Film().generate("p") == {
        "success": False,
        "video": None,
        "error": "no",
        "error_type": "provider_error",
        "model": "",
        "prompt": "p",
        "aspect_ratio": "",
        "provider": "",
    }
    with pytest.raises(TypeError):
        images.ImageGenProvider()


def test_parts_of_image_requests():
    """Odd aspect ratios become the default; reference images become a list."""
    from agent.image_gen_provider import normalize_reference_images, resolve_aspect_ratio

    assert [resolve_aspect_ratio(one) for one in (" Square ", "portrait", "16:9", None, 5)] == [
        "square",
        "portrait",
        "landscape",
        "landscape",
        "landscape",
    ]
    assert [normalize_reference_images(one) for one in (None, "", "a", [" a ", None, ""], ("x",), {"a": 1})] == [
        None,
        None,
        ["a"],
        ["a"],
        ["x"],
        None,
    ]


def test_images_are_kept_in_the_home(home):
    """Base64 data becomes a file whose name cannot leave the folder; a local address is not downloaded."""
    from agent.image_gen_provider import save_b64_image, save_url_image

    file = save_b64_image("aGVsbG8=", prefix="../up", extension="jpg")

    assert file.read_bytes() == b"hello"
    assert file.parent == home / "cache" / "images"
    assert file.suffix == ".jpg"
    with pytest.raises(ValueError, match="public"):
        save_url_image("http://127.0.0.1:9/x.png")


def test_web_browser_and_memory_providers():
    """What a subclass does not support says so; the rest has quiet defaults."""
    from agent.browser_provider import BrowserProvider
    from agent.memory_provider import MemoryProvider
    from agent.web_search_provider import WebSearchProvider

    class Search(WebSearchProvider):
        name = "seek"

        def is_available(self):
            return True

    class Remote(BrowserProvider):
        name = "far"

        def is_available(self):
            return False

        def create_session(self, task_id):
            return {}

        def close_session(self, session_id):
            return True

        def emergency_cleanup(self, session_id):
            pass

    class Remember(MemoryProvider):
        name = "mem"

        def is_available(self):
            return True

        def initialize(self, session_id, **kwargs):
            self.session = session_id

        def get_tool_schemas(self):
            return []

    assert (Search().supports_search(), Search().supports_extract()) == (True, False)
    with pytest.raises(NotImplementedError, match="seek"):
        Search().extract(["https://example.com"])
    assert Remote().get_setup_schema()["name"] == "far"
    memory = Remember()
    assert (memory.prefetch("q"), memory.system_prompt_block(), memory.on_pre_compress([])) == ("", "", "")
    assert memory.sync_turn("a", "b") is None
    with pytest.raises(NotImplementedError, match="mem"):
        memory.handle_tool_call("x", {})


# gateway.config, gateway.platforms


def test_platforms_have_members_for_new_names():
    """A platform of a plugin becomes a member when it is first named."""
    from gateway.config import Platform, PlatformConfig

    new = Platform("my-chat")

    assert new is Platform("MY-CHAT") is Platform.__members__["MY_CHAT"]
    assert new.value == "my-chat"
    assert Platform("telegram") is Platform.TELEGRAM
    with pytest.raises(ValueError, match="not a valid"):
        Platform("")
    given = {"enabled": "true", "token": "t", "extra": {"a": 1}, "home_channel": {"platform": "my-chat", "chat_id": 7}}
    config = PlatformConfig.from_dict(given)
    assert (config.enabled, config.home_channel.platform, config.home_channel.chat_id) == (True, new, "7")
    assert PlatformConfig.from_dict(config.to_dict()) == config


def test_messages_of_platforms(home):
    """Commands are recognised, duplicates too, and files land in the cache."""
    from gateway.platforms import base, helpers

    said = [
        (one.get_command(), one.get_command_args()) for one in map(base.MessageEvent, ("/New@bot x", "hi", "/a/b c"))
    ]
    assert said == [("new", "x"), (None, "hi"), (None, "c")]
    assert base.utf16_len("a😀é") == 4
    seen = helpers.MessageDeduplicator(max_size=2)
    assert [seen.is_duplicate(one) for one in ("a", "a", "b", "c", "a")] == [False, True, False, False, False]
    assert helpers.strip_markdown("# T\n**b** _i_ `c` [l](http://x) snake_case_x") == "T\nb i c l snake_case_x"
    document = Path(base.cache_document_from_bytes(b"x", "../../a b.txt"))
    assert document.parent == home / "cache" / "documents"
    assert document.name.endswith("_a b.txt")
    with pytest.raises(ValueError, match="no image"):
        base.cache_image_from_bytes(b"<html>")
    with pytest.raises(ImportError, match="does not have yet"):
        from gateway.platforms.base import cache_image_from_url  # noqa: F401


def test_adapter_can_be_written_and_says_that_nothing_serves_it():
    """A subclass is complete with four methods; its messages go to the handler that it was given."""
    from gateway.config import Platform, PlatformConfig
    from gateway.platforms.base import BasePlatformAdapter, MessageEvent, SendResult

    class Chat(BasePlatformAdapter):
        async def connect(self, *, is_reconnect=False):
            self._mark_connected()
            return True

        async def disconnect(self):
            self._mark_disconnected()

        async def send(self, chat_id, content, reply_to=None, metadata=None):
            return SendResult(True)

        async def get_chat_info(self, chat_id):
            return {}

    chat = Chat(PlatformConfig(), Platform.TELEGRAM)
    assert (chat.name, chat.is_connected) == ("Telegram", False)
    asyncio.run(chat.connect())
    assert chat.is_connected
    with pytest.raises(Exception, match="does not serve platforms yet"):
        asyncio.run(chat.handle_message(MessageEvent("hi")))
    heard = []

    async def hear(event):
        heard.append(event.text)

    chat.set_message_handler(hear)
    asyncio.run(chat.handle_message(MessageEvent("hi")))
    assert heard == ["hi"]


def test_media_tools_are_functions(tmp_path):
    """What fails is told in the form of the reference."""
    from tools.image_generation_tool import image_generate_tool
    from tools.transcription_tools import transcribe_audio
    from tools.tts_tool import text_to_speech_tool

    assert "aspect_ratio" in json.loads(image_generate_tool("A house", "round"))["error"]
    assert "output_path must end" in json.loads(text_to_speech_tool("Hello", "a.exe"))["error"]
    missing = transcribe_audio(str(tmp_path / "voice.ogg"))
    assert missing["success"] is False
    assert "voice.ogg" in missing["error"]


# tools.approval, tools.terminal_tool


@pytest.mark.parametrize(("answer", "approved"), [("once", True), ("deny", False), ("nonsense", False)])
def test_callback_of_the_thread_is_asked(answer, approved, tmp_path):
    """`set_approval_callback` answers for the functions and for the tool; other threads do not see it."""
    from tools import approval, terminal_tool

    asked = []

    def callback(command, description, *, allow_permanent=True, **_):
        asked.append(command)
        return answer

    elsewhere = []
    victim = tmp_path / "victim"
    command = f"rm -rf {victim}"

    def work():
        victim.mkdir()
        terminal_tool.set_approval_callback(callback)
        elsewhere.append(approval.check_dangerous_command(command, "local")["approved"])
        elsewhere.append(json.loads(terminal_tool.terminal_tool(command, task_id=f"cb-{answer}"))["exit_code"] == 0)
        terminal_tool.set_approval_callback(None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert elsewhere == [approved, approved]
    assert len(asked) == 2
    assert victim.exists() is not approved
    assert approval.check_dangerous_command(command, "local")["approved"] is False
    assert len(asked) == 2


def test_mode_of_approval_is_read_from_the_config_each_time(monkeypatch):
    """A suite may replace the function, and the guards follow it."""
    from hermes_cli.config import set_config_value
    from tools import approval

    assert approval._get_approval_mode() == "manual"
    set_config_value("approvals.mode", "off")
    assert approval._get_approval_mode() == "off"
    assert approval.is_approval_bypass_active()
    set_config_value("approvals.mode", "manual")
    assert not approval.check_all_command_guards("git push --force", "local")["approved"]
    monkeypatch.setattr(approval, "_get_approval_mode", lambda: "off")
    assert approval.check_all_command_guards("git push --force", "local")["approved"]


def test_suite_may_clear_what_was_approved():
    """The tables of approvals are live."""
    from tools import approval

    approval.approve_session("s", "recursive delete")
    approval.approve_permanent("git force push")
    approval.enable_session_yolo("s")

    assert approval._session_approved["s"] == {"recursive delete"}
    assert "git force push" in approval._permanent_approved
    assert "s" in approval._session_yolo
    approval._session_approved.clear()
    approval._permanent_approved.clear()
    approval._session_yolo.clear()
    assert not approval.is_approved("s", "recursive delete")
    assert not approval.is_approved("s", "git force push")
    assert not approval.is_session_yolo_enabled("s")
    approval._session_approved.setdefault("s", set()).add("raw disk write")
    assert approval.is_approved("s", "raw disk write")
    approval._session_approved.pop("s", None)
    assert not approval.is_approved("s", "raw disk write")


def test_suite_may_clear_what_waits_for_an_answer():
    """Clearing the queues denies what waits; clearing the callbacks ends the sessions that answer elsewhere."""
    from tools import approval

    asked = threading.Event()
    answers = []
    approval.register_gateway_notify("g", lambda payload: asked.set())

    def work():
        token = approval.set_current_session_key("g")
        answers.append(approval.check_dangerous_command("git push --force", "local")["approved"])
        approval.reset_current_session_key(token)

    thread = threading.Thread(target=work)
    thread.start()
    assert asked.wait(20)
    assert list(approval._gateway_queues) == list(approval._gateway_notify_cbs) == ["g"]
    approval._gateway_queues.clear()
    thread.join()
    approval._gateway_notify_cbs.clear()

    assert answers == [False]
    assert not approval.has_blocking_approval("g")
    assert not approval._gateway_queues
    assert not approval._gateway_notify_cbs


# tools.mcp_tool


def test_without_servers_there_are_no_mcp_tools():
    """Discovery answers at once; the names are those of the reference."""
    from tools import mcp_oauth, mcp_tool

    with mcp_oauth.suppress_interactive_oauth():
        assert mcp_tool.discover_mcp_tools() == []
    assert mcp_tool.mcp_prefixed_tool_name("my-server", "do.it") == "mcp__my_server__do_it"
    assert not mcp_tool.has_registered_mcp_tools()
    assert not mcp_tool.reconnect_mcp_server("nope")


# Modules of built-in tools


def test_built_in_tools_are_functions_too(tmp_path):
    """A file is written and read through the tools; schemas are those of the registry."""
    from tools import clarify_tool, file_tools, todo_tool
    from tools.registry import registry

    todo = todo_tool.TodoStore()
    written = json.loads(todo_tool.todo_tool([{"id": "1", "content": "a", "status": "pending"}], store=todo))
    said = json.loads(clarify_tool.clarify_tool("Which?", ["a", "b"], callback=lambda question, choices: choices[1]))

    assert written["summary"]["pending"] == 1
    assert said["user_response"] == "b"
    assert "error" in json.loads(todo_tool.todo_tool())
    (tmp_path / "a.txt").write_text("hello\n")
    assert "hello" in file_tools.read_file_tool(str(tmp_path / "a.txt"))
    assert registry.get_schema("read_file") == file_tools.READ_FILE_SCHEMA


def test_the_tools_that_look_at_the_world_are_functions_too():
    """Searching blocks; the functions that read pages and look at images are coroutines."""
    from tools import vision_tools, web_tools

    read = json.loads(asyncio.run(web_tools.web_extract_tool(["http://169.254.169.254/"])))
    seen = json.loads(asyncio.run(vision_tools.vision_analyze_tool("data:,x", "What is it?")))

    assert "never reached" in read["results"][0]["error"]
    assert seen["success"] is False
    assert "empty" in json.loads(web_tools.web_search_tool(" "))["error"]
    assert web_tools.check_web_api_key() is True
    assert isinstance(vision_tools.check_vision_requirements(), bool)
    assert vision_tools.VISION_ANALYZE_SCHEMA["name"] == "vision_analyze"


def test_the_browser_tools_are_functions_too():
    """Each takes the arguments of its tool and a task; an address out of reach is refused before a browser starts."""
    from tools import browser_cdp_tool, browser_dialog_tool, browser_tool

    refused = json.loads(browser_tool.browser_navigate("http://169.254.169.254/", task_id="a"))
    asked = {name: list(inspect.signature(getattr(browser_tool, f"browser_{name}")).parameters) for name in ACTS}

    assert "error" in refused
    assert asked == {name: [*parameters.split(), "task_id"] for name, parameters in ACTS.items()}
    assert callable(browser_cdp_tool.browser_cdp)
    assert callable(browser_dialog_tool.browser_dialog)
    assert browser_tool.BROWSER_NAVIGATE_SCHEMA["name"] == "browser_navigate"


ACTS = {
    "navigate": "url",
    "snapshot": "full",
    "click": "ref",
    "type": "ref text",
    "scroll": "direction",
    "back": "",
    "press": "key",
    "get_images": "",
    "vision": "question annotate",
    "console": "clear expression",
}
CHECKS = """
browser_tool.check_browser_requirements browser_tool.check_browser_vision_requirements
browser_cdp_tool._browser_cdp_check browser_dialog_tool._browser_dialog_check
clarify_tool.check_clarify_requirements code_execution_tool.check_sandbox_requirements
cronjob_tools.check_cronjob_requirements delegate_tool.check_delegate_requirements
discord_tool.check_discord_tool_requirements feishu_doc_tool._check_feishu feishu_drive_tool._check_feishu
file_tools._check_file_reqs homeassistant_tool._check_ha_available
image_generation_tool.check_image_generation_requirements memory_tool.check_memory_requirements
session_search_tool.check_session_search_requirements skills_tool.check_skills_requirements
terminal_tool.check_terminal_requirements todo_tool.check_todo_requirements tts_tool.check_tts_requirements
video_generation_tool.check_video_generation_requirements vision_tools.check_vision_requirements
web_tools.check_web_api_key x_search_tool.check_x_search_requirements xai_video_tools._check_xai_video_requirements
kanban_tools._check_kanban_mode kanban_tools._check_kanban_orchestrator_mode
read_terminal_tool.check_read_terminal_requirements close_terminal_tool.check_close_terminal_requirements
computer_use.tool.check_computer_use_requirements computer_use_tool.check_computer_use_requirements
"""


@pytest.mark.parametrize("name", CHECKS.split())
def test_each_built_in_tool_has_its_check(name):
    """The check of a tool's module says whether the tool can be used here, and is the same function each time."""
    module, _, check = name.rpartition(".")
    found = getattr(importlib.import_module(f"tools.{module}"), check)

    assert isinstance(found(), bool)
    assert getattr(importlib.import_module(f"tools.{module}"), check) is found


def test_projects_and_spotify_are_modules_with_their_tools():
    """Projects have no check in the reference, and Spotify is one of its plugins."""
    import tools.project_tools
    from plugins.spotify.tools import _check_spotify_available

    assert isinstance(_check_spotify_available(), bool)
    assert tools.project_tools.registry.get_entry("project_create") is not None


def test_names_that_a_module_of_built_in_tools_lacks_cannot_be_imported():
    """As with any other module."""
    with pytest.raises(ImportError):
        from tools.file_tools import no_such_thing  # noqa: F401


def test_backends_are_modules():
    """`from tools.environments import docker` works, also for a backend that is newer than the reference."""
    from tools.environments import base, docker, vercel_sandbox

    assert base.BaseEnvironment
    assert issubclass(docker.DockerEnvironment, base.BaseEnvironment)
    assert issubclass(vercel_sandbox.VercelSandboxEnvironment, base.BaseEnvironment)


# What test suites replace, reset and import again


def test_handler_is_replaced_through_the_table(monkeypatch):
    """`registry._tools[name].handler = f` takes effect at once, and an undo restores it."""
    import model_tools
    from tools.registry import ToolEntry, registry

    registry.register("echo", "facts", {"description": "x"}, lambda args, **kw: json.dumps({"said": 1}))
    original = registry._tools["echo"].handler
    with monkeypatch.context() as patch:
        patch.setattr(registry._tools["echo"], "handler", lambda args, **kw: json.dumps({"said": sorted(kw)}))
        assert json.loads(model_tools.handle_function_call("echo", {})) == {
            "said": ["session_id", "task_id", "user_task"]
        }
        assert json.loads(registry.dispatch("echo", {}, task_id="t")) == {"said": ["task_id"]}
    assert json.loads(registry.dispatch("echo", {})) == {"said": 1}
    registry._tools["echo"].handler = lambda args: json.dumps({"said": 3})
    assert json.loads(model_tools.handle_function_call("echo", {})) == {"said": 3}
    assert registry.get_entry("echo").handler is not original
    assert isinstance(registry._tools["echo"], ToolEntry)
    registry.deregister("echo")


def test_table_of_tools_can_be_swapped(monkeypatch):
    """A suite that sets `registry._tools` to another dict sees only that, and its undo brings all back."""
    from tools.registry import registry

    before = registry.get_all_tool_names()
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_tools", {})
        assert registry.get_all_tool_names() == []
        registry.register("only", "facts", {"description": "x"}, lambda args, **kw: "{}")
        assert registry.get_all_tool_names() == ["only"]
    assert registry.get_all_tool_names() == before


def test_calls_go_on_after_the_manager_was_reset(monkeypatch):
    """`_plugin_manager = None` gives a new manager, without the hooks of the old one."""
    import model_tools
    from hermes_cli import plugins
    from tools.registry import registry

    registry.register("ping", "facts", {"description": "x"}, lambda args, **kw: '{"ok": true}')
    heard = []
    monkeypatch.setattr(plugins, "_plugin_manager", None)

    assert json.loads(model_tools.handle_function_call("ping", {})) == {"ok": True}
    manager = plugins.get_plugin_manager()
    assert isinstance(manager, plugins.PluginManager)
    assert manager is plugins.get_plugin_manager()
    assert not plugins.has_hook("post_tool_call")
    manager._hooks["post_tool_call"] = [lambda **kw: heard.append(kw["tool_name"])]
    model_tools.handle_function_call("ping", {})
    assert heard == ["ping"]
    plugins._plugin_manager = None
    assert plugins.get_plugin_manager() is not manager
    model_tools.handle_function_call("ping", {})
    assert heard == ["ping"]
    plugins.discover_plugins()
    registry.deregister("ping")


def test_module_can_be_imported_again():
    """Deleting a module from `sys.modules`, or reloading it, runs it again under the same name."""
    import sys

    import tools.interrupt
    import utils
    from hermes_cli import plugins

    utils.TRUTHY_STRINGS = frozenset()
    del sys.modules["utils"]
    again = importlib.import_module("utils")
    assert again.is_truthy_value("yes")
    plugins.VALID_HOOKS.clear()
    assert importlib.reload(plugins).VALID_HOOKS
    import model_tools

    assert "error" in json.loads(model_tools.handle_function_call("no_such_tool", {}))
    assert importlib.reload(tools.interrupt).is_interrupted() is False
    assert {"read_file", "search_files"} == model_tools._READ_SEARCH_TOOLS


def test_policy_for_overrides_is_a_method():
    """A plugin without it may not replace a tool; with it, it may."""
    import types

    from tools.registry import registry

    plugin = types.ModuleType("hermes_plugins.bold")
    exec("def handler(args, **kw): return '{}'", plugin.__dict__)
    registry.register("mine", "facts", {"description": "x"}, lambda args, **kw: "{}")
    with pytest.raises(PermissionError):
        registry.register("mine", "bold", {"description": "x"}, plugin.handler, override=True)
    registry.register_plugin_override_policy("hermes_plugins.bold", True)
    registry.register("mine", "bold", {"description": "x"}, plugin.handler, override=True)
    assert registry.get_toolset_for_tool("mine") == "bold"
    registry.deregister("mine")


def test_call_of_another_tool_is_told_unless_it_is_blocked(monkeypatch):
    """A suite that watches `notify_other_tool_call` sees each call but reads and searches."""
    import model_tools
    from tools import file_tools
    from tools.registry import registry

    told = []
    monkeypatch.setattr(file_tools, "notify_other_tool_call", told.append)
    monkeypatch.setattr(registry, "dispatch", lambda *args, **kw: "{}")
    model_tools.handle_function_call("anything", {}, task_id="t1")
    model_tools.handle_function_call("read_file", {"path": "x"}, task_id="t2")
    monkeypatch.setattr(
        "hermes_cli.plugins.invoke_hook",
        lambda name, **kw: [{"action": "block", "message": "no"}] if "pre" in name else [],
    )
    model_tools.handle_function_call("anything", {}, task_id="t3")

    assert told == ["t1"]


def test_commands_of_plugins_are_found_by_name():
    """A context made by hand adds to its own manager only."""
    from hermes_cli import plugins

    manager = plugins.PluginManager()
    ctx = plugins.PluginContext(plugins.PluginManifest(name="greeter"), manager)
    ctx.register_command("/hi", lambda args: "hello", "Greets")
    ctx.register_cli_command("hi", "Greets", setup_fn=print)

    async def later():
        return 5

    assert manager._plugin_commands["hi"]["handler"]("") == "hello"
    assert manager._plugin_commands["hi"]["plugin"] == "greeter"
    assert manager._cli_commands["hi"]["help"] == "Greets"
    assert plugins.get_plugin_command_handler("hi") is None
    assert plugins.resolve_plugin_command_result(later()) == 5
    assert plugins.resolve_plugin_command_result("x") == "x"


def test_suite_may_clear_the_interrupted_threads():
    """The set is live, and its lock can be held by who clears it."""
    from tools import interrupt

    interrupt.set_interrupt(True)
    assert threading.get_ident() in interrupt._interrupted_threads
    with interrupt._lock:
        interrupt._interrupted_threads.clear()
    assert not interrupt.is_interrupted()


def test_discovery_imports_tool_files_by_their_names(tmp_path, monkeypatch):
    """`discover_builtin_tools` imports `tools.NAME` for each file that declares tools, and skips what fails."""
    import tools.registry as module

    declares = "from tools.registry import registry\nregistry.register('{0}', 'own', {{}}, lambda args, **kw: '{{}}')\n"
    for name in ("alpha_own", "mcp_tool", "registry"):
        (tmp_path / f"{name}.py").write_text(declares.format(name))
    (tmp_path / "broken_own.py").write_text("import surely_missing\n" + declares.format("broken"))
    (tmp_path / "helper_own.py").write_text("x = 1\n")
    imported = []
    original = importlib.import_module
    monkeypatch.setattr("tools.registry.importlib.import_module", lambda name: imported.append(name) or original(name))

    assert module.discover_builtin_tools(tmp_path) == ["tools.alpha_own"]
    assert imported == ["tools.alpha_own", "tools.broken_own"]
    assert module.registry.get_entry("alpha_own").source.kind == "user"
    assert module.registry.get_entry("broken") is None
    assert module._module_registers_tools(tmp_path / "alpha_own.py")
    assert not module._module_registers_tools(tmp_path / "helper_own.py")
    with module.registry.loading(module.registry.get_entry("alpha_own").source):
        module.registry.deregister("alpha_own")
