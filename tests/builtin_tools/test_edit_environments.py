"""The editing tools where commands run elsewhere: in a sandbox, in a container, over ssh."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builtin_tools.edit_calls import EditCalls, edit_calls
from tests.environments import engines

pytestmark = pytest.mark.services


@pytest.fixture(params=["sandbox", "docker", "ssh"])
def calls(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EditCalls]:
    """Works in a new folder of the place, where everything is agreed to."""
    config = json.dumps({"terminal": {"login_shell": False, **engines.terminal_settings(request.param, monkeypatch)}})
    with edit_calls(tmp_path, config, yolo=True) as made:
        folder = run(made, "cd $(mktemp -d -p $PWD edits-XXXXXX) && pwd -P")
        yield EditCalls(made.runtime, Path(folder))
        run(made, f"cd / && rm -rf {folder}")


def run(calls: EditCalls, command: str) -> str:
    answer = calls.call("terminal", command=command)
    assert answer["exit_code"] == 0, answer
    return str(answer["output"])


def put(calls: EditCalls, path: str, data: bytes) -> None:
    run(calls, f"printf %s {base64.b64encode(data).decode()} | base64 -d > {path}")


def data_of(calls: EditCalls, path: str) -> bytes:
    return base64.b64decode(run(calls, f"base64 {path}"))


def test_files_are_written_where_commands_run(calls: EditCalls) -> None:
    """Mode, line ends and mark are kept; a change by a command is noticed."""
    put(calls, "a.sh", b"\xef\xbb\xbfone\r\n")
    run(calls, "chmod 751 a.sh")

    answer = calls.write("a.sh", "if\n")

    assert data_of(calls, "a.sh") == b"\xef\xbb\xbfif\r\n"
    assert run(calls, "stat -c %a a.sh") == "751"
    assert answer["path"] == str(calls.folder / "a.sh")
    assert answer["diff"].startswith("--- a/a.sh\n")
    assert "bash" in answer["check"]
    run(calls, "echo more >> a.sh")
    assert "changed since" in calls.write("a.sh", "x\n")["error"]


def test_a_patch_changes_several_files(calls: EditCalls) -> None:
    """All kinds of changes work there, and a patch that does not fit changes nothing."""
    put(calls, "a.txt", b"one\r\ntwo")
    put(calls, "b.txt", b"bee\n")
    run(calls, "chmod 700 b.txt")
    lines = ("*** Update File: a.txt", "-two", "+2", "*** Update File: b.txt", "*** Move to: sub/b.txt", "-bee", "+B")

    assert "error" in calls.patch(*lines, "*** Delete File: missing.txt")
    assert run(calls, "ls") == "a.txt\nb.txt"
    answer = calls.patch(*lines, "*** Add File: sub/new dir/c.txt", "+c")

    assert "error" not in answer, answer
    assert data_of(calls, "a.txt") == b"one\r\n2"
    assert run(calls, "find . -type f -printf '%P %m\\n' | sort | cut -d. -f1 | xargs") == "a sub/b sub/new dir/c"
    assert run(calls, "stat -c %a sub/b.txt; cat sub/b.txt 'sub/new dir/c.txt'") == "700\nB\nc"


def test_replace_finds_near_matches_there(calls: EditCalls) -> None:
    """The same answers as on this machine."""
    put(calls, "a.txt", b"\tone = 'x'\n")

    assert calls.replace("a.txt", "    one = 'x'", "y")["near_matches"][0]["text"] == "\tone = 'x'"
    assert calls.replace("a.txt", "'x'", "'y'")["changed"] is True
    assert data_of(calls, "a.txt") == b"\tone = 'y'\n"


def test_links_fifos_and_folders_are_refused_there(calls: EditCalls) -> None:
    """A link out of the folder is named and not followed; nothing that is no file is opened."""
    run(calls, "mkdir inside; mkfifo fifo; ln -s /var/tmp out; ln -s /var/tmp/edits-new dangling")

    for path in ("out/edits-escaped", "dangling", "fifo", "inside", "fifo/below"):
        assert "error" in calls.write(path, "x\n"), path
        assert "error" in calls.patch(f"*** Add File: {path}", "+x"), path
    run(calls, "echo x > real; ln -s real link")
    for path in ("dangling", "link"):
        assert "error" in calls.patch(f"*** Delete File: {path}"), path
        assert "error" in calls.patch(f"*** Update File: {path}", "*** Move to: moved"), path
    assert run(calls, "cat real link") == "x\nx"
    assert run(calls, "ls /var/tmp | grep -c edits- || true") == "0"


def test_a_failure_in_the_middle_is_taken_back_there(calls: EditCalls) -> None:
    """Files that were written already are put back."""
    put(calls, "a.txt", b"one\n")
    put(calls, "file", b"x")

    answer = calls.patch(
        "*** Update File: a.txt", "-one", "+1", "*** Add File: new/n.txt", "+n", "*** Add File: file/b", "+b"
    )

    assert "as before" in answer["error"]
    assert data_of(calls, "a.txt") == b"one\n"
    assert run(calls, "ls") == "a.txt\nfile"
