"""Plugins in the many styles that people write them in: each loads, or says exactly why it does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.settings import Settings
from toolcrib.runtime import Runtime

REGISTER = """
    def register(ctx):
        ctx.register_tool("hello", "greetings", {"description": "Greet", "parameters": {"type": "object"}}, handle)
"""
HANDLER = "def handle(args, **kwargs): return 'hi'\n"
PLUGIN_YAML = "name: styled\nversion: 1.0.0\ndescription: A style\nauthor: somebody\n"

STYLES: dict[str, dict[str, str]] = {
    "one file": {"__init__.py": HANDLER + dedent(REGISTER)},
    "relative modules": {
        "__init__.py": "from . import schemas, tools\ndef register(ctx):\n"
        "    ctx.register_tool(name='hello', toolset='t', schema=schemas.HELLO, handler=tools.hello)\n",
        "schemas.py": "HELLO = {'name': 'hello', 'description': 'x', 'parameters': {'type': 'object'}}",
        "tools.py": "from .schemas import HELLO\ndef hello(args, **kw): return 'hi'",
    },
    "a package inside": {
        "__init__.py": "from .core.handlers import register",
        "core/__init__.py": "",
        "core/handlers.py": "from ..names import NAME\ndef register(ctx):\n"
        "    ctx.register_tool(NAME, 't', {'description': 'x'}, lambda args, **kw: 'hi')",
        "names.py": "NAME = 'hello'",
    },
    "a namespace package inside": {
        "__init__.py": "from .core.handlers import register",
        "core/handlers.py": "def register(ctx): ctx.register_tool('hello', 't', {}, lambda args, **kw: 'hi')",
    },
    "future annotations and dataclasses": {
        "__init__.py": "from __future__ import annotations\nfrom dataclasses import dataclass, field\n"
        "from typing import ClassVar\n@dataclass(slots=True)\nclass State:\n    kind: ClassVar[str] = 'x'\n"
        "    seen: list[str] = field(default_factory=list)\nstate = State()\n" + HANDLER + dedent(REGISTER),
    },
    "async handler": {
        "__init__.py": "async def handle(args, **kw): return 'hi'\ndef register(ctx):\n"
        "    ctx.register_tool('hello', 't', {'description': 'x'}, handle, is_async=True)",
    },
    "openai schema": {
        "__init__.py": HANDLER
        + "def register(ctx):\n    ctx.register_tool('hello', 't', {'type': 'function', 'function': "
        "{'name': 'hello', 'description': 'x', 'parameters': {'type': 'object'}}}, handle)",
    },
    "optional imports": {
        "__init__.py": "try:\n    import a_package_that_nobody_has as fast\nexcept ImportError:\n    fast = None\n"
        + HANDLER
        + dedent(REGISTER),
    },
    "lazy imports": {
        "__init__.py": "def handle(args, **kw):\n    import a_package_that_nobody_has\n    return 'hi'\n"
        + dedent(REGISTER),
    },
    "config and home": {
        "__init__.py": "import logging\nfrom hermes_cli.config import load_config\n"
        "from hermes_constants import get_hermes_home\nlogger = logging.getLogger(__name__)\n"
        "DATA = get_hermes_home() / 'plugins-data'\n" + HANDLER + "def register(ctx):\n"
        "    config = load_config().get('plugins', {}).get('entries', {}).get('styled', {})\n"
        "    logger.info('config %s', config)\n"
        "    ctx.register_tool('hello', 't', {'description': str(DATA)}, handle)\n",
    },
    "registry directly": {
        "__init__.py": "from tools.registry import registry, tool_error, tool_result\n"
        "registry.register(name='hello', toolset='t', schema={'description': 'x'},"
        " handler=lambda args, **kw: tool_result(ok=True))\ndef register(ctx): pass\n",
    },
    "tool file beside": {
        "__init__.py": "def register(ctx): pass",
        "hello_tool.py": "from tools.registry import registry\nregistry.register(name='hello', toolset='t',"
        " schema={'description': 'x'}, handler=lambda args, **kw: 'hi')\n",
    },
    "path trick": {
        "__init__.py": "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
        "import styled_helper_module\ndef register(ctx):\n"
        "    ctx.register_tool('hello', 't', {}, styled_helper_module.handle)\n",
        "styled_helper_module.py": HANDLER,
    },
    "path trick beside a module named tools": {
        "__init__.py": "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
        "from tools.registry import registry\nfrom . import tools as own\ndef register(ctx):\n"
        "    ctx.register_tool('hello', 't', {}, own.handle)\n",
        "tools.py": HANDLER,
    },
    "data files": {
        "__init__.py": "import json, pkgutil\nfrom importlib import resources\nfrom pathlib import Path\n"
        "here = json.loads((Path(__file__).parent / 'data.json').read_text())\n"
        "there = json.loads(pkgutil.get_data(__name__, 'data.json'))\n"
        "third = json.loads((resources.files(__package__) / 'data.json').read_text())\n"
        "assert here == there == third\n" + HANDLER + dedent(REGISTER),
        "data.json": "{}",
    },
    "import by its own full name": {
        "__init__.py": "import importlib\nhelper = importlib.import_module(__name__ + '.helper')\n"
        "from hermes_plugins.styled import helper as same\nassert helper is same\n"
        "def register(ctx): ctx.register_tool('hello', 't', {}, helper.handle)\n",
        "helper.py": HANDLER,
    },
    "class with methods": {
        "__init__.py": "class Plugin:\n    def __init__(self, ctx):\n        self.ctx = ctx\n"
        "    def hello(self, args, **kw): return 'hi'\n"
        "def register(ctx):\n    plugin = Plugin(ctx)\n    ctx.register_tool('hello', 't', {}, plugin.hello)\n",
    },
    "every registration": {
        "__init__.py": HANDLER + "from pathlib import Path\nclass Provider:\n    name = 'mine'\n"
        "def register(ctx):\n"
        "    ctx.register_tool('hello', 't', {'description': 'x'}, handle, lambda: True, ['A_KEY'], False, 'x', '*')\n"
        "    ctx.register_hook('pre_tool_call', lambda **kw: None)\n"
        "    ctx.register_hook('post_tool_call', lambda tool_name, **kw: None)\n"
        "    ctx.register_hook('on_session_start', lambda session_id=None, **_: None)\n"
        "    ctx.register_hook('a_hook_of_the_future', lambda **kw: None)\n"
        "    ctx.register_middleware('tool_request', lambda **kw: None)\n"
        "    ctx.register_command('greet', lambda args: 'hi', description='Greet', args_hint='[name]')\n"
        "    ctx.register_cli_command(name='greet', help='Greet', setup_fn=lambda parser: None,"
        " handler_fn=lambda args: 0, description='Greet')\n"
        "    ctx.register_skill('greeting', Path(__file__).parent / 'SKILL.md', 'How to greet')\n"
        "    ctx.register_platform(name='pigeon', label='Pigeon', adapter_factory=lambda c: None)\n"
        "    for kind in ('image_gen', 'video_gen', 'web_search', 'browser', 'tts', 'transcription', 'memory',"
        " 'dashboard_auth'):\n"
        "        getattr(ctx, f'register_{kind}_provider')(Provider())\n"
        "    ctx.register_context_engine(Provider())\n"
        "    ctx.register_auxiliary_task('summary', display_name='Summary', description='x')\n"
        "    ctx.register_secret_source(Provider())\n"
        "    ctx.register_slack_action_handler('x', lambda **kw: None)\n"
        "    assert ctx.manifest.name == 'styled' and ctx.profile_name\n",
        "SKILL.md": "---\nname: greeting\ndescription: How to greet\n---\nGreet.\n",
    },
    "feature probing": {
        "__init__.py": HANDLER + "def register(ctx):\n"
        "    assert not hasattr(ctx, 'register_something_of_the_future')\n"
        "    ctx.register_tool('hello', 't', {}, handle)\n",
    },
    "where it is": {
        "__init__.py": HANDLER + "from pathlib import Path\ndef register(ctx):\n"
        "    assert Path(ctx.manifest.path) == Path(__file__).parent\n"
        "    assert ctx.manifest.source == 'user'\n    ctx.register_tool('hello', 't', {}, handle)\n",
    },
    "prints and logs": {
        "__init__.py": "import logging\nprint('loading')\nlogging.getLogger('styled').warning('hi')\n"
        + HANDLER
        + dedent(REGISTER),
    },
    "threads and loops": {
        "__init__.py": "import asyncio, threading\nasyncio.run(asyncio.sleep(0))\n"
        "thread = threading.Thread(target=lambda: None)\nthread.start()\nthread.join()\n" + HANDLER + dedent(REGISTER),
    },
    "register with options": {
        "__init__.py": HANDLER
        + "def register(ctx, config=None, **kw):\n    ctx.register_tool('hello', 't', {}, handle)\n",
    },
    "probes for programs": {
        "__init__.py": "import shutil, subprocess, sys\nshutil.which('git')\n"
        "subprocess.run([sys.executable, '-c', 'pass'], check=True)\n" + HANDLER + dedent(REGISTER),
    },
    "circular modules": {
        "__init__.py": "from .a import register",
        "a.py": "from . import b\nNAME = 'hello'\ndef register(ctx): b.register(ctx)",
        "b.py": "from . import a\ndef register(ctx): ctx.register_tool(a.NAME, 't', {}, lambda args, **kw: 'hi')",
    },
    "typed": {
        "__init__.py": "from __future__ import annotations\nfrom typing import TYPE_CHECKING, Any\n"
        "if TYPE_CHECKING:\n    from hermes_cli.plugins import PluginContext\n"
        + HANDLER
        + "def register(ctx: PluginContext) -> None:\n    ctx.register_tool('hello', 't', {}, handle)\n",
    },
    "byte order mark and windows lines": {
        "__init__.py": "\ufeff"
        + (HANDLER + "def register(ctx): ctx.register_tool('hello', 't', {}, handle)\n").replace("\n", "\r\n"),
        "plugin.yaml": "\ufeff" + PLUGIN_YAML.replace("\n", "\r\n"),
    },
}


@contextmanager
def loaded_runtime(settings: Settings) -> Iterator[Runtime]:
    runtime = Runtime(settings=settings)
    try:
        yield runtime.load(servers=False)
    finally:
        runtime.close()


@pytest.fixture
def write(crib):
    path, modules, variables = list(sys.path), set(sys.modules), set(OPTIONAL_ENV_VARS)

    def write_files(files: dict[str, str], folder: str = "styled", manifest: str | None = PLUGIN_YAML) -> Path:
        root = crib.home / "plugins" / folder
        files = files if manifest is None else {"plugin.yaml": manifest, **files}
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text.encode())
        return root

    yield write_files
    sys.path[:] = path
    # Plugins add the variables that they need to what the wizard asks for.
    for name in OPTIONAL_ENV_VARS.keys() - variables:
        del OPTIONAL_ENV_VARS[name]
    for name in sys.modules.keys() - modules:
        if name.startswith("styled"):
            del sys.modules[name]


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("files", STYLES.values(), ids=STYLES)
def test_a_plugin_in_this_style_loads(crib, write, files: dict[str, str]):
    """Its tool is registered, and nothing about it is a problem."""
    write(files)

    with loaded_runtime(crib.settings("styled")) as runtime:
        (loaded,) = runtime.loaded_plugins

        assert loaded.problem == ""
        assert [file.problem for file in loaded.files if file.problem] == []
        assert loaded.tools == ("hello",)
        assert runtime.registry.get_entry("hello") is not None


# What plugins subclass and import under reference names, by what they register.
PROVIDERS = {
    "web_search_provider": """
        from agent.web_search_provider import WebSearchProvider, get_provider_env
        from tools.web_tools import check_web_api_key, web_search_tool
        class Provider(WebSearchProvider):
            name, display_name = "styled", "Styled"
            def is_available(self): return bool(get_provider_env("STYLED_KEY"))
            def supports_search(self): return True
            def search(self, query, limit=5): return {"success": True, "data": {"web": []}}
    """,
    "browser_provider": """
        from agent.browser_provider import BrowserProvider
        from tools.browser_tool import browser_navigate, check_browser_requirements
        class Provider(BrowserProvider):
            name, display_name = "styled", "Styled"
            def is_available(self): return True
            def create_session(self, task_id): return {"cdp_url": "", "session_id": ""}
            def close_session(self, session_id): return True
            def emergency_cleanup(self, session_id): pass
    """,
    "image_gen_provider": """
        from agent.image_gen_provider import (DEFAULT_ASPECT_RATIO, ImageGenProvider, error_response,
            resolve_aspect_ratio, save_b64_image, success_response)
        from tools.image_generation_tool import check_image_generation_requirements
        class Provider(ImageGenProvider):
            name = "styled"
            def is_available(self): return True
            def generate(self, prompt, aspect_ratio=DEFAULT_ASPECT_RATIO, **kw): return error_response(error="none")
    """,
    "video_gen_provider": """
        from agent.video_gen_provider import VideoGenProvider, error_response, success_response
        class Provider(VideoGenProvider):
            name = "styled"
            def is_available(self): return True
            def generate(self, prompt, **kw): return error_response(error="none")
    """,
    "memory_provider": """
        from agent.memory_provider import MemoryProvider
        from hermes_constants import get_hermes_home
        class Provider(MemoryProvider):
            name = "styled"
            def is_available(self): return get_hermes_home().is_dir()
            def initialize(self, session_id, **kwargs): pass
            def get_tool_schemas(self): return []
    """,
    "tts_provider": """
        from tools.tts_tool import check_tts_requirements, text_to_speech_tool
        class Provider:
            name = "styled"
            def is_available(self): return False
            def synthesize(self, text, output_path, **kw): return output_path
    """,
    "transcription_provider": """
        from tools.transcription_tools import transcribe_audio
        class Provider:
            name = "styled"
            def is_available(self): return False
            def transcribe(self, path, **kw): return {"success": True, "transcript": ""}
    """,
}


@pytest.mark.parametrize("kind", PROVIDERS)
def test_a_plugin_that_brings_a_provider_loads(crib, write, kind: str):
    """The names that such plugins import are there, and the provider is on record."""
    code = dedent(PROVIDERS[kind]) + f"\ndef register(ctx):\n    ctx.register_{kind}(Provider())\n"
    write({"__init__.py": code}, manifest=f"{PLUGIN_YAML}kind: backend\n")

    with loaded_runtime(crib.settings("styled")) as runtime:
        (loaded,) = runtime.loaded_plugins

        assert loaded.problem == ""
        assert [declared.kind for declared in loaded.declarations] == [kind]


ONE_FILE = STYLES["one file"]
FOLDERS = {
    "a category": "memory/styled",
    "a repository": "hermes-styled-plugin/plugin",
    "a repository with sources": "hermes-styled-plugin/src/styled",
    "spaces and dots": "styled plugin v1.2",
    "unicode": "stylé",
}
MANIFESTS = {
    "only a name": "name: styled\n",
    "quoted and documented": "---\n# A plugin\n'name': \"styled\"\nversion: '2.0'\n...\n",
    "unknown keys": "name: styled\nentrypoint: __init__\nlicense: MIT\nhermes_version: '>=0.10'\nconfig:\n  - key: x\n",
    "flow style": "{name: styled, version: 1, requires_env: [A_KEY]}\n",
    "objects in lists": "name: styled\nrequires_env:\n  - name: A_KEY\nprovides_tools:\n  - name: hello\n",
    "folded text": "name: styled\ndescription: >-\n  many\n  lines\nauthor: {name: Somebody, email: a@b.example}\n",
    "unknown kind": "name: styled\nkind: tool\n",
    "anchors": "name: &name styled\ndescription: *name\n",
    "version as a date": "name: styled\nversion: 2026-01-02\n",
    "hooks as text": "name: styled\nprovides_hooks: pre_tool_call\n",
}


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_a_plugin_is_found_in_this_folder(crib, write, folder: str):
    """Categories, repositories and odd names: the manifest gives the name."""
    write(ONE_FILE, folder)

    loaded = crib.load_one("styled")

    assert (loaded.problem, loaded.tools) == ("", ("hello",))


def test_a_broken_plugin_is_not_replaced_by_an_example_inside_it(crib, write):
    """Inside a plugin there are no others, whatever is wrong with it."""
    write({"plugin.yaml": "name: [", "__init__.py": "", "examples/demo/plugin.yaml": "name: styled\n"})

    assert "plugin.yaml" in crib.load_one("styled").problem


def test_a_plugin_in_a_category_is_also_known_by_its_path(crib, write):
    """The config of the reference names such plugins `category/folder`."""
    write(ONE_FILE, "memory/mine")

    assert crib.load_one("memory/mine").name == "styled"


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_in_this_style_is_accepted(crib, write, manifest: str):
    """Whatever else a manifest says, a plugin with a name loads."""
    write(ONE_FILE, manifest=manifest)

    loaded = crib.load_one("styled")

    assert (loaded.problem, loaded.tools) == ("", ("hello",))


def test_a_manifest_without_a_name_takes_that_of_the_folder(crib, write):
    """An empty manifest is enough."""
    write(ONE_FILE, manifest="")

    assert crib.load_one("styled").tools == ("hello",)


REFUSALS: dict[str, tuple[dict[str, str], str]] = {
    "no register": ({"__init__.py": "x = 1"}, "has no function `register(ctx)`; add one to its __init__.py"),
    "register is data": ({"__init__.py": "register = 1"}, "is not a function; write `def register(ctx):`"),
    "async register": ({"__init__.py": "async def register(ctx): pass"}, "is async; write `def register(ctx):`"),
    "register without ctx": ({"__init__.py": "def register(): pass"}, "register() takes 0 positional arguments"),
    "missing own module": ({"__init__.py": "from . import gone"}, "cannot import name 'gone'"),
    "missing own file": ({"__init__.py": "from .gone import x"}, "__init__.py:1: it imports its own module 'gone'"),
    "its own folder as a package": (
        {"__init__.py": "from styled.inner import x", "inner.py": "x = 1"},
        "__init__.py:1: it imports its own code as 'styled', as if it was installed",
    ),
    "missing package": (
        {"__init__.py": "import json\nimport a_package_that_nobody_has.inner"},
        "__init__.py:2: it imports 'a_package_that_nobody_has', which is not installed",
    ),
    "unknown context method": (
        {"__init__.py": "def register(ctx):\n    ctx.register_something_of_the_future(1)"},
        "__init__.py:2: it uses `ctx.register_something_of_the_future`, which toolcrib does not have",
    ),
    "syntax of a submodule": (
        {"__init__.py": "from . import tools", "tools.py": "x = 1\ndef (:"},
        "tools.py:2: invalid syntax",
    ),
    "exit": ({"__init__.py": "import sys\nsys.exit(3)"}, "__init__.py:2: it tried to end the program"),
    "tabs in the manifest": ({"plugin.yaml": "name: styled\n\tversion: 1\n", "__init__.py": ""}, "plugin.yaml:2"),
    "manifest is a list": ({"plugin.yaml": "- name: styled\n", "__init__.py": ""}, "the manifest has no keys"),
    "a package": (
        {"pyproject.toml": "[project]\nname = 'styled'\n", "src/styled/__init__.py": "def register(ctx): pass"},
        "has no plugin.yaml, but it is a Python package; if you trust it, install it: `pip install ",
    ),
    "no manifest": ({"__init__.py": "def register(ctx): pass"}, "has no plugin.yaml; add one that says `name: styled`"),
}
WITHOUT_MANIFEST = ("a package", "no manifest")


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("case", REFUSALS)
def test_a_plugin_that_cannot_load_says_exactly_why(crib, write, case: str):
    """The line, the reason, and what to do; no other plugin is affected."""
    files, reason = REFUSALS[case]
    write(files, manifest=None if case in WITHOUT_MANIFEST else PLUGIN_YAML)
    write(ONE_FILE, "other", manifest="name: other\n")

    styled, other = crib.load("styled", "other")

    assert reason in styled.problem
    assert (other.problem, other.tools) == ("", ("hello",))


def test_two_plugins_with_helpers_of_the_same_name_get_their_own(crib, write):
    """A module that one plugin put on `sys.path` is not handed to the next."""
    for name in ("first", "second"):
        code = (
            "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport styled_shared\n"
            f"def register(ctx): ctx.register_tool('{name}', 't', {{}}, styled_shared.handle)\n"
        )
        helper = f"def handle(args, **kw): return '{name}'"
        write({"__init__.py": code, "styled_shared.py": helper}, name, manifest=f"name: {name}\n")

    crib.load("first", "second")

    assert (crib.registry.dispatch("first", {}), crib.registry.dispatch("second", {})) == ("first", "second")


def install_package(root: Path, entry_point: str, files: dict[str, str], group: str = "hermes_agent.plugins") -> None:
    """What an installer leaves behind for a package with a src layout: its folder on the path, and its metadata."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    metadata = root / "styled_pip-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: styled-pip\nVersion: 1.0\nSummary: A style\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\nstyled = {entry_point}\n")


REGISTERING = "ctx.register_tool('hello', 't', {}, lambda args, **kw: 'hi')"
POINTS = {
    "module": ("styled_pip", f"def register(ctx): {REGISTERING}"),
    "submodule": ("styled_pip.plugin", f"def register(ctx): {REGISTERING}"),
    "function": ("styled_pip:register", f"def register(ctx): {REGISTERING}"),
    "function of another name": ("styled_pip:setup", f"def setup(ctx): {REGISTERING}"),
    "class": ("styled_pip:Plugin", f"class Plugin:\n    def register(self, ctx): {REGISTERING}"),
    "object": ("styled_pip:plugin", f"class Plugin:\n    def register(self, ctx): {REGISTERING}\nplugin = Plugin()"),
    "package that delegates": ("styled_pip", "from styled_pip.inner import register"),
}


@pytest.mark.parametrize("case", POINTS)
def test_an_installed_plugin_in_this_style_loads(crib, write, tmp_path: Path, monkeypatch, case: str):
    """An entry point may name a module, a function, a class or an object."""
    point, code = POINTS[case]
    files = {"styled_pip/__init__.py": code, "styled_pip/inner.py": f"def register(ctx): {REGISTERING}"}
    if case == "submodule":
        files = {"styled_pip/__init__.py": "", "styled_pip/plugin.py": code}
    install_package(tmp_path / "src", point, files)
    monkeypatch.syspath_prepend(tmp_path / "src")

    loaded = crib.load_one("styled")

    assert (loaded.problem, loaded.tools, loaded.version) == ("", ("hello",), "1.0")


def test_an_installed_plugin_that_fails_says_in_which_line(crib, write, tmp_path: Path, monkeypatch):
    """As for a folder."""
    install_package(tmp_path / "src", "styled_pip", {"styled_pip/__init__.py": "def register(ctx):\n    1 / 0\n"})
    monkeypatch.syspath_prepend(tmp_path / "src")

    assert "styled_pip/__init__.py:2: ZeroDivisionError: division by zero" in crib.load_one("styled").problem
