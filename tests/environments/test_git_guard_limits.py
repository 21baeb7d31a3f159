"""The guard for git repositories changes nothing outside its workspace, whatever a program wrote."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from toolcrib.environments.git_guard import GitGuards


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "a-folder").mkdir(parents=True)
    (folder / "pre-commit").write_text("of others\n")
    return folder


def listed(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else "" for path in folder.rglob("*")}


def settings(workspace: Path, value: Path | str) -> None:
    subprocess.run(["git", "config", "core.hooksPath", str(value)], cwd=workspace, check=True)


def test_a_folder_that_a_program_names_for_hooks_is_left_alone(workspace: Path, outside: Path):
    """The setting is undone; what lies in the folder belongs to others."""
    before, guards = listed(outside), GitGuards("the command's")
    guards.enter(workspace)
    settings(workspace, outside)
    assert ".git/config" in guards.leave(workspace)
    assert listed(outside) == before


def test_a_folder_outside_that_the_person_named_is_left_alone(workspace: Path, outside: Path):
    """A sandbox cannot write there, so other programs changed it."""
    settings(workspace, outside)
    guards = GitGuards("the command's")
    guards.enter(workspace)
    (outside / "post-commit").write_text("new\n")
    before = listed(outside)
    assert guards.leave(workspace) == ""
    assert listed(outside) == before


@pytest.mark.parametrize("link", [".hooks", "a", ".git/hooks"])
def test_links_in_the_place_of_folders_lead_nowhere(workspace: Path, outside: Path, link: str):
    """Neither where hooks were nor in a folder above."""
    hooks = workspace / {".hooks": ".hooks", "a": "a/hooks", ".git/hooks": ".git/hooks"}[link]
    hooks.mkdir(parents=True, exist_ok=True)
    (hooks / "pre-commit").write_text("mine\n")
    (outside / "hooks").mkdir()
    settings(workspace, hooks.relative_to(workspace))
    before, guards = listed(outside), GitGuards("the command's")
    guards.enter(workspace)
    (workspace / link).rename(workspace / "moved")
    (workspace / link).symlink_to(outside)
    guards.leave(workspace)
    assert listed(outside) == before


def test_a_link_that_appears_while_the_guard_works_leads_nowhere(workspace: Path, outside: Path):
    """A program swaps the folder of hooks for a link and back; whenever the guard looks, others lose nothing."""
    hooks, moved = workspace / ".git" / "hooks", workspace / "moved"
    for sample in hooks.iterdir():
        sample.unlink()
    before, guards, stop = listed(outside), GitGuards("the command's"), threading.Event()

    def swap() -> None:
        while not stop.is_set():
            hooks.rename(moved)
            hooks.symlink_to(outside)
            hooks.unlink()
            moved.rename(hooks)

    guards.enter(workspace)
    swapping = threading.Thread(target=lambda: suppressed(swap))
    swapping.start()
    try:
        for _ in range(300):
            guards.check(workspace)
    finally:
        stop.set()
        swapping.join()
    guards.leave(workspace)
    assert listed(outside) == before


def suppressed(swap: Callable[[], None]) -> None:
    """The guard may set the link or the folder aside, and then there is nothing left to swap."""
    with contextlib.suppress(OSError):
        swap()
