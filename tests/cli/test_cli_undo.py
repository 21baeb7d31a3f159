"""`toolcrib undo`: what tools did to files is listed and taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_program import Program

TOOL = """
from pathlib import Path
from toolcrib.core.types import Effect
from toolcrib.registry import registry

def put(args, **kw):
    Path(args["path"]).write_text(args["text"])
    return "{}"

registry.register(
    name="put", toolset="put", handler=put,
    schema={"description": "Writes a file.", "parameters": {"type": "object", "properties": {
        "path": {"type": "string"}, "text": {"type": "string"}}}},
    effects=lambda args, ctx: (Effect("write", args["path"]),),
)
"""


@pytest.fixture
def folder(toolcrib: Program) -> Path:
    """A folder in which two calls changed files: one by a tool, one by a command."""
    toolcrib.write("tools/put.py", TOOL)
    toolcrib.environ["TOOLCRIB_YOLO"] = "1"
    folder = toolcrib.root / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("before")
    (folder / "b.txt").write_text("b")
    wrote = toolcrib("tools", "run", "put", json.dumps({"path": str(folder / "a.txt"), "text": "after"}), cwd=folder)
    removed = toolcrib("tools", "run", "terminal", json.dumps({"command": "rm b.txt"}), cwd=folder)
    assert (wrote.code, removed.code) == (0, 0), wrote.stderr + removed.stderr
    return folder


def test_the_latest_call_is_taken_back(toolcrib: Program, folder: Path) -> None:
    """Without a number it is one call of the latest session in this folder; the next goes one further back."""
    first = toolcrib("undo", cwd=folder)
    second = toolcrib("undo", cwd=folder)
    third = toolcrib("undo", cwd=folder)

    assert (first.code, second.code, third.code) == (0, 0, 0)
    assert "b.txt: restored" in first.stdout
    assert "1 file was restored." in first.stdout
    assert "a.txt: restored" in second.stdout
    assert "nothing to undo" in third.stdout
    assert (folder / "a.txt").read_text() == "before"
    assert (folder / "b.txt").read_text() == "b"


@pytest.mark.services
def test_calls_without_a_conversation_are_taken_back_in_their_own_folder(toolcrib: Program, folder: Path) -> None:
    """What was done in another folder since is neither listed, nor taken back or redone."""
    other = toolcrib.root / "other"
    other.mkdir()
    toolcrib("tools", "run", "put", json.dumps({"path": str(other / "o.txt"), "text": "o"}), cwd=other)

    listed = toolcrib("undo", "--list", cwd=folder)
    undone = toolcrib("undo", "9", cwd=folder)
    redone = toolcrib("undo", "--redo", cwd=other)

    assert "o.txt" not in listed.stdout + undone.stdout
    assert (other / "o.txt").read_text() == "o"
    assert "nothing to redo" in redone.stdout
    assert (folder / "a.txt").read_text() == "before"


@pytest.mark.services
def test_several_calls_can_be_tried_first(toolcrib: Program, folder: Path) -> None:
    """A dry run says what would be done and does nothing; a redo takes the undo back."""
    trial = toolcrib("undo", "2", "--dry-run", cwd=folder)
    untouched = (folder / "a.txt").read_text()
    toolcrib("undo", "2", cwd=folder)
    undone = (folder / "a.txt").read_text()
    redone = toolcrib("undo", "--redo", cwd=folder)

    assert "a.txt: would be restored" in trial.stdout
    assert "2 files would be restored." in trial.stdout
    assert (untouched, undone) == ("after", "before")
    assert redone.code == 0
    assert (folder / "a.txt").read_text() == "after"
    assert not (folder / "b.txt").exists()


def test_the_list_names_calls_and_files(toolcrib: Program, folder: Path) -> None:
    """Calls stand there with their time, their files and sizes, for people and for programs."""
    text = toolcrib("undo", "--list", cwd=folder)
    data = json.loads(toolcrib("undo", "--list", "--json", cwd=folder).stdout)

    assert f"{folder}/a.txt (changed, 6 bytes)" in text.stdout
    assert "rm b.txt" in text.stdout
    assert data["session"] == "direct"
    assert [call["tool"] for call in data["calls"]] == ["put", "terminal"]
    assert data["calls"][1]["files"][0]["kind"] == "deleted"
    assert data["calls"][1]["undone"] is False


@pytest.mark.services
def test_everything_back_to_a_call_is_taken_back(toolcrib: Program, folder: Path) -> None:
    """--to names a call of the list; one that is not there ends with exit code 2."""
    calls = json.loads(toolcrib("undo", "--list", "--json", cwd=folder).stdout)["calls"]

    unknown = toolcrib("undo", "--to", "nonsense", cwd=folder)
    done = toolcrib("undo", "--to", calls[0]["call_id"], "--json", cwd=folder)

    assert unknown.code == 2
    assert "toolcrib undo --list" in unknown.stderr
    assert [file["what"] for file in json.loads(done.stdout)["files"]] == ["restored", "restored"]
    assert (folder / "a.txt").read_text() == "before"


def test_what_was_changed_since_is_left_alone(toolcrib: Program, folder: Path) -> None:
    """The exit code is 1 and the reason is told; --force puts it back all the same."""
    (folder / "a.txt").write_text("by hand")

    left = toolcrib("undo", "2", cwd=folder)
    forced = toolcrib("undo", "2", "--force", cwd=folder)

    assert left.code == 1
    assert "it has changed since" in left.stdout
    assert "--force" in left.stderr
    assert forced.code == 0
    assert (folder / "a.txt").read_text() == "before"


@pytest.mark.services
def test_another_folder_has_nothing_to_take_back(toolcrib: Program, folder: Path, tmp_path: Path) -> None:
    """Only what was changed in this folder counts, unless a session is named."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    nothing = toolcrib("undo", cwd=elsewhere)
    unknown = toolcrib("undo", "--session", "nobody", cwd=elsewhere)
    named = toolcrib("undo", "--session", "direct", cwd=elsewhere)

    assert "nothing to undo" in nothing.stdout
    assert (nothing.code, unknown.code, named.code) == (0, 2, 0)
    assert (folder / "b.txt").read_text() == "b"


def test_unclear_wishes_are_refused(toolcrib: Program, folder: Path) -> None:
    """A number and a call together mean nothing."""
    outcome = toolcrib("undo", "2", "--to", "x", cwd=folder)

    assert outcome.code == 2
    assert "--list" in outcome.stderr
