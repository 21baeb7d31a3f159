"""The tool `write_file` on this machine, through the whole pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builtin_tools.edit_calls import EditCalls, edit_calls
from toolcrib.files.syntax import PYTHON
from toolcrib.testing import ScriptedApprover


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[EditCalls]:
    with edit_calls(tmp_path) as made:
        yield made


def test_a_new_file_is_written_as_given(calls: EditCalls) -> None:
    """Folders are made, the content is UTF-8 with the line ends that were given, and a diff comes back."""
    answer = calls.write("a/b/c.txt", "één\r\ntwo")

    assert calls.files() == {"a/b/c.txt": "één\r\ntwo".encode()}
    assert answer["path"] == str(calls.folder / "a/b/c.txt")
    assert (answer["created"], answer["bytes"], answer["lines"]) == (True, 10, 2)
    assert answer["diff"].startswith("--- /dev/null\n+++ b/a/b/c.txt\n@@ -0,0 +1,2 @@\n+één")


def test_mode_line_ends_and_mark_are_kept(calls: EditCalls) -> None:
    """What replaces a file has its mode, its CRLF and its byte order mark."""
    path = calls.folder / "run.sh"
    path.write_bytes(b"\xef\xbb\xbfecho 1\r\n")
    path.chmod(0o750)

    answer = calls.write("run.sh", "echo 2\necho 3\n")

    assert path.read_bytes() == b"\xef\xbb\xbfecho 2\r\necho 3\r\n"
    assert path.stat().st_mode & 0o777 == 0o750
    assert answer["changed"] is True
    assert "CRLF" in answer["note"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_is_kept(calls: EditCalls) -> None:
    """A file of somebody else stays his."""
    path = calls.folder / "theirs.txt"
    path.write_text("old\n")
    os.chown(path, 12345, 12346)

    calls.write("theirs.txt", "new\n")

    assert (path.stat().st_uid, path.stat().st_gid, path.read_text()) == (12345, 12346, "new\n")


def test_a_file_that_was_never_read_is_replaced_with_a_note(calls: EditCalls) -> None:
    """The answer says that something was there."""
    (calls.folder / "a.txt").write_text("1\n2\n3\n")

    answer = calls.write("a.txt", "new\n")

    assert "replaced an existing file of 3 lines" in answer["note"]
    assert "note" not in calls.write("a.txt", "newer\n")


def test_a_file_that_was_read_in_part_is_replaced_with_a_note(calls: EditCalls) -> None:
    """The model hears that there was more than it had seen; of what it wrote itself it has seen all."""
    (calls.folder / "a.txt").write_text("1\n2\n3\n")
    calls.call("read_file", path="a.txt", limit=1)

    first = calls.write("a.txt", "x\ny\n")
    calls.call("read_file", path="a.txt", limit=1)
    second = calls.write("a.txt", "z\n")

    assert first["note"] == "replaced an existing file of 3 lines that had been read only in part in this session"
    assert "note" not in second


@pytest.mark.parametrize(("old", "new"), [(b"a\rb\r", b"x\ry\r"), (b"a\r\nb", b"x\r\ny\r\n")])
def test_line_ends_of_other_systems_are_kept_and_named(calls: EditCalls, old: bytes, new: bytes) -> None:
    """The model writes LF, and the file gets what it had."""
    (calls.folder / "a.txt").write_bytes(old)

    answer = calls.write("a.txt", "x\ny\n")

    assert (calls.folder / "a.txt").read_bytes() == new
    assert "line ends were kept" in answer["note"]
    assert answer["lines"] == 2


def test_a_script_without_an_ending_is_checked(calls: EditCalls) -> None:
    """Its first line says what it is."""
    answers = [calls.write("run", "#!/usr/bin/env python3\ndef (\n"), calls.write("go", "#!/bin/bash\nif\n")]

    assert [answer["check"].split()[0] for answer in answers] == ["Python", "bash:"]


def test_what_is_no_file_is_refused_in_one_sentence(calls: EditCalls) -> None:
    """A pipe, and a link in a circle: which it is, without saying it twice."""
    os.mkfifo(calls.folder / "pipe")
    (calls.folder / "loop").symlink_to("loop")

    pipe, loop = calls.write("pipe", "x")["error"], calls.write("loop", "x")["error"]

    assert pipe == f"{str(calls.folder / 'pipe')!r} cannot be edited: it is neither a file nor a folder"
    assert "dangling link" in loop


def test_binary_content_that_is_replaced_is_named(calls: EditCalls) -> None:
    """Text may take the place of binary data; the answer says so and shows no diff."""
    (calls.folder / "a.bin").write_bytes(b"\0\1\2\xff")

    answer = calls.write("a.bin", "text\n")

    assert "binary file of 4 bytes" in answer["note"]
    assert "diff" not in answer
    assert calls.files() == {"a.bin": b"text\n"}


@pytest.mark.parametrize("seen_by", ["read_file", "write_file"])
def test_what_changed_since_it_was_seen_is_not_overwritten(calls: EditCalls, seen_by: str) -> None:
    """A change by somebody else is kept until the model has read it."""
    path = calls.folder / "a.txt"
    path.write_text("old\n")
    if seen_by == "read_file":
        calls.call("read_file", path="a.txt")
    else:
        calls.write("a.txt", "mine\n")
    path.write_text("somebody else's\n")

    answer = calls.write("a.txt", "new\n")

    assert "changed since you last read it" in answer["error"]
    assert path.read_text() == "somebody else's\n"
    calls.call("read_file", path="a.txt")
    assert calls.write("a.txt", "new\n")["changed"] is True


def test_what_one_session_has_read_is_nothing_to_another(calls: EditCalls) -> None:
    """Each session answers for what it has seen itself."""
    path = calls.folder / "a.txt"
    calls.write("a.txt", "one\n", session="first")
    path.write_text("two\n")

    assert "changed" in calls.write("a.txt", "three\n", session="second")
    assert "error" in calls.write("a.txt", "four\n", session="first")


def test_a_file_that_was_removed_is_created_again(calls: EditCalls) -> None:
    """Nothing can be lost where nothing is."""
    calls.write("a.txt", "one\n")
    (calls.folder / "a.txt").unlink()

    assert calls.write("a.txt", "two\n")["created"] is True


def test_the_same_content_is_not_written_again(calls: EditCalls) -> None:
    """An unchanged file stays untouched, and the answer says so."""
    calls.write("a.txt", "one\n")
    before = (calls.folder / "a.txt").stat()

    answer = calls.write("a.txt", "one\n")

    assert answer["changed"] is False
    after = (calls.folder / "a.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_broken_program_is_written_and_reported(calls: EditCalls) -> None:
    """A syntax check never keeps a file from being written."""
    answer = calls.write("a.py", "def f(:\n")

    assert answer["check"] == f"{PYTHON}: invalid syntax (line 1)"
    assert calls.files() == {"a.py": b"def f(:\n"}
    assert "did not pass before" in calls.write("a.py", "def g(:\n")["check"]
    assert "check" not in calls.write("a.py", "def g(): ...\n")


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.sh", "if true; then echo; fi\n", "if true; then\n"),
        ("a.mjs", "export const a = 1;\n", "export const a = ;\n"),
        ("a.cjs", "const a = require('a');\n", "const a = ;\n"),
        ("a.js", "import a from 'a';\n", "import a from\n"),
    ],
)
def test_installed_parsers_check_what_we_cannot(calls: EditCalls, name: str, good: str, bad: str) -> None:
    """Shell and JavaScript are read by their own programs, where those are installed."""
    said = calls.write(name, bad)["check"]
    if "not installed" in said:
        pytest.skip(said)

    assert "yntax" in said
    assert "line 2" in said or "line 1" in said or "line 3" in said
    assert "check" not in calls.write(name, good)


def test_checkers_do_not_run_the_file(calls: EditCalls) -> None:
    """What is checked is only read."""
    marker = calls.folder / "ran"

    calls.write("a.sh", f"touch {marker}\n$(touch {marker})\n")
    calls.write("a.js", f"require('fs').writeFileSync({str(marker)!r}, '');\n")

    assert not marker.exists()


def test_half_characters_are_refused(calls: EditCalls) -> None:
    """What no encoding has is not written in part."""
    answer = calls.write("a.txt", "one\n\ud800\n")

    assert "half a character" in answer["error"]
    assert calls.files() == {}


def test_an_older_encoding_is_kept_or_given_up_with_a_note(calls: EditCalls) -> None:
    """A file stays in its encoding while that has all characters; then it becomes UTF-8."""
    path = calls.folder / "a.txt"
    path.write_bytes(b"caf\xe9\n")

    calls.write("a.txt", "th\u00e9\n")
    assert path.read_bytes() == b"th\xe9\n"

    assert "UTF-8 now" in calls.write("a.txt", "\u4e2d\n")["note"]
    assert path.read_bytes() == "\u4e2d\n".encode()


def test_secrets_that_were_in_a_file_are_not_shown(tmp_path: Path) -> None:
    """A person agreed to the write, not to showing the model what was there."""
    with edit_calls(tmp_path, approver=ScriptedApprover("once", "once")) as calls:
        (calls.folder / "server.pem").write_text("PRIVATE\n")

        answer = calls.write("server.pem", "new\n")
        refused = calls.replace("server.pem", "NEW", "x")

    assert "PRIVATE" not in str(answer)
    assert "diff" not in answer
    assert "near_matches" not in refused


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "\ud800"])
def test_what_can_be_no_path_is_refused(calls: EditCalls, path: str) -> None:
    """The answer says what is wrong with the path; nothing is written."""
    assert "path" in calls.write(path, "x")["error"]
    assert calls.files() == {}


def test_a_folder_is_not_overwritten(calls: EditCalls) -> None:
    """A folder is named as one."""
    (calls.folder / "sub").mkdir()

    assert "folder" in calls.write("sub", "x")["error"]


@pytest.mark.services
def test_large_files_are_refused(calls: EditCalls) -> None:
    """What is too large to be looked at is not replaced."""
    with (calls.folder / "big").open("wb") as file:
        file.truncate(40 * 1024 * 1024)

    assert "larger than 32 MB" in calls.write("big", "x")["error"]
    assert (calls.folder / "big").stat().st_size == 40 * 1024 * 1024
