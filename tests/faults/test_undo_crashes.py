"""A process that is killed, or finds the disk full, in the middle of changing files or of taking that back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.undo_run import FILES, LARGE, new_text
from toolcrib.undo.history import FileHistory

# Processes are killed again and again, which takes time.
pytestmark = pytest.mark.services

RUN = Path(__file__).with_name("undo_run.py")
OLD = {"changed": "old", "gone": "was here", "large": "o" * LARGE}
SHARE = st.floats(0, 1, allow_nan=False)


def run(home: Path, folder: Path, what: str, at: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), str(home), str(folder), what, str(at)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def fill(folder: Path) -> None:
    folder.mkdir()
    for name, text in OLD.items():
        (folder / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in FILES if (folder / name).exists()}


def new_contents() -> dict[str, str]:
    return {name: new_text(name) for name in FILES if name != "gone"}


@cache
def operations(what: str, root: Path) -> int:
    """How many operations on files there are when nobody kills the process."""
    home, folder = root / "home", root / "work"
    if not folder.exists():
        fill(folder)
    if what in ("undo", "redo"):
        run(home, folder, "call")
    if what == "redo":
        run(home, folder, "undo")
    return int(run(home, folder, what).stdout)


@pytest.fixture(scope="module")
def whole_call(tmp_path_factory: pytest.TempPathFactory) -> int:
    # The first run may also write byte code.
    return min(operations("call", tmp_path_factory.mktemp("whole")) for _ in range(2))


@pytest.fixture(scope="module")
def whole_undo(tmp_path_factory: pytest.TempPathFactory) -> int:
    return operations("undo", tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def whole_redo(tmp_path_factory: pytest.TempPathFactory) -> int:
    return operations("redo", tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def whole_command(tmp_path_factory: pytest.TempPathFactory) -> int:
    return min(operations("command", tmp_path_factory.mktemp("whole")) for _ in range(2))


@settings(max_examples=14, deadline=None)
@given(share=SHARE)
def test_after_a_kill_the_journal_says_which_state_every_file_is_in(
    tmp_path_factory: pytest.TempPathFactory, whole_call: int, share: float
) -> None:
    """Every file is old or new; the journal tells which, and with force all of them become old again."""
    root = tmp_path_factory.mktemp("killed")
    home, folder = root / "home", root / "work"
    fill(folder)
    done = run(home, folder, "call", 1 + int(share * (whole_call - 1)))
    history = FileHistory(home / "cache" / "undo")
    found, calls = contents(folder), history.calls("s")

    assert done.returncode == -9, done.stderr
    for name in FILES:
        assert found.get(name) in (OLD.get(name), new_contents().get(name))
    if not calls:
        assert found == OLD
        return
    told = {Path(one.path).name: one.now for one in calls[0].files}
    if not calls[0].finished:
        is_old = {Path(name).name: found.get(name) == OLD.get(name) for name in FILES}
        assert told == {name: "old" if old else "new" for name, old in is_old.items()}
        refused = {Path(one.path).name for one in history.undo_calls("s").refused}
        assert refused >= {name for name, old in is_old.items() if not old}
        assert contents(folder) == found
    left = {Path(one.path).name for one in history.undo_calls("s", force=True).refused}
    # The folder stays where the tool left half a file of its own in it.
    assert left <= ({"made"} if (folder / "made" / ".new.tmp").exists() else set())
    assert contents(folder) == OLD
    assert not list(folder.glob(".*.undo"))


@pytest.mark.services
@settings(max_examples=10, deadline=None)
@given(share=SHARE)
def test_an_undo_that_is_killed_is_finished_by_the_next(
    tmp_path_factory: pytest.TempPathFactory, whole_undo: int, share: float
) -> None:
    """In the middle of an undo every file is old or new; the next undo puts the rest back."""
    root = tmp_path_factory.mktemp("killed")
    home, folder = root / "home", root / "work"
    fill(folder)
    run(home, folder, "call")

    done = run(home, folder, "undo", 1 + int(share * (whole_undo - 1)))
    found = contents(folder)
    history = FileHistory(home / "cache" / "undo")
    again = history.undo_calls("s")

    assert done.returncode == -9, done.stderr
    for name in FILES:
        assert found.get(name) in (OLD.get(name), new_contents().get(name))
    assert again.refused == []
    assert contents(folder) == OLD
    assert not list(folder.glob(".*.undo"))


@settings(max_examples=14, deadline=None)
@given(share=SHARE)
def test_a_kill_in_a_scan_or_between_two_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, whole_command: int, share: float
) -> None:
    """The next process finds what a killed command did, and with force everything is as it was before it."""
    root = tmp_path_factory.mktemp("killed")
    home, folder = root / "home", root / "work"
    fill(folder)
    before = tree_of(folder)

    done = run(home, folder, "command", 1 + int(share * (whole_command - 1)))
    history = FileHistory(home / "cache" / "undo")
    listed = {Path(one.path).name for call in history.calls("s") for one in call.files}
    changed = {name for name, text in OLD.items() if contents(folder).get(name) != text}
    refused = history.undo_calls("s", force=True).refused

    assert done.returncode == -9, done.stderr
    assert listed >= changed
    assert (refused, tree_of(folder)) == ([], before)


@settings(max_examples=10, deadline=None)
@given(share=SHARE)
def test_a_redo_that_is_killed_is_finished_by_the_next(
    tmp_path_factory: pytest.TempPathFactory, whole_redo: int, share: float
) -> None:
    """In the middle of a redo every file is old or new; the next redo does the rest, and can be undone."""
    root = tmp_path_factory.mktemp("killed")
    home, folder = root / "home", root / "work"
    fill(folder)
    run(home, folder, "call")
    run(home, folder, "undo")

    done = run(home, folder, "redo", 1 + int(share * (whole_redo - 1)))
    found = contents(folder)
    history = FileHistory(home / "cache" / "undo")
    again = history.redo("s")
    finished = contents(folder)
    undone = history.undo_calls("s")

    assert done.returncode == -9, done.stderr
    for name in FILES:
        assert found.get(name) in (OLD.get(name), new_contents().get(name))
    assert (again.refused, finished) == ([], new_contents())
    assert (undone.refused, contents(folder)) == ([], OLD)
    assert not list(folder.glob(".*.undo"))


def tree_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Every path in a folder: its mode, and its content or what the link says."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.rglob("*")):
        text = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, text)
    return found


def plant(root: Path) -> tuple[Path, Path]:
    home, folder = root / "home", root / "work"
    (folder / "tree" / "deep").mkdir(parents=True)
    (folder / "tree" / "deep" / "x").write_text("x")
    (folder / "tree" / "link").symlink_to("deep")
    (folder / "tree" / "deep").chmod(0o751)
    return home, folder


@pytest.fixture(scope="module")
def whole_undo_of_a_tree(tmp_path_factory: pytest.TempPathFactory) -> int:
    home, folder = plant(tmp_path_factory.mktemp("whole"))
    run(home, folder, "remove")
    return int(run(home, folder, "undo").stdout)


@settings(max_examples=10, deadline=None)
@given(share=SHARE)
def test_an_undo_of_a_tree_that_is_killed_is_finished_by_the_next_and_can_be_redone(
    tmp_path_factory: pytest.TempPathFactory, whole_undo_of_a_tree: int, share: float
) -> None:
    """Folders that were made and not yet closed, or removed and not yet made, are no reason to refuse."""
    home, folder = plant(tmp_path_factory.mktemp("killed"))
    before = tree_of(folder)
    run(home, folder, "remove")
    removed = tree_of(folder)

    done = run(home, folder, "undo", 1 + int(share * (whole_undo_of_a_tree - 1)))
    history = FileHistory(home / "cache" / "undo")
    again = history.undo_calls("s")
    finished = tree_of(folder)
    redone = history.redo("s")

    assert done.returncode == -9, done.stderr
    assert (again.refused, finished) == ([], before)
    assert (redone.refused, tree_of(folder)) == ([], removed)


def on_full_disk(root: Path, what: str) -> dict[str, Any]:
    """What `undo_on_full_disk.py` reports; the disk is gone with its process."""
    unshare = [shutil.which("unshare") or "", "--mount"]
    if not unshare[0] or os.geteuid() != 0 or subprocess.run([*unshare, "true"], check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root and unshare")
    script = str(RUN.with_name("undo_on_full_disk.py"))
    done = subprocess.run(
        [*unshare, sys.executable, script, str(root), what],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


FULL = "No space left on device"


def test_a_full_disk_during_a_record_is_said_at_once_and_stops_no_call(tmp_path: Path) -> None:
    """The person and the record are told that there is no copy; with room again, the next call is saved."""
    found = on_full_disk(tmp_path, "record")

    assert FULL in "".join(found["notices"])
    assert FULL in "".join(found["notes"])
    assert set(found["first"].values()) == {f"no copy could be saved: {FULL}"}
    assert found["between"] == {"small": "new"}
    assert (found["second"]["small"], found["end"]) == ("restored", {"small": "new"})


def test_what_a_scan_cannot_save_is_said_and_not_undone(tmp_path: Path) -> None:
    """A command runs on a full disk; its changes are listed, and the undo skips them with the reason."""
    found = on_full_disk(tmp_path, "scan")

    assert FULL in "".join(found["notices"])
    assert FULL in "".join(found["notes"])
    assert found["first"] == {"large": f"no copy could be saved: {FULL}", "small": f"no copy could be saved: {FULL}"}
    assert found["between"] == {"small": "new"}


def test_a_disk_that_is_full_after_a_command_loses_no_change_of_it(tmp_path: Path) -> None:
    """What was there before is saved, so the undo restores it; what the command made stays until it can be saved."""
    found = on_full_disk(tmp_path, "command")

    assert found["first"] == {"made": f"what is there now cannot be saved: {FULL}", "small": "restored"}
    assert found["between"] == {"made": "MMM", "small": "SSS"}
    assert (found["second"], found["end"]) == ({"made": "removed"}, {"small": "SSS"})


def test_a_full_disk_during_a_restore_leaves_every_file_as_it_was(tmp_path: Path) -> None:
    """What does not fit is skipped with the reason, no half of it stays, and the next undo restores it."""
    found = on_full_disk(tmp_path, "restore")

    assert found["first"] == {"large": FULL, "small": FULL}
    assert found["between"] == {"small": "new"}
    assert found["end"] == {"large": "LLL", "small": "SSS"}


def test_an_undo_overwrites_nothing_that_cannot_be_saved_first(tmp_path: Path) -> None:
    """The reason is told, even by force the file stays, and with room again the undo is complete."""
    found = on_full_disk(tmp_path, "undo")

    assert found["first"] == {"large": f"what is there now cannot be saved: {FULL}", "small": "restored"}
    assert found["between"] == {"large": "MMM", "small": "SSS"}
    assert found["end"] == {"large": "LLL", "small": "SSS"}
