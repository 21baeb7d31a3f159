"""Finding plugins: where they come from, which one wins, and what is said about broken ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.errors import PluginError
from toolcrib.plugins.discover import discover_all, find_enabled
from toolcrib.plugins.load import load_plugins
from toolcrib.plugins.manifest import read_manifest

SOURCE_FOLDER = Path(__file__).parents[2] / "src"
NOTHING = "def register(ctx): pass"


def found(plugins, name: str):
    (plugin,) = [plugin for plugin in plugins if plugin.name == name]
    return plugin


def test_all_plugins_are_listed_with_their_state(crib):
    """Everything that exists is shown, with what the config says about it, and what the config names in vain."""
    crib.write("on", NOTHING, manifest="name: on\nversion: 2.0\ndescription: Does it\nfuture_key: 1")
    crib.write("off", NOTHING)
    crib.write("never", NOTHING)
    settings = crib.settings("on", "never", "onn", disabled=("never",))

    plugins = discover_all(settings)

    listed = {plugin.name: (plugin.state, plugin.origin) for plugin in plugins}
    assert listed["on"] == ("enabled", "user")
    assert listed["off"] == ("not enabled", "user")
    assert listed["never"] == ("disabled", "user")
    assert listed["onn"] == ("enabled", "missing")
    on = found(plugins, "on")
    assert (on.version, on.description, on.problems) == ("2.0", "Does it", ())
    assert on.location == str(crib.home / "plugins" / "on")
    assert "did you mean 'on'?" in found(plugins, "onn").problems[0]


def test_without_enabled_plugins_nothing_is_read(crib):
    """No name in the list: not even a folder is looked at, and no package metadata is imported."""
    (crib.home / "plugins").mkdir(parents=True)
    script = """
import sys
from pathlib import Path
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.plugins.discover import find_enabled
touched = []
sys.addaudithook(lambda event, args: touched.append(args) if event in ("open", "os.listdir", "os.scandir") else None)
assert find_enabled(Settings(home=Home(Path(sys.argv[1])))) == []
assert touched == [], touched
assert "importlib.metadata" not in sys.modules
assert "ruamel.yaml" not in sys.modules
"""
    run_python(script, str(crib.home))


def test_a_name_in_a_folder_needs_no_look_at_installed_packages(crib):
    """The slow scan of installed packages is for names that no folder answers to."""
    crib.write("local", NOTHING)
    script = """
import sys
from pathlib import Path
from toolcrib.config.paths import Home
from toolcrib.config.settings import PluginSettings, Settings
from toolcrib.plugins.discover import find_enabled
settings = Settings(home=Home(Path(sys.argv[1])), plugins=PluginSettings(enabled=["local"]))
assert [plugin.name for plugin in find_enabled(settings)] == ["local"]
assert "importlib.metadata" not in sys.modules
"""
    run_python(script, str(crib.home))


def test_project_plugins_need_the_opt_in_and_stand_in_for_those_of_the_user(crib, tmp_path: Path):
    """A project folder counts only where allowed; then it wins over the user's, and ours over the reference's name."""
    project = tmp_path / "project"
    crib.write("shared", NOTHING)
    crib.write("shared", NOTHING, folder=project / ".hermes" / "plugins")
    ours = crib.write("shared", NOTHING, folder=project / ".toolcrib" / "plugins")
    crib.write("classic", NOTHING, folder=project / ".hermes" / "plugins")

    closed = discover_all(crib.settings(), project)
    opened = discover_all(crib.settings(project=True), project)

    assert {plugin.name: plugin.origin for plugin in closed if plugin.origin != "entry point"} == {"shared": "user"}
    assert (found(opened, "shared").origin, found(opened, "shared").path) == ("project", ours)
    assert found(opened, "classic").origin == "project"


def test_project_plugins_load_from_the_given_folder(crib, tmp_path: Path):
    """The loader takes the same plugin that the list shows."""
    crib.write(
        "local", "def register(ctx): ctx.register_hook('pre_llm_call', print)", folder=tmp_path / ".toolcrib/plugins"
    )

    (refused,) = load_plugins(crib.settings("local"), crib.registry, crib.hooks, project_folder=tmp_path)
    (loaded,) = load_plugins(crib.settings("local", project=True), crib.registry, crib.hooks, project_folder=tmp_path)

    assert refused.problem.startswith("no plugin is named 'local'")
    assert (loaded.origin, loaded.hooks) == ("project", ("pre_llm_call",))


def test_a_plugin_may_be_named_after_its_folder(crib):
    """The config may use the name in the manifest or that of the folder; both mean the same plugin once."""
    crib.write("folder", NOTHING, manifest="name: fancy name\n")

    enabled = find_enabled(crib.settings("folder", "fancy name"))

    assert [plugin.name for plugin in enabled] == ["fancy name"]


def test_two_folders_with_one_name_are_reported(crib):
    """The first folder keeps the name; the other is named in a problem."""
    first = crib.write("a", NOTHING, manifest="name: same")
    second = crib.write("b", NOTHING, manifest="name: same")

    plugin = found(discover_all(crib.settings()), "same")

    assert plugin.path == first
    assert plugin.problems == (
        f"{second} is also named 'same' and is ignored; change `name` in one of the two manifests",
    )


def test_a_folder_without_a_manifest_is_no_plugin_but_a_package_without_one_is_reported(crib):
    """Somebody who forgot the manifest is told so; other folders are left alone."""
    (crib.home / "plugins" / "notes").mkdir(parents=True)
    package = crib.write("forgot", NOTHING)
    (package / "plugin.yaml").unlink()

    plugins = [plugin for plugin in discover_all(crib.settings()) if plugin.origin == "user"]
    (loaded,) = crib.load("forgot")

    assert [plugin.name for plugin in plugins] == ["forgot"]
    assert loaded.problem == f"{package} has no plugin.yaml; add one that says `name: forgot`"


BROKEN = {
    "not YAML": ("name: [", "this is not valid YAML"),
    "a list": ("- name", "has no keys"),
    "text": ("hello", "has no keys"),
    "not UTF-8": (b"name: \xff", "is not UTF-8 text"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_manifest_is_reported_with_its_file_and_is_not_fatal(crib, text: str | bytes, reason: str):
    """A manifest that cannot be used costs its own plugin alone, and the sentence names the file."""
    folder = crib.write("broken", NOTHING)
    (folder / "plugin.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    crib.write("fine", NOTHING)

    broken, fine = crib.load("broken", "fine")

    assert broken.problem.startswith(str(folder / "plugin.yaml"))
    assert reason in broken.problem
    assert fine.problem == ""


ODD = {
    "unknown kind": ("kind: gadget", "kind 'gadget' is treated as 'standalone'"),
    "name is a list": ("name: [a]", "'name' is a list; write text"),
    "nameless variable": ("requires_env: [{description: x}]", "'requires_env' has an item without a name"),
    "tools are numbers": ("provides_tools: [1]", "'provides_tools' has an item without a name"),
}


@pytest.mark.parametrize(("line", "reason"), ODD.values(), ids=ODD)
def test_an_odd_manifest_is_reported_and_its_plugin_still_loads(crib, line: str, reason: str):
    """What can be understood is used; what cannot is said with its line."""
    folder = crib.write("odd", NOTHING, manifest=f"# first line\n{line}\n")

    plugin = found(discover_all(crib.settings("odd")), "odd")

    assert plugin.problems[0].startswith(f"{folder / 'plugin.yaml'}:2: {reason}")
    assert crib.load_one("odd").problem == ""


def test_all_shapes_of_lists_are_understood(crib):
    """Names may stand alone, in a list, in objects or as keys; text stays as written."""
    folder = crib.write(
        "shapes",
        manifest="""
name: 12
version: 1.10
kind: model-provider
requires_env: ONE
provides_tools: {a: {}, b: null}
provides_hooks: [x, {name: y}]
""",
    )

    manifest, problems = read_manifest(folder / "plugin.yaml")

    assert problems == []
    assert (manifest.name, manifest.version, manifest.kind) == ("12", "1.10", "model-provider")
    assert manifest.variables == {"ONE": {}}
    assert (manifest.provides_tools, manifest.provides_hooks) == (["a", "b"], ["x", "y"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=50), inner, max_size=4),
    max_leaves=8,
)
KEYS = ("name", "version", "description", "author", "kind", "requires_env", "provides_tools", "provides_hooks")


@given(data=st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_values_in_a_manifest_give_a_manifest(tmp_path_factory, data):
    """Whatever stands under the known keys, a manifest with a name comes out; nothing raises."""
    file = tmp_path_factory.mktemp("plugin") / "plugin.yaml"
    file.write_text(json.dumps(data), encoding="utf-8")

    manifest, problems = read_manifest(file)

    assert manifest.name
    assert all(problem.startswith(str(file)) for problem in problems)
    assert all(isinstance(name, str) for name in (*manifest.variables, *manifest.provides_tools))


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_as_a_manifest_give_a_manifest_or_a_plugin_error(tmp_path_factory, content: bytes):
    """A wild file never breaks more than its own plugin."""
    file = tmp_path_factory.mktemp("plugin") / "plugin.yaml"
    file.write_bytes(content)

    try:
        said = read_manifest(file)[0].name
    except PluginError as error:
        said = str(error).removeprefix(str(file))

    assert said


ENTRY_POINTS = """
[toolcrib.plugins]
acme = acme_plugin
acme-function = acme_plugin.parts:setup

[hermes_agent.plugins]
classic = classic_plugin
"""
ACME = """
def register(ctx):
    ctx.register_tool("acme", "acme", {}, lambda args, **_: "from acme")
"""
PARTS = """
import functools
from toolcrib.registry import registry
def setup(ctx):
    take = lambda: registry.register("terminal", "x", {}, functools.partial(print), override=True)
    ctx.register_hook("pre_llm_call", take)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an installed distribution that offers three plugins."""
    site = tmp_path / "site"
    (site / "acme_plugin").mkdir(parents=True)
    (site / "acme_plugin" / "__init__.py").write_text(ACME)
    (site / "acme_plugin" / "parts.py").write_text(PARTS)
    (site / "classic_plugin.py").write_text("def register(ctx): ctx.register_hook('post_tool_call', print)\n")
    info = site / "acme-3.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 3.2\nSummary: Acme tools\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


def run_python(script: str, *arguments: str, site: Path | None = None) -> str:
    path = os.pathsep.join(str(folder) for folder in (SOURCE_FOLDER, site) if folder is not None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plugins_of_installed_packages_are_listed_and_loaded(crib, site: Path):
    """Both entry-point groups count; an entry point may name a module or the function itself."""
    script = """
import json, sys
from pathlib import Path
from toolcrib.config.paths import Home
from toolcrib.config.settings import PluginSettings, Settings
from toolcrib.core.types import Source
from toolcrib.hooks.manager import HookManager
from toolcrib.plugins.discover import discover_all
from toolcrib.plugins.load import load_plugins
from toolcrib.registry import registry
with registry.loading(Source("builtin", "toolcrib.tools.terminal")):
    registry.register("terminal", "terminal", {}, print)
names = ["acme", "classic", "acme-function", "acmee"]
settings = Settings(home=Home(Path(sys.argv[1])), plugins=PluginSettings(enabled=names))
listed = [(p.name, p.version, p.description, p.location) for p in discover_all(settings) if p.origin == "entry point"]
hooks = HookManager()
loaded = load_plugins(settings, registry, hooks)
hooks.invoke("pre_llm_call")
print(json.dumps({
    "listed": listed,
    "loaded": [(p.name, p.version, p.origin, p.tools, p.hooks, p.problem) for p in loaded],
    "result": registry.dispatch("acme", {}),
    "owner": str(registry.get_entry("acme").source),
    "terminal": registry.get_entry("terminal").source.kind,
    "alias": sys.modules["hermes_plugins.acme"].__name__,
}))
"""
    seen = json.loads(run_python(script, str(crib.home), site=site))

    assert seen["listed"] == [
        ["acme", "3.2", "Acme tools", "acme_plugin"],
        ["acme-function", "3.2", "Acme tools", "acme_plugin.parts:setup"],
        ["classic", "3.2", "Acme tools", "classic_plugin"],
    ]
    assert seen["loaded"][:3] == [
        ["acme", "3.2", "entry point", ["acme"], [], ""],
        ["classic", "3.2", "entry point", [], ["post_tool_call"], ""],
        ["acme-function", "3.2", "entry point", [], ["pre_llm_call"], ""],
    ]
    assert "did you mean 'acme'" in seen["loaded"][3][-1]
    assert (seen["result"], seen["owner"]) == ("from acme", "plugin acme (acme_plugin)")
    assert seen["terminal"] == "builtin"
    assert seen["alias"] == "acme_plugin"


@pytest.mark.services
def test_a_folder_stands_in_for_an_installed_package_of_the_same_name(crib, site: Path):
    """The list shows the plugin that would be loaded: the one in the folder."""
    crib.write("acme", NOTHING)
    script = """
import sys
from pathlib import Path
from toolcrib.config.paths import Home
from toolcrib.config.settings import PluginSettings, Settings
from toolcrib.plugins.discover import discover_all, find_enabled
settings = Settings(home=Home(Path(sys.argv[1])), plugins=PluginSettings(enabled=["acme", "classic"]))
assert {p.name: p.origin for p in discover_all(settings)}["acme"] == "user"
assert [(p.name, p.origin) for p in find_enabled(settings)] == [("acme", "user"), ("classic", "entry point")]
"""
    run_python(script, str(crib.home), site=site)
