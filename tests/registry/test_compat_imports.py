"""The import hook: the reference's names and the files beside a tool, and never in the way of a real module."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolcrib.registry import compat_imports
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import load_tool_folder
from toolcrib.registry.registry import ToolRegistry


def run(code: str, folder: Path) -> str:
    """The output of a fresh process that stands in `folder`."""
    source = str(Path(sys.modules["toolcrib"].__file__ or "").parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


def registering(name: str, answer: str) -> str:
    return (
        "from tools.registry import registry\n"
        f"registry.register({name!r}, 'found', {{}}, lambda args, **kwargs: {answer})\n"
    )


def load(folder: Path) -> ToolRegistry:
    registry = ToolRegistry(parent=default_registry)
    reports = load_tool_folder(folder, registry)
    assert [report.problem for report in reports if report.problem] == []
    return registry


def test_it_stands_last_and_only_once() -> None:
    """Real modules are found first; installing again gives the same finder."""
    first = compat_imports.install()

    assert compat_imports.install() is first
    assert [found for found in sys.meta_path if isinstance(found, compat_imports.CompatibilityFinder)] == [first]


def test_nothing_is_imported_before_somebody_asks() -> None:
    """Installing it costs nothing."""
    code = (
        "import sys\nfrom toolcrib.registry import compat_imports\ncompat_imports.install()\n"
        "theirs = compat_imports.COMPATIBILITY_MODULES\n"
        "print([name for name in sys.modules if name.startswith('toolcrib.compat') or name in theirs])"
    )

    assert run(code, Path.cwd()) == "[]\n"


def test_the_registry_under_the_reference_s_name_is_ours() -> None:
    """The same object, not a copy."""
    compat_imports.install()

    assert importlib.import_module("tools.registry").registry is default_registry


def test_a_name_nobody_knows_is_not_answered(folder: Path) -> None:
    """The error is Python's own."""
    compat_imports.install(folder)

    for name in ("tools.surely_missing", "toolcrib_user_tools.surely_missing", "surely_missing", "tools.a.b"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_a_real_package_of_that_name_wins(tmp_path: Path) -> None:
    """A project with its own `tools` keeps it; only what it lacks is ours."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("WHO = 'real package'\n")
    (tmp_path / "tools" / "interrupt.py").write_text("WHO = 'real module'\n")
    (tmp_path / "toolsets.py").write_text("WHO = 'real too'\n")
    code = (
        "from toolcrib.registry import compat_imports\ncompat_imports.install()\n"
        "import tools, tools.interrupt, toolsets\nprint(tools.WHO, tools.interrupt.WHO, toolsets.WHO, sep=', ')\n"
        "from tools.registry import registry\nprint(type(registry).__name__)"
    )

    assert run(code, tmp_path) == "real package, real module, real too\nToolRegistry\n"


def test_a_file_beside_a_tool_can_be_imported(folder: Path) -> None:
    """As `tools.X`, from `tools`, or relative; it is one module for those who ask in the same way."""
    (folder / "beside.py").write_text("VALUE = ['b']\n")
    (folder / "by_name.py").write_text("from tools.beside import VALUE\n" + registering("by_name", "VALUE[0]"))
    (folder / "by_package.py").write_text("from tools import beside\n" + registering("by_package", "beside.VALUE[0]"))
    (folder / "relative.py").write_text("from .beside import VALUE\n" + registering("relative", "VALUE[0]"))

    registry = load(folder)

    assert [registry.dispatch(name, {}) for name in ("by_name", "by_package", "relative")] == ["b", "b", "b"]


def test_a_tool_file_can_be_imported_by_another(folder: Path) -> None:
    """`tools.X` of a loaded tool file is the module that was loaded."""
    (folder / "a_first.py").write_text("VALUE = object()\n" + registering("a_first", "'a'"))
    (folder / "b_second.py").write_text("from tools.a_first import VALUE\n" + registering("b_second", "'b'"))

    load(folder)

    loaded = sys.modules["toolcrib_user_tools.a_first"]
    assert sys.modules["toolcrib_user_tools.b_second"].VALUE is loaded.VALUE
    assert importlib.import_module("tools.a_first") is loaded
    assert loaded.__spec__ is not None
    assert loaded.__spec__.name == "toolcrib_user_tools.a_first"


def test_a_reloaded_tool_file_is_what_others_import_next(folder: Path) -> None:
    """Not the module from before."""
    (folder / "changing.py").write_text("VALUE = 1\n" + registering("changing", "'a'"))
    load(folder)
    assert importlib.import_module("tools.changing").VALUE == 1
    (folder / "changing.py").write_text("VALUE = 22\n" + registering("changing", "'b'"))

    load(folder)

    assert importlib.import_module("tools.changing").VALUE == 22


@pytest.mark.parametrize(
    "statement",
    ["from tools.beside import VALUE", "from tools import beside; VALUE = beside.VALUE", "from .beside import VALUE"],
)
def test_folders_do_not_get_in_each_other_s_way(tmp_path: Path, statement: str) -> None:
    """A file of the same name beside the tools of another home is another file."""
    seen = []
    for name in ("one", "two", "one"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "beside.py").write_text(f"VALUE = {name!r}\n")
        (folder / "asking.py").write_text(f"{statement}\n" + registering("asking", "VALUE"))
        seen.append(load(folder).dispatch("asking", {}))

    assert seen == ["one", "two", "one"]
