"""Tool files that were copied from the reference system must not break the built-in tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolcrib.registry.compat_imports import explain_missing_module, missing_internals
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import load_builtin_tools, load_tool_file
from toolcrib.registry.registration import AGENT_STATE_TOOLS
from toolcrib.registry.registry import ToolRegistry

REGISTERS = """
from tools.registry import registry

def handler(args, **kw):
{inside}
    return '{{"error": "not initialized"}}'

registry.register(name={name!r}, toolset={toolset!r}, schema={{"description": "copied"}}, handler=handler{options})
"""


@pytest.fixture(autouse=True)
def built_in() -> None:
    load_builtin_tools()


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry(parent=default_registry)


def copied(folder: Path, name: str, toolset: str, *, inside: str = "    pass", options: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}_copy.py"
    file.write_text(REGISTERS.format(inside=inside, name=name, toolset=toolset, options=options), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", sorted(AGENT_STATE_TOOLS))
def test_tools_of_a_running_agent_keep_their_handler(tmp_path: Path, registry: ToolRegistry, name: str) -> None:
    """A copy lacks the agent's state, so it is refused with a reason; `override=True` still replaces on purpose."""
    ours = default_registry.get_entry(name)
    assert ours is not None

    loaded = load_tool_file(copied(tmp_path / "tools", name, ours.toolset), registry)

    assert loaded.tools == []
    assert registry.get_entry(name) is ours
    assert f"tool {name!r}" in registry.rejections[0]
    assert "the state of the running agent" in registry.rejections[0]
    on_purpose = load_tool_file(copied(tmp_path / "tools", name, ours.toolset, options=", override=True"), registry)
    assert on_purpose.tools == [name]


@pytest.mark.parametrize(
    ("inside", "missing"),
    [
        ("    import tools.file_operations", "'tools.file_operations'"),
        ("    from tools.file_operations import x", "'tools.file_operations'"),
        ("    from agent.redact import redact_cdp_url", "'agent.redact.redact_cdp_url'"),
        ("    from tools import file_state", "'tools.file_state'"),
        ("    import hermes_state", "'hermes_state'"),
        ("    try:\n        import nothing\n    except ImportError:\n        import gateway.run", "'gateway.run'"),
        ("    class Later:\n        def run(self):\n            import cli", "'cli'"),
    ],
)
def test_file_that_needs_internals_which_are_not_here_is_set_aside(
    tmp_path: Path, registry: ToolRegistry, inside: str, missing: str
) -> None:
    """It would fail only when it is called, so its imports are looked at, also those inside functions."""
    file = copied(tmp_path / "tools", "read_file", "file", inside=inside)

    loaded = load_tool_file(file, registry)

    assert "it would replace the built-in 'read_file'" in loaded.problem
    assert missing in loaded.problem
    assert loaded.tools == []
    entry = registry.get_entry("read_file")
    assert entry is not None
    assert entry.is_ours


@pytest.mark.parametrize(
    "inside",
    [
        "    pass",
        "    from agent.redact import redact_sensitive_text",
        "    import json, os.path",
        "    try:\n        import tools.file_operations\n    except ImportError:\n        pass",
        "    try:\n        from hermes_state import x\n    except (ValueError, ImportError):\n        pass",
        "    from typing import TYPE_CHECKING\n    if TYPE_CHECKING:\n        import hermes_state",
        "    from tools.environments import docker",
        "    from tools.beside_it import x",
    ],
)
def test_own_replacement_of_a_built_in_still_loads(tmp_path: Path, registry: ToolRegistry, inside: str) -> None:
    """A file that needs nothing but what is here, or can do without, replaces the tool as before."""
    file = copied(tmp_path / "tools", "read_file", "file", inside=inside)
    (tmp_path / "tools" / "beside_it.py").write_text("x = 1\n")

    loaded = load_tool_file(file, registry)

    assert loaded.problem == ""
    entry = registry.get_entry("read_file")
    assert entry is not None
    assert entry.source.kind == "user"


def test_tool_of_its_own_loads_although_internals_are_missing(tmp_path: Path, registry: ToolRegistry) -> None:
    """Only a built-in is protected: a new tool may work in part."""
    file = copied(tmp_path / "tools", "entirely_new", "new", inside="    import hermes_state")

    assert missing_internals(file) == ["hermes_state"]
    assert load_tool_file(file, registry).tools == ["entirely_new"]


@pytest.mark.parametrize("name", ["agent", "agent.skill_utils", "cli", "utils.more", "hermes_state", "gateway.run"])
def test_internals_of_the_reference_are_never_installed(name: str) -> None:
    """Packages of these names on the index have nothing to do with them."""
    sentence = explain_missing_module(name)

    assert sentence == f"it imports {name!r}, an internal module of Hermes Agent that toolcrib does not provide"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("yaml", "`pip install 'toolcrib[hermes]'`"),
        ("sklearn.svm", "`pip install scikit-learn`"),
        ("PIL.Image", "`pip install pillow`"),
        ("requests", "`pip install requests`"),
        ("nobody_knows_this", "install the package that provides it"),
    ],
)
def test_advice_names_a_package_only_if_it_is_known(name: str, advice: str) -> None:
    """An import name is not the name of a package."""
    sentence = explain_missing_module(name)

    assert advice in sentence
    assert "nobody_knows_this`" not in sentence


@pytest.mark.services
def test_people_see_what_was_set_aside(python, home: Path) -> None:  # type: ignore[no-untyped-def]
    """`doctor`, `tools list` and `tools explain` name the file, the tool and the reason, and `todo` still works."""
    copied(home / "tools", "todo", "todo")
    copied(home / "tools", "read_file", "file", inside="    import tools.file_operations")

    doctor = python("-m", "toolcrib", "doctor", "--json")
    listed = python("-m", "toolcrib", "tools", "list")
    todo = json.loads(python("-m", "toolcrib", "tools", "explain", "todo", "--json").stdout)
    reader = python("-m", "toolcrib", "tools", "explain", "read_file")

    problems = " ".join(problem["what"] for problem in json.loads(doctor.stdout)["problems"])
    assert "tool 'todo'" in problems
    assert "tools.file_operations" in problems
    assert "1 tool file failed to load and 1 tool was rejected" in listed.stdout + listed.stderr
    assert todo["source"]["kind"] == "builtin"
    assert "the state of the running agent" in todo["not_used"][0]
    assert "which Hermes Agent has and toolcrib does not provide" in " ".join(reader.stdout.split())
