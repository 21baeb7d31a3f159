"""Hot reload: what is saved in the tools folder counts at the next look, and a slip of the pen costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import load_tool_folder
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.reload import ToolFolderWatcher


def tool_text(name: str, answer: str = "one", toolset: str = "reload") -> str:
    return f'''
from toolcrib import tool

@tool(toolset="{toolset}", name="{name}")
def function() -> str:
    """Says {answer}."""
    return "{answer}"
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tools"


@pytest.fixture
def save(folder: Path):
    def write(file: str, text: str) -> Path:
        folder.mkdir(exist_ok=True)
        path = folder / file
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry(parent=default_registry)


def own_tools(registry: ToolRegistry) -> list[str]:
    return [entry.name for entry in registry.entries() if entry.source.kind == "user"]


def test_nothing_is_reported_while_nothing_changes(folder, save, registry):
    """Files that were there at the start are known already."""
    save("a.py", tool_text("reload_a"))
    load_tool_folder(folder, registry)
    watcher = ToolFolderWatcher(folder, registry)

    assert watcher.refresh() == []
    assert own_tools(registry) == ["reload_a"]


def test_a_folder_that_appears_later_is_picked_up(folder, save, registry):
    """The first tool of a user creates the folder while the chat runs."""
    watcher = ToolFolderWatcher(folder, registry)
    path = save("b.py", tool_text("reload_b"))

    [report] = watcher.refresh()

    assert (report.path, report.tools_added, report.problem, report.findings) == (path, ("reload_b",), "", ())
    assert own_tools(registry) == ["reload_b"]
    assert watcher.refresh() == []


def test_a_saved_change_counts_even_within_one_second_and_with_the_same_size(folder, save, registry):
    """Byte code from the first save must not answer for the second."""
    watcher = ToolFolderWatcher(folder, registry)
    save("c.py", tool_text("reload_c", "one"))
    watcher.refresh()
    save("c.py", tool_text("reload_c", "two"))

    [report] = watcher.refresh()

    assert report.tools_added == ("reload_c",)
    assert report.tools_removed == ()
    assert "two" in str(registry.dispatch("reload_c", {}))


def test_a_tool_that_the_file_no_longer_declares_is_gone(folder, save, registry):
    """Renaming a tool leaves nothing of the old name behind."""
    watcher = ToolFolderWatcher(folder, registry)
    save("d.py", tool_text("reload_old"))
    watcher.refresh()
    save("d.py", tool_text("reload_new_name"))

    [report] = watcher.refresh()

    assert (report.tools_added, report.tools_removed) == (("reload_new_name",), ("reload_old",))
    assert own_tools(registry) == ["reload_new_name"]


def test_a_tool_may_move_to_another_toolset(folder, save, registry):
    """The earlier version of a file is no rival of the later one."""
    watcher = ToolFolderWatcher(folder, registry)
    save("e.py", tool_text("reload_e", toolset="here"))
    watcher.refresh()
    save("e.py", tool_text("reload_e", toolset="there"))

    [report] = watcher.refresh()

    assert report.findings == ()
    assert registry.get_toolset_for_tool("reload_e") == "there"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("def (", "line 1"),
        (tool_text("reload_f", "two") + "\nimport a_package_that_nobody_has\n", "a_package_that_nobody_has"),
    ],
)
def test_a_file_that_fails_keeps_its_old_tools_and_reports(folder, save, registry, broken, said):
    """Whether it fails at the first line or after registering something, what worked before works on."""
    watcher = ToolFolderWatcher(folder, registry)
    save("f.py", tool_text("reload_f", "one"))
    watcher.refresh()
    before = registry.get_entry("reload_f")
    save("f.py", broken)

    [report] = watcher.refresh()

    assert said in report.problem
    assert (report.tools_added, report.tools_removed) == ((), ())
    after = registry.get_entry("reload_f")
    assert after == before
    assert "one" in str(registry.dispatch("reload_f", {}))
    assert watcher.refresh() == []


def test_a_deleted_file_takes_its_tools_along(folder, save, registry):
    """Deleting the file is how a user removes a tool."""
    watcher = ToolFolderWatcher(folder, registry)
    path = save("g.py", tool_text("reload_g"))
    watcher.refresh()
    path.unlink()

    [report] = watcher.refresh()

    assert report.tools_removed == ("reload_g",)
    assert own_tools(registry) == []


def test_a_file_that_stops_declaring_tools_takes_them_along(folder, save, registry):
    """A file that became a plain module is as good as deleted."""
    watcher = ToolFolderWatcher(folder, registry)
    save("h.py", tool_text("reload_h"))
    watcher.refresh()
    save("h.py", "VALUE = 1\n")

    [report] = watcher.refresh()

    assert report.tools_removed == ("reload_h",)


def test_lint_findings_and_refusals_come_with_the_report(folder, save, registry):
    """The author sees at once what the checklist says, and which registration was refused."""
    watcher = ToolFolderWatcher(folder, registry)
    save(
        "i.py",
        "from toolcrib.registry import registry\n"
        "registry.register(name='reload_i', toolset='t', schema={'description': ''}, handler=lambda args, **kw: '{}')\n"
        "registry.register(name='reload_j', toolset='t', schema='no schema', handler=lambda args, **kw: '{}')\n",
    )

    [report] = watcher.refresh()

    assert report.tools_added == ("reload_i",)
    assert {"description", "refused"} <= {finding.rule for finding in report.findings}
    assert any("reload_j" in finding.message for finding in report.findings)


def test_helper_files_without_tools_are_no_news(folder, save, registry):
    """A module that tools import is not reported, and its appearance changes no tool."""
    watcher = ToolFolderWatcher(folder, registry)
    save("words.py", "WORDS = ['a']\n")

    assert watcher.refresh() == []
