"""The tool `patch` on this machine, through the whole pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builtin_tools.edit_calls import EditCalls, edit_calls
from toolcrib.core.types import Effect
from toolcrib.dispatch.effects import AccessSet, CallGroup, access_set, effects_of


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[EditCalls]:
    with edit_calls(tmp_path) as made:
        yield made


def put(calls: EditCalls, **files: bytes) -> None:
    for name, data in files.items():
        (calls.folder / f"{name}.txt").write_bytes(data)


# replace


def test_one_match_is_replaced(calls: EditCalls) -> None:
    """The rest of the file stays byte for byte, whatever line ends it has."""
    put(calls, a=b"one\r\ntwo\nthree\r\n")

    answer = calls.replace("a.txt", "two\nthree", "2\n3")

    assert calls.files() == {"a.txt": b"one\r\n2\n3\r\n"}
    assert answer["changed"] is True
    assert answer["diff"] == "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+3\n"


def test_all_matches_are_replaced_when_asked_for(calls: EditCalls) -> None:
    """With replace_all every place changes, and their number is told."""
    put(calls, a=b"x x\nx\n")

    assert "occurs 3 times (lines 1, 2)" in calls.replace("a.txt", "x", "y")["error"]
    assert calls.replace("a.txt", "x", "y", replace_all=True)["replacements"] == 3
    assert calls.files() == {"a.txt": b"y y\ny\n"}


def test_a_near_match_is_shown_and_never_applied(calls: EditCalls) -> None:
    """Nothing is changed; the lines of the file come back as they are."""
    put(calls, a=b"def f():\n\treturn  'x'\n")

    answer = calls.replace("a.txt", "    return 'x'", "    return 'y'")

    assert "was not changed" in answer["error"]
    assert answer["near_matches"][0]["text"] == "\treturn  'x'"
    assert "indentation" in answer["near_matches"][0]["differs"]
    assert calls.files() == {"a.txt": b"def f():\n\treturn  'x'\n"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"path": "a.txt", "old_string": "a", "new_string": "a"}, "the same"),
        ({"path": "a.txt", "old_string": "a\n", "new_string": "a\r\n"}, "only in line ends"),
        ({"path": "a.txt", "old_string": "", "new_string": "b"}, "old_string is empty"),
        ({"path": "b.txt", "old_string": "a", "new_string": "b"}, "create it with write_file"),
        ({"path": "a.txt", "old_string": "a"}, "'new_string'"),
        ({"old_string": "a", "new_string": "b"}, "'path'"),
        ({"path": "", "old_string": "a", "new_string": "b"}, "path is empty"),
        ({"path": "a.txt", "old_string": "a", "new_string": "\ud800"}, "half a character"),
    ],
)
def test_what_makes_no_sense_is_refused(calls: EditCalls, arguments: dict[str, Any], says: str) -> None:
    """The answer says what is wrong; nothing is changed."""
    put(calls, a=b"a\n")

    assert says in calls.call("patch", mode="replace", **arguments)["error"]
    assert calls.files() == {"a.txt": b"a\n"}


def test_an_empty_file_can_be_filled(calls: EditCalls) -> None:
    """Where nothing is, an empty old_string means all of it."""
    put(calls, a=b"")

    assert calls.replace("a.txt", "", "new\n")["changed"] is True
    assert calls.replace("b.txt", "", "new\n")["created"] is True
    assert calls.files() == {"a.txt": b"new\n", "b.txt": b"new\n"}


def test_lines_that_end_with_cr_are_edited_like_others(calls: EditCalls) -> None:
    """The text to find has LF, as read_file shows it."""
    (calls.folder / "a.txt").write_bytes(b"one\rtwo\rthree")

    answer = calls.replace("a.txt", "one\ntwo", "1\n2\n2.5")

    assert (calls.folder / "a.txt").read_bytes() == b"1\r2\r2.5\rthree"
    assert "-one\n-two\n+1\n+2\n+2.5\n three" in answer["diff"]


def test_what_a_patch_deletes_and_adds_again_is_known_from_then_on(calls: EditCalls) -> None:
    """The model wrote all of it, so a change by somebody else is not overwritten."""
    path = calls.folder / "a.txt"
    path.write_text("old\n")
    calls.patch("*** Delete File: a.txt", "*** Add File: a.txt", "+new")
    path.write_text("other\n")

    answer = calls.patch("*** Update File: a.txt", "-other", "+mine")

    assert "has changed since" in answer["error"]


def test_near_matches_are_shown_of_the_first_problems_only(calls: EditCalls) -> None:
    """A patch that fits nowhere does not fill the conversation."""
    names = [f"f{number}" for number in range(30)]
    for name in names:
        (calls.folder / name).write_text(("word " * 100 + "\n") * 30)
    lines = [line for name in names for line in (f"*** Update File: {name}", *["-" + "word  " * 100] * 3, "+x")]

    answer = calls.patch(*lines)

    assert len(answer["problems"]) == 30
    assert sum("near_matches" in problem for problem in answer["problems"]) == 5
    assert len(str(answer)) < 50_000


def test_binary_files_are_not_edited(calls: EditCalls) -> None:
    """The reason is given."""
    put(calls, a=b"a\0b")

    assert "binary" in calls.replace("a.txt", "a", "b")["error"]
    assert "binary" in str(calls.patch("*** Update File: a.txt", "-a", "+b")["problems"])


def test_a_character_that_the_encoding_lacks_is_refused(calls: EditCalls) -> None:
    """An edit never changes the encoding of what it does not touch."""
    put(calls, a=b"caf\xe9\n")

    assert "cp1252" in calls.replace("a.txt", "caf\u00e9", "\u4e2d")["error"]
    assert calls.files() == {"a.txt": b"caf\xe9\n"}


def test_what_changed_since_it_was_read_is_not_patched(calls: EditCalls) -> None:
    """Both modes keep to what the model has seen."""
    put(calls, a=b"one\n")
    calls.call("read_file", path="a.txt")
    put(calls, a=b"one\ntwo\n")

    assert "changed since" in calls.replace("a.txt", "one", "1")["error"]
    assert "changed since" in calls.patch("*** Update File: a.txt", "-one", "+1")["error"]
    assert "changed since" in calls.patch("*** Delete File: a.txt")["error"]
    assert calls.files() == {"a.txt": b"one\ntwo\n"}


def test_a_syntax_error_is_reported_after_an_edit(calls: EditCalls) -> None:
    """Both modes check what they wrote."""
    calls.write("a.json", '{"a": 1}\n')

    assert "JSON" in calls.replace("a.json", "1}", "1,}")["check"]
    answer = calls.patch("*** Add File: b.toml", "+a =")
    assert "TOML" in answer["files"][0]["check"]


# patch


def test_several_files_are_changed_together(calls: EditCalls) -> None:
    """Add, update, move and delete in one patch; each file is told with what became of it."""
    put(calls, a=b"one\r\ntwo\r\n", b=b"bee", c=b"sea\n")
    (calls.folder / "b.txt").chmod(0o755)

    answer = calls.patch(
        "*** Add File: sub/new.txt",
        "+hello",
        "*** Update File: a.txt",
        "@@",
        " one",
        "-two",
        "+2",
        "+3",
        "*** Update File: b.txt",
        "*** Move to: sub/b.txt",
        "@@",
        "-bee",
        "+B",
        "*** Delete File: c.txt",
    )

    assert calls.files() == {"a.txt": b"one\r\n2\r\n3\r\n", "sub/b.txt": b"B", "sub/new.txt": b"hello\n"}
    assert (calls.folder / "sub/b.txt").stat().st_mode & 0o777 == 0o755
    assert [(Path(row["path"]).name, row["change"]) for row in answer["files"]] == [
        ("new.txt", "added"),
        ("a.txt", "updated"),
        ("b.txt", "moved"),
        ("c.txt", "deleted"),
    ]
    assert "--- a/b.txt\n+++ b/sub/b.txt\n" in answer["diff"]
    assert "--- a/c.txt\n+++ /dev/null\n" in answer["diff"]


def test_nothing_is_changed_unless_everything_fits(calls: EditCalls) -> None:
    """Every hunk and file that does not fit is named; no file is touched."""
    put(calls, a=b"one\n", b=b"two\nthree\n")
    before = calls.files()

    answer = calls.patch(
        "*** Update File: a.txt",
        "-one",
        "+1",
        "*** Update File: b.txt",
        "@@",
        "- two",
        "+2",
        "@@",
        "-threee",
        "*** Add File: a.txt",
        "+x",
        "*** Delete File: missing.txt",
    )

    assert calls.files() == before
    assert "nothing was changed" in answer["error"]
    assert [(Path(row["file"]).name, row.get("hunk")) for row in answer["problems"]] == [
        ("b.txt", 1),
        ("b.txt", 2),
        ("a.txt", None),
        ("missing.txt", None),
    ]
    assert answer["problems"][0]["near_matches"][0]["text"] == "two"


def test_changes_of_one_file_are_applied_in_order(calls: EditCalls) -> None:
    """A later change sees what the earlier ones made; only the outcome is written."""
    put(calls, a=b"one\n", b=b"bee\n")

    calls.patch(
        "*** Update File: a.txt",
        "-one",
        "+two",
        "*** Update File: ./a.txt",
        "-two",
        "+three",
        "*** Delete File: b.txt",
        "*** Add File: b.txt",
        "+new",
        "*** Add File: c.txt",
        "+c",
        "*** Update File: c.txt",
        "*** Move to: d.txt",
        "-c",
        "+d",
    )

    assert calls.files() == {"a.txt": b"three\n", "b.txt": b"new\n", "d.txt": b"d\n"}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("*** Add File: a.txt", "+x"), "exists already"),
        (("*** Delete File: c.txt",), "no such file to delete"),
        (("*** Update File: c.txt", "-x"), "no such file to update"),
        (("*** Update File: a.txt", "*** Move to: b.txt", "-one"), "exists already"),
        (("*** Update File: a.txt",), "no hunk"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(calls: EditCalls, lines: tuple[str, ...], says: str) -> None:
    """Adding over a file, changing a missing one, or moving onto one is an error."""
    put(calls, a=b"one\n", b=b"two\n")

    assert says in str(calls.patch(*lines)["problems"])
    assert calls.files() == {"a.txt": b"one\n", "b.txt": b"two\n"}


def test_a_unified_diff_is_applied(calls: EditCalls) -> None:
    """What git writes is taken: updates, renames, new and deleted files, and modes."""
    put(calls, a=b"one\ntwo\n", b=b"bye\n", c=b"same\n")

    answer = calls.unified(
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        "diff --git a/b.txt b/b.txt\ndeleted file mode 100644\n--- a/b.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
        "diff --git a/c.txt b/d.txt\nsimilarity index 100%\nrename from c.txt\nrename to d.txt\n"
        "diff --git a/run b/run\nnew file mode 100755\n--- /dev/null\n+++ b/run\n@@ -0,0 +1 @@\n+go\n"
    )

    assert answer["changed"] is True
    assert calls.files() == {"a.txt": b"one\n2\n", "d.txt": b"same\n", "run": b"go\n"}
    assert (calls.folder / "run").stat().st_mode & 0o777 == 0o755


def test_a_diff_may_change_a_mode_alone(calls: EditCalls) -> None:
    """`new mode` makes a file executable, without a hunk."""
    put(calls, a=b"one\n")

    answer = calls.unified("diff --git a/a.txt b/a.txt\nold mode 100644\nnew mode 100755\n")

    assert answer["changed"] is True
    assert (calls.folder / "a.txt").stat().st_mode & 0o777 == 0o755
    assert calls.files() == {"a.txt": b"one\n"}


def test_a_file_that_is_moved_and_then_deleted_is_told_as_deleted(calls: EditCalls) -> None:
    """What counts is what became of the files."""
    put(calls, a=b"one\n")

    answer = calls.patch("*** Update File: a.txt", "*** Move to: b.txt", "*** Delete File: b.txt")

    assert [(Path(row["path"]).name, row["change"]) for row in answer["files"]] == [("a.txt", "deleted")]
    assert calls.files() == {}


def test_a_deletion_that_names_other_lines_is_refused(calls: EditCalls) -> None:
    """A diff that deletes a file must know all of it."""
    put(calls, a=b"one\ntwo\n")

    answer = calls.unified("--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n")

    assert "more lines" in str(answer["problems"])
    assert calls.files() == {"a.txt": b"one\ntwo\n"}


def test_a_patch_that_changes_nothing_writes_nothing(calls: EditCalls) -> None:
    """Where every file is as it should be already, the answer says so."""
    put(calls, a=b"one\n")

    assert calls.patch("*** Update File: a.txt", "-one", "+one")["changed"] is False


def test_a_patch_that_cannot_be_read_has_no_effects_and_does_nothing(calls: EditCalls) -> None:
    """Neither the gate nor anybody else is asked about it; the answer says which line is wrong."""
    put(calls, a=b"one\n")
    arguments = {"mode": "patch", "patch": "*** Begin Patch\n*** Update File: a.txt\nnoise\n*** End Patch"}
    entry = calls.runtime.registry.get_entry("patch")
    assert entry is not None
    assert callable(entry.effects)

    assert entry.effects(arguments, calls.runtime.context()) == ()
    assert "line 3 of the patch" in calls.call("patch", **arguments)["error"]
    assert calls.files() == {"a.txt": b"one\n"}


def test_effects_name_every_path(calls: EditCalls) -> None:
    """Each written path is a write, each that goes away a delete, in real and absolute paths."""
    entry = calls.runtime.registry.get_entry("patch")
    assert entry is not None
    assert callable(entry.effects)
    changes = "*** Add File: a\n+x\n*** Update File: b\n*** Move to: s/c\n-x\n*** Delete File: d\n"
    text = f"*** Begin Patch\n{changes}*** End Patch"

    effects = entry.effects({"mode": "patch", "patch": text}, calls.runtime.context())

    assert [(one.kind, Path(one.target).relative_to(calls.folder).as_posix()) for one in effects] == [
        ("write", "a"),
        ("write", "s/c"),
        ("delete", "b"),
        ("delete", "d"),
    ]


def test_calls_that_touch_one_path_do_not_run_together(calls: EditCalls) -> None:
    """A batch runs edits of different files beside each other, and edits of one file in order."""

    def reach(name: str, **arguments: Any) -> AccessSet:
        entry = calls.runtime.registry.get_entry(name)
        assert entry is not None
        return access_set(effects_of(entry, arguments, calls.runtime.context()), str(calls.folder))

    group = CallGroup()
    group.add(
        reach("patch", mode="patch", patch="*** Begin Patch\n*** Delete File: a\n*** Add File: s/b\n+x\n*** End Patch")
    )

    assert group.admits(reach("write_file", path="c", content=""))
    assert not group.admits(reach("write_file", path="./s/../a", content=""))
    assert not group.admits(reach("patch", mode="replace", path="s/b", old_string="x", new_string="y"))


def test_a_handler_does_only_what_was_agreed_to(calls: EditCalls) -> None:
    """Without effects, or with those of another patch, nothing is written."""
    entry = calls.runtime.registry.get_entry("patch")
    assert entry is not None
    files = calls.runtime.context().services.get("files")
    text = "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch"
    for effects in (None, (), (Effect("delete", str(calls.folder / "a")),)):
        ctx = calls.runtime.context(effects=effects)
        answer = calls.runtime.bridge.run(files.patch({"mode": "patch", "patch": text}, ctx))
        assert "approved" in answer
    assert calls.files() == {}


def test_a_failure_in_the_middle_takes_everything_back(calls: EditCalls) -> None:
    """Where one file cannot be written, those already done are put back, folders included."""
    put(calls, a=b"one\n", file=b"no folder\n")
    before = calls.files()

    answer = calls.patch(
        "*** Update File: a.txt", "-one", "+1", "*** Add File: new/b.txt", "+b", "*** Add File: file.txt/below", "+x"
    )

    assert "all files of the patch are as before" in answer["error"]
    assert set(answer["files"].values()) == {"as before"}
    assert calls.files() == before
    assert not (calls.folder / "new").exists()
    assert calls.replace("a.txt", "one", "1")["changed"] is True
