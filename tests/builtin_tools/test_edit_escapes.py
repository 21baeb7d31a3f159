"""Ways out of the workspace that the editing tools refuse, or that the gate is asked about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builtin_tools.edit_calls import EditCalls, edit_calls
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest

Edit = Callable[[EditCalls, str], dict[str, Any]]


def write(calls: EditCalls, path: str) -> dict[str, Any]:
    return calls.write(path, "evil\n")


def replace(calls: EditCalls, path: str) -> dict[str, Any]:
    return calls.replace(path, "secret", "evil")


def update(calls: EditCalls, path: str) -> dict[str, Any]:
    return calls.patch(f"*** Update File: {path}", "-secret", "+evil")


def add(calls: EditCalls, path: str) -> dict[str, Any]:
    return calls.patch(f"*** Add File: {path}", "+evil")


def delete(calls: EditCalls, path: str) -> dict[str, Any]:
    return calls.patch(f"*** Delete File: {path}")


def move_away(calls: EditCalls, path: str) -> dict[str, Any]:
    return calls.patch(f"*** Update File: {path}", "*** Move to: here.txt")


def move_there(calls: EditCalls, path: str) -> dict[str, Any]:
    (calls.folder / "mine.txt").write_text("mine\n")
    return calls.patch("*** Update File: mine.txt", f"*** Move to: {path}")


EDITS: list[Edit] = [write, replace, update, add, delete, move_away, move_there]


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[EditCalls]:
    """Nobody is there to ask: what would be asked about is refused."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "target").write_text("secret\n")
    with edit_calls(tmp_path) as made:
        yield made


def outside(calls: EditCalls) -> dict[str, str]:
    return {path.name: path.read_text() for path in (calls.folder.parent / "outside").iterdir()}


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(
    "path", ["../outside/target", "{outside}/target", "sub/../../outside/target", "~/../outside/target"]
)
def test_paths_out_of_the_workspace_are_judged_as_such(calls: EditCalls, edit: Edit, path: str) -> None:
    """`..`, absolute paths and the home are resolved before the gate sees them."""
    (calls.folder / "sub").mkdir()

    answer = edit(calls, path.format(outside=calls.folder.parent / "outside"))

    assert answer["error_type"] == "denied"
    assert outside(calls) == {"target": "secret\n"}


@pytest.mark.parametrize("edit", EDITS)
def test_a_link_to_a_folder_outside_leads_to_the_gate(calls: EditCalls, edit: Edit) -> None:
    """What is judged is the real place behind a link on the way."""
    (calls.folder / "link").symlink_to(calls.folder.parent / "outside")

    answer = edit(calls, "link/target")

    assert answer["error_type"] == "denied"
    assert outside(calls) == {"target": "secret\n"}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("target", ["outside/target", "outside/new"])
def test_a_link_to_a_file_outside_is_refused(calls: EditCalls, edit: Edit, target: str) -> None:
    """A link at the end is followed before the gate, dangling ones too; a delete of the link itself is refused."""
    (calls.folder / "link").symlink_to(calls.folder.parent / target)

    assert "error" in edit(calls, "link")
    assert outside(calls) == {"target": "secret\n"}
    assert (calls.folder / "link").is_symlink()


def test_a_link_inside_the_workspace_is_followed(calls: EditCalls) -> None:
    """The file behind a link is edited; the link stays one."""
    (calls.folder / "real.txt").write_text("one\n")
    (calls.folder / "link").symlink_to("real.txt")

    assert calls.write("link", "two\n")["path"] == str(calls.folder / "real.txt")
    assert (calls.folder / "link").is_symlink()
    assert (calls.folder / "real.txt").read_text() == "two\n"


class LinkSwappingApprover:
    """Agrees to everything; while he is asked, a link takes the place of a folder or file."""

    def __init__(self, place: Path, target: Path) -> None:
        self.place, self.target = place, target

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.place.rename(f"{self.place}.old")
        self.place.symlink_to(self.target)
        return ApprovalAnswer(choice="once", decided_by="user")


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("swapped", ["folder", "file"])
def test_a_link_put_in_the_way_after_the_check_is_not_followed(tmp_path: Path, edit: Edit, swapped: str) -> None:
    """What was agreed to for one place does not happen in another, however quick somebody is."""
    agreed, elsewhere = tmp_path / "agreed", tmp_path / "elsewhere"
    for folder in (agreed, elsewhere):
        folder.mkdir()
        (folder / "target").write_text("secret\n")
    swap = (
        LinkSwappingApprover(agreed, elsewhere)
        if swapped == "folder"
        else LinkSwappingApprover(agreed / "target", elsewhere / "target")
    )
    with edit_calls(tmp_path, approver=swap) as calls:
        answer = edit(calls, str(agreed / "target"))

    assert "error" in answer
    assert (elsewhere / "target").read_text() == "secret\n"
    assert [path.name for path in elsewhere.iterdir()] == ["target"]


@pytest.mark.parametrize("edit", EDITS)
def test_a_fifo_is_refused_without_waiting(calls: EditCalls, edit: Edit) -> None:
    """What is no file is never opened, so that nothing hangs."""
    os.mkfifo(calls.folder / "fifo")

    assert "error" in edit(calls, "fifo")
    assert (calls.folder / "fifo").is_fifo()


@pytest.mark.quick_rows(5)
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/sda", "/proc/self/mem", "/etc/passwd"])
def test_devices_and_system_files_are_refused(tmp_path: Path, edit: Edit, path: str) -> None:
    """Also where everything is agreed to, nothing is written to them."""
    with edit_calls(tmp_path, yolo=True) as calls:
        assert "error" in edit(calls, path)


@pytest.mark.parametrize("edit", [write, add])
@pytest.mark.parametrize(
    "path", [".git/hooks/pre-commit", ".GIT/hooks/x", ".Git/Config", "sub/.git/config", ".env", ".ENV.local"]
)
def test_delicate_files_are_asked_about_in_any_case(calls: EditCalls, edit: Edit, path: str) -> None:
    """Upper and lower case are the same on many file systems, so they are here."""
    assert edit(calls, path)["error_type"] == "denied"
    assert calls.files() == {}


def test_one_path_out_of_the_workspace_stops_the_whole_patch(calls: EditCalls) -> None:
    """A patch is judged as a whole: nothing of it happens."""
    answer = calls.patch("*** Add File: fine.txt", "+x", "*** Update File: ../outside/target", "-secret", "+evil")

    assert answer["error_type"] == "denied"
    assert calls.files() == {}
    assert outside(calls) == {"target": "secret\n"}
