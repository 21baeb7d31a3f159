"""Discovery: which files declare tools, what becomes of each, and what is remembered about them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import (
    ScanCache,
    declares_tools,
    discover_builtin_tools,
    explain_import_error,
    load_builtin_tools,
    load_tool_file,
    load_tool_folder,
    tool_files,
)
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime

REGISTERS = """
from toolcrib import registry
registry.register(name={name!r}, toolset="found", schema={{}}, handler=lambda args, **kwargs: {answer!r})
"""


def tool_file(folder: Path, name: str, answer: str = "ok", before: str = "", after: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(before + REGISTERS.format(name=name, answer=answer) + after)
    return path


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry(parent=default_registry)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


# The rule


@pytest.mark.parametrize(
    ("code", "declares"),
    [
        ("registry.register()", True),
        ("registry.register(name='x')", True),
        ("toolcrib.registry.register(name='x')", True),
        ("import os\n\nregistry.register(\n    name='x',\n)\n", True),
        ("@tool\ndef f(): ...", True),
        ("@tool(toolset='x')\ndef f(): ...", True),
        ("@toolcrib.tool\ndef f(): ...", True),
        ("@toolcrib.tool(name='x')\nasync def f(): ...", True),
        ("@other\n@tool\nasync def f(): ...", True),
        ("import toolcrib as crib\n@crib.tool\ndef f(): ...", True),
        ("from toolcrib import tool as declare\n@declare(name='x')\ndef f(): ...", True),
        ("from toolcrib.registry.decorator import tool as t\n@t\ndef f(): ...", True),
        ("", False),
        ("def f():\n    registry.register()", False),
        ("class C:\n    registry.register()", False),
        ("if True:\n    registry.register()", False),
        ("try:\n    registry.register()\nexcept E:\n    pass", False),
        ("for x in y:\n    registry.register(x)", False),
        ("with x:\n    registry.register()", False),
        ("x = registry.register()", False),
        ("registry.register", False),
        ("registry.register().more()", False),
        ("registry.deregister()", False),
        ("other.register()", False),
        ("register()", False),
        ("reg.register()", False),
        ("registry().register()", False),
        ("'registry.register()'", False),
        ("# registry.register()", False),
        ("def f():\n    @tool\n    def g(): ...", False),
        ("if True:\n    @tool\n    def g(): ...", False),
        ("@tool\nclass C: ...", False),
        ("@server.tool\ndef f(): ...", False),
        ("@server.tool()\ndef f(): ...", False),
        ("@tools\ndef f(): ...", False),
        ("@tool.more\ndef f(): ...", False),
        ("@table['tool']\ndef f(): ...", False),
        ("from toolcrib import registry as declare\n@declare\ndef f(): ...", False),
        ("from elsewhere import tool as declare\n@declare\ndef f(): ...", False),
        ("def tool(f): ...", False),
        ("tool(f)", False),
    ],
)
def test_a_file_declares_tools_by_a_statement_at_its_top_level(tmp_path: Path, code: str, declares: bool) -> None:
    """A `registry.register(...)` statement or a function under `@tool`; nothing inside anything else counts."""
    path = tmp_path / "file.py"
    path.write_text(code)

    assert declares_tools(path) is declares


@given(st.binary(max_size=200))
def test_no_content_breaks_the_scan(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever the bytes are, there is a verdict."""
    path = tmp_path_factory.getbasetemp() / "wild.py"
    path.write_bytes(content)

    assert declares_tools(path) in (True, False)


@pytest.mark.parametrize(
    "content",
    [
        b"def broken(:\n",
        b"\xff\xfe\x00",
        b"x = 1\x00",
        b"# coding: nonsense\n",
        b"x = " + b"(" * 100_000,
        b"x = " + b"-" * 100_000 + b"1",
    ],
)
def test_what_cannot_be_parsed_is_tried_so_that_its_error_is_seen(
    folder: Path, registry: ToolRegistry, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is reported with its reason, at level warning, and the others load."""
    (folder / "a_broken.py").write_bytes(content)
    tool_file(folder, "b_good")

    broken, good = load_tool_folder(folder, registry)

    assert broken.problem
    assert (good.tools, good.problem) == (["b_good"], "")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "a_broken.py" in caplog.records[0].getMessage()


# Which files


def test_files_are_found_in_order_and_only_tool_files(folder: Path) -> None:
    """Hidden files, the three names that are no tools, folders, pipes and other endings are left out."""
    for name in ("zebra", "ant", "__init__", "registry", "mcp_tool", ".hidden", "._ant"):
        tool_file(folder, name)
    tool_file(folder / "deeper", "below")
    (folder / "folder.py").mkdir()
    (folder / "text.txt").write_text("registry.register()")
    (folder / "helper.py").write_text("x = 1")
    os.mkfifo(folder / "pipe.py")

    assert [path.name for path in tool_files(folder, ScanCache())] == ["ant.py", "zebra.py"]


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    """Nobody has to make one."""
    assert tool_files(tmp_path / "nowhere", ScanCache()) == []


def test_a_link_that_leads_nowhere_is_reported(folder: Path, registry: ToolRegistry) -> None:
    """Whoever linked a tool into the folder wants to know why it is missing."""
    (folder / "lost.py").symlink_to(folder / "nowhere.py")

    [report] = load_tool_folder(folder, registry)

    assert "No such file" in report.problem


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_reported(folder: Path, registry: ToolRegistry) -> None:
    """And what was found out about it is not remembered, since permissions change without a trace."""
    path = tool_file(folder, "secret")
    path.chmod(0)
    cache = ScanCache(folder / "cache.json")

    [report] = load_tool_folder(folder, registry, cache)
    cache.save()

    assert "PermissionError" in report.problem
    assert not (folder / "cache.json").exists()


# Loading


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("import surely_not_installed.part", "it imports 'surely_not_installed', which is not installed"),
        ("import agent.secrets_of_it", "an internal module of Hermes Agent that toolcrib does not provide"),
        ("import hermes_state", "'hermes_state', an internal module of Hermes Agent that toolcrib does not provide"),
        ("from tools.file_operations import x", "'tools.file_operations', an internal module of Hermes Agent"),
        ("from tools import file_operations", "'file_operations' from 'tools', an internal name of Hermes Agent"),
        ("from agent.redact import nothing", "'nothing' from 'agent.redact', an internal name of Hermes Agent"),
        ("from tools.missing_helper import x", "'tools.missing_helper', which does not exist; put missing_helper.py"),
        ("from .missing_helper import x", "imports 'toolcrib_user_tools.missing_helper', which does not exist"),
        ("raise ModuleNotFoundError('pip install me')", "ModuleNotFoundError: pip install me"),
        ("from os import no_such_thing", "ImportError: cannot import name 'no_such_thing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "it calls sys.exit(3) while it is imported"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class E(BaseException): ...\nraise E('odd')", "E: odd"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E: it has no readable message"),
        ("x = = 1", "line 1: invalid syntax"),
    ],
)  # fmt: skip
def test_a_file_that_fails_is_reported_and_the_rest_load(
    folder: Path, registry: ToolRegistry, line: str, problem: str
) -> None:
    """The reason names what is missing or wrong, and what to do."""
    tool_file(folder, "a_good")
    tool_file(folder, "b_bad", before=f"{line}\n")
    tool_file(folder, "c_good")

    reports = load_tool_folder(folder, registry)

    assert [report.path.name for report in reports] == ["a_good.py", "b_bad.py", "c_good.py"]
    assert problem in reports[1].problem
    assert {"a_good", "c_good"} <= set(registry.get_all_tool_names())
    assert registry.get_entry("b_bad") is None
    assert "toolcrib_user_tools.b_bad" not in sys.modules


def test_ctrl_c_during_an_import_stops_the_discovery(folder: Path, registry: ToolRegistry) -> None:
    """It is the person's, not the file's."""
    tool_file(folder, "slow", before="raise KeyboardInterrupt\n")

    with pytest.raises(KeyboardInterrupt):
        load_tool_folder(folder, registry)


def test_one_bad_registration_costs_one_tool(folder: Path, registry: ToolRegistry) -> None:
    """The file loads, its other tools work, and the refusal is kept."""
    tool_file(folder, "good", before="from toolcrib import registry\nregistry.register('bad', 'x', {1, 2}, len)\n")

    [report] = load_tool_folder(folder, registry)

    assert (report.tools, report.problem) == (["good"], "")
    assert len(registry.rejections) == 1
    assert "'bad'" in registry.rejections[0]


def test_tools_of_a_file_land_in_its_registry_alone(folder: Path, registry: ToolRegistry) -> None:
    """Although the file fills the default registry, as far as it knows."""
    tool_file(folder, "mine")

    load_tool_folder(folder, registry)

    entry = registry.get_entry("mine")
    assert entry is not None
    assert (entry.source.kind, entry.source.name, entry.source.path) == ("user", "mine.py", str(folder / "mine.py"))
    assert registry.parent is not None
    assert registry.parent.get_entry("mine") is None


def test_both_ways_to_declare_work_from_a_file(folder: Path, registry: ToolRegistry) -> None:
    """The contract's `registry.register` under the reference's import name, and `@tool`."""
    (folder / "reference.py").write_text(REGISTERS.format(name="one", answer="1").replace("toolcrib", "tools.registry"))
    (folder / "ours.py").write_text("from toolcrib import tool\n@tool\ndef two() -> str:\n    'Two.'\n    return '2'\n")

    reports = load_tool_folder(folder, registry)

    assert [(report.tools, report.problem) for report in reports] == [(["two"], ""), (["one"], "")]
    assert (registry.dispatch("one", {}), registry.dispatch("two", {})) == ("1", "2")


def test_a_file_is_loaded_anew_each_time(folder: Path, registry: ToolRegistry) -> None:
    """A tool that it declares twice is reported once."""
    path = tool_file(folder, "fresh", "old")
    load_tool_file(path, registry)
    path.write_text(REGISTERS.format(name="fresh", answer="newer") * 2)

    report = load_tool_file(path, registry)

    assert report.tools == ["fresh"]
    assert registry.dispatch("fresh", {}) == "newer"


def test_a_failed_reload_leaves_the_module_from_before(folder: Path, registry: ToolRegistry) -> None:
    """What others imported from it stays usable."""
    path = tool_file(folder, "steady", after="VALUE = 1\n")
    load_tool_file(path, registry)
    before = sys.modules["toolcrib_user_tools.steady"]
    path.write_text("raise RuntimeError\n" + path.read_text())

    assert load_tool_file(path, registry).problem

    assert sys.modules["toolcrib_user_tools.steady"] is before


def test_the_built_in_tools_load_and_name_their_modules() -> None:
    """`discover_builtin_tools()` gives module names; loading again changes nothing."""
    names = discover_builtin_tools()
    reports = load_builtin_tools()

    assert "toolcrib.tools.agent_loop" in names
    assert [report.module for report in reports] == names
    assert names == sorted(names)


def test_discovery_of_another_folder_skips_what_fails(tmp_path: Path) -> None:
    """Only what could be imported is named. In a process of its own, since it fills the default registry."""
    tool_file(tmp_path, "discovered")
    tool_file(tmp_path, "broken", before="1 / 0\n")
    code = (
        "from toolcrib.registry import discover_builtin_tools, registry\n"
        "print(discover_builtin_tools('.'), registry.get_all_tool_names())"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=with_source_path(), capture_output=True, text=True, timeout=60
    )

    assert done.stdout == "['toolcrib_user_tools.discovered'] ['discovered']\n"


def with_source_path() -> dict[str, str]:
    source = str(Path(sys.modules["toolcrib"].__file__ or "").parents[1])
    return {**os.environ, "PYTHONPATH": source}


# What is remembered


def test_a_verdict_is_remembered_until_the_file_changes(folder: Path, tmp_path: Path) -> None:
    """By time and size; nothing is parsed twice."""
    file = tmp_path / "cache" / "scan.json"
    path = tool_file(folder, "known")
    cache = ScanCache(file)
    assert cache.declares_tools(path)
    cache.save()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700), "only for its owner"
    stat = path.stat()

    path.write_text("#" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ScanCache(file).declares_tools(path), "same time and size: the remembered verdict"

    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert not ScanCache(file).declares_tools(path), "another time"

    path.write_text(REGISTERS.format(name="known", answer="longer than before"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ScanCache(file).declares_tools(path), "another size"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"5", b"null", b'{"x": 1}', b"[" * 100_000, b'{"%PATH%": "x"}', b'{"%PATH%": []}',
     b'{"%PATH%": [1, 2]}', b'{"%PATH%": {"a": 1}}', b'{"%PATH%": null}'],
)  # fmt: skip
def test_a_corrupt_memory_is_ignored_and_replaced(folder: Path, tmp_path: Path, content: bytes) -> None:
    """It costs time, nothing else."""
    file = tmp_path / "scan.json"
    path = tool_file(folder, "found")
    file.write_bytes(content.replace(b"%PATH%", str(path).encode()))
    cache = ScanCache(file)

    assert tool_files(folder, cache) == [path]
    cache.save()
    assert str(path) in json.loads(file.read_bytes())


def test_a_memory_that_cannot_be_written_disturbs_nobody(folder: Path, tmp_path: Path) -> None:
    """A read-only or impossible place only costs time."""
    (tmp_path / "file").write_text("")
    cache = ScanCache(tmp_path / "file" / "scan.json")
    tool_file(folder, "found")

    assert len(tool_files(folder, cache)) == 1
    cache.save()


@pytest.mark.services
def test_processes_may_save_at_once(folder: Path, tmp_path: Path) -> None:
    """Whoever is last wins; the memory is whole at every moment, and no scrap is left beside it."""
    file = tmp_path / "home" / "scan.json"
    for number in range(30):
        tool_file(folder, f"tool_{number}")
    code = (
        "import sys; from pathlib import Path; from toolcrib.registry.discovery import ScanCache, tool_files\n"
        "for _ in range(30):\n"
        "    cache = ScanCache(Path(sys.argv[1])); cache._verdicts.clear(); tool_files(Path(sys.argv[2]), cache)\n"
        "    cache.save(); assert len(ScanCache(Path(sys.argv[1]))._verdicts) == 30\n"
    )
    command = [sys.executable, "-c", code, str(file), str(folder)]
    processes = [subprocess.Popen(command, env=with_source_path()) for _ in range(3)]

    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert list(file.parent.iterdir()) == [file]


# In a runtime


def test_a_runtime_loads_built_in_tools_before_the_user_s(tmp_path: Path) -> None:
    """So a built-in name stays built-in, and the user's other tools are there."""
    home = tmp_path / "home"
    tool_file(home / "tools", "mine")
    tool_file(home / "tools", "todo")
    tool_file(home / "tools", "broken", before="import surely_not_installed\n")
    runtime = Runtime(home=home).load()
    try:
        entry = runtime.registry.get_entry("todo")
        assert entry is not None
        assert entry.source.kind == "builtin"
        assert runtime.registry.get_entry("mine") is not None
        assert any("'todo'" in sentence for sentence in runtime.registry.rejections)
        [problem] = [report.problem for report in runtime.loaded_files if report.problem]
        assert "surely_not_installed" in problem
        kinds = [report.module.split(".")[0] for report in runtime.loaded_files]
        assert kinds == sorted(kinds), "toolcrib.tools.… first, then toolcrib_user_tools.…"
    finally:
        runtime.close()


def test_two_runtimes_do_not_see_each_other_s_tools(tmp_path: Path) -> None:
    """Files of one name in two homes are two files, helpers beside them included."""
    answers = {}
    runtimes = []
    for name in ("one", "two"):
        tools = tmp_path / name / "tools"
        tool_file(tools, f"only_{name}")
        (tools / "same.py").write_text(
            "from tools.beside import ANSWER\nfrom toolcrib import registry\n"
            "registry.register('same', 'found', {}, lambda args, **kwargs: ANSWER)\n"
        )
        (tools / "beside.py").write_text(f"ANSWER = {name!r}\n")
        runtimes.append(Runtime(home=tmp_path / name).load())
    try:
        for name, runtime in zip(("one", "two"), runtimes, strict=True):
            answers[name] = runtime.registry.dispatch("same", {})
            assert runtime.registry.get_entry(f"only_{name}") is not None
        assert answers == {"one": "one", "two": "two"}
        assert runtimes[0].registry.get_entry("only_two") is None
    finally:
        for runtime in runtimes:
            runtime.close()


def test_an_error_without_a_line_is_explained_without_one() -> None:
    """Not every SyntaxError knows where it is."""
    assert explain_import_error(SyntaxError("odd bytes")) == "odd bytes; correct the file and save it"


def test_a_file_that_fails_half_way_leaves_no_tool_behind(folder: Path, registry: ToolRegistry) -> None:
    """A file that is skipped offers nothing: a tool above the line that failed may need what stands below it."""
    tool_file(folder, "half", after="raise ValueError('too late')\n")

    (report,) = load_tool_folder(folder, registry)

    assert (report.tools, registry.get_entry("half")) == ([], None)
    assert "too late" in report.problem
