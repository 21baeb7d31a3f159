"""What files were before calls changed them, what became of them, and how that is undone."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.undo.undo_work import SESSION, Work, working_in
from toolcrib.core.types import Effect
from toolcrib.runtime import Runtime
from toolcrib.undo import store
from toolcrib.undo.files import LocalFiles
from toolcrib.undo.history import FileHistory, UnknownCall
from toolcrib.undo.path_snapshot import PathSnapshot, SnapshotLimits


def stored_bytes(work: Work) -> bytes:
    return b"".join(one.read_bytes() for one in work.history.store.folder.rglob("*") if one.is_file())


def test_a_session_is_shown_as_a_whole(work: Work) -> None:
    """Created, changed and deleted files are named with the calls that did it; folders only where they are all."""
    work.path("changed").write_text("before")
    work.path("deleted").write_text("was here")
    work.write("new/deep/file", "x")
    work.write("changed", "once")
    work.write("changed", "twice")
    work.delete("deleted")

    assert work.changed() == [("new/deep/file", "created"), ("changed", "changed"), ("deleted", "deleted")]
    assert work.history.changed(SESSION)[1].call_ids == ("c2", "c3")
    assert work.history.diff(SESSION, str(work.path("deleted"))).splitlines()[-1] == "\\ No newline at end of file"


def test_undo_restores_content_and_mode(work: Work) -> None:
    """After an undo the files are what they were, and nothing is left to undo."""
    work.path("run.sh").write_text("before")
    work.path("run.sh").chmod(0o755)
    work.path("gone").write_text("was here")
    before = work.tree()
    work.write("run.sh", "once")
    work.call("chmod", path="run.sh", mode="600")
    work.write("run.sh", "twice")
    work.write("new/deep/file", "x")
    work.delete("gone")

    undone = work.undo()

    assert undone == [("run.sh", "restored"), ("new/deep/file", "removed"), ("gone", "restored")]
    assert work.tree() == before
    assert work.changed() == []
    assert work.undo() == []


def test_what_was_gone_comes_back_with_its_time_and_what_was_changed_does_not(work: Work) -> None:
    """What was built from a changed file is old after an undo; a file that was away for a while was never changed."""
    for name in ("gone", "changed"):
        work.path(name).write_text("before")
        os.utime(work.path(name), (1_000_000_000, 1_000_000_000))
    work.delete("gone")
    work.write("changed", "after")

    work.undo()

    assert work.path("gone").stat().st_mtime == 1_000_000_000
    assert work.path("changed").stat().st_mtime > 1_700_000_000


def test_calls_are_listed_with_what_they_did(work: Work) -> None:
    """Each call that changed something stands in the list with its files; others do not."""
    work.path("a").write_text("12345")
    first = work.write("a", "new")
    work.write("a", "new")
    work.run("ls; cat a")
    work.run("rm a")

    calls = work.history.calls(SESSION)

    assert [(one.call_id, one.tool) for one in calls] == [(first, "write"), ("c4", "terminal")]
    assert [(one.kind, one.size) for one in calls[0].files] == [("changed", 5)]
    assert calls[1].summary == "rm a"
    assert [one.finished for one in calls] == [True, True]


def test_the_latest_calls_are_undone_one_after_the_other(work: Work) -> None:
    """Each undo goes one call further back; what was undone is not undone again."""
    work.write("a", "1")
    work.write("a", "2")
    work.write("a", "3")

    texts = []
    for _ in range(2):
        work.history.undo_calls(SESSION)
        texts.append(work.path("a").read_text())
    work.history.undo_calls(SESSION, 5)

    assert texts == ["2", "1"]
    assert not work.path("a").exists()
    assert all(one.undone for one in work.history.calls(SESSION))
    assert work.history.undo_calls(SESSION).calls == ()


def test_everything_back_to_a_call_is_undone(work: Work) -> None:
    """The named call goes too, and an id that nobody knows is refused."""
    work.write("a", "1")
    second = work.write("b", "2")
    work.write("a", "3")

    undone = work.history.undo_to(SESSION, second)

    assert [one.call_id for one in undone.calls] == ["c3", "c2"]
    assert {name: entry[2] for name, entry in work.tree().items()} == {"a": b"1"}
    with pytest.raises(UnknownCall, match="c99"):
        work.history.undo_to(SESSION, "c99")


def test_an_undo_can_be_undone(work: Work) -> None:
    """A redo gives what was there before the undo, and the calls count again."""
    work.path("a").write_text("0")
    work.write("a", "1")
    work.run("rm a; echo b > b")
    after = work.tree()
    work.history.undo_calls(SESSION, 2)

    redone = work.history.redo(SESSION)

    assert redone.refused == []
    assert work.tree() == after
    assert [one.undone for one in work.history.calls(SESSION)] == [False, False]
    assert work.history.redo(SESSION).files == ()


def test_a_trial_changes_nothing(work: Work) -> None:
    """With a dry run the outcome is told and the files stay; the real run does just that."""
    work.path("a").write_text("0")
    work.write("a", "1")
    work.write("b", "1")
    before = work.tree()

    trial = work.history.undo_calls(SESSION, 2, dry_run=True)

    assert work.tree() == before
    assert trial.files == work.history.undo_calls(SESSION, 2).files
    assert [one.what for one in trial.files] == ["restored", "removed"]


def test_one_turn_is_undone_alone(work: Work) -> None:
    """Earlier turns stay; a turn before the last one that touched the file is refused."""
    work.write("a", "one", "t1")
    work.write("a", "two", "t2")
    work.write("b", "two", "t2")

    [early] = work.history.undo_turn(SESSION, "t1").files
    late = work.undo("t2")

    assert early.what == "refused"
    assert "later call" in early.reason
    assert late == [("a", "restored"), ("b", "removed")]
    assert work.path("a").read_text() == "one"
    assert work.undo("t1") == [("a", "removed")]


def test_what_has_changed_since_is_left_alone_unless_forced(work: Work) -> None:
    """A file that is not as the call left it is refused; with force it is put back, and what was there can return."""
    work.path("a").write_text("0")
    work.write("a", "1")
    work.write("b", "1")
    work.path("a").write_text("by hand")

    first, second = work.history.undo_turn(SESSION).files

    assert (first.what, second.what) == ("refused", "removed")
    assert "changed since" in first.reason
    assert work.path("a").read_text() == "by hand"
    assert work.history.undo_calls(SESSION, force=True).refused == []
    assert work.path("a").read_text() == "0"
    work.history.redo(SESSION)
    assert work.path("a").read_text() == "by hand"


def test_the_same_content_is_no_change(work: Work) -> None:
    """Who touches a file or writes the same again has not changed it."""
    work.write("a", "1")
    work.path("a").unlink()
    work.path("a").write_text("1")

    assert work.undo() == [("a", "removed")]


def test_a_change_between_two_calls_is_not_lost(work: Work) -> None:
    """Going back before both calls would lose what a person did between them."""
    work.write("a", "1")
    work.path("a").write_text("by hand")
    work.write("a", "2")

    [undone] = work.history.undo_turn(SESSION).files

    assert undone.what == "refused"
    assert work.path("a").read_text() == "2"


def test_a_folder_is_not_removed_with_what_somebody_else_put_in_it(work: Work) -> None:
    """What the call made goes; the folder stays for the sake of the other file."""
    work.write("new/a", "1")
    work.path("new/other").write_text("mine")

    done = work.undo()

    assert done == [("new", "refused"), ("new/a", "removed")]
    assert work.path("new/other").read_text() == "mine"


def test_a_tool_that_calls_another_is_undone_as_one(work: Work) -> None:
    """Calls inside a call carry its id; what the outer one did after them counts too."""

    async def outer(args: dict[str, str], ctx: object) -> str:
        await ctx.services.call(ctx, "write", {"path": "a", "text": "inner"})  # type: ignore[attr-defined]
        work.path("a").write_text("outer")
        work.path("b").write_text("outer")
        return "{}"

    effects = tuple(Effect("write", str(work.path(name))) for name in "ab")
    work.runtime.registry.register(
        name="outer", toolset="test", schema={"description": "x"}, handler=outer, is_async=True, effects=effects
    )
    work.path("a").write_text("before")

    work.call("outer")

    [record] = work.history.calls(SESSION)
    assert len(record.entry_ids) == 2
    assert work.history.undo_calls(SESSION).refused == []
    assert {name: entry[2] for name, entry in work.tree().items()} == {"a": b"before"}


def test_what_is_written_through_a_link_is_undone(work: Work, tmp_path: Path) -> None:
    """A link stays a link, and the file that it leads to gets its content back, also outside of the workspace."""
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    work.path("out").symlink_to(outside)
    work.path("real").write_text("before")
    work.path("in").symlink_to("real")

    work.write("out", "changed")
    work.write("in", "changed")
    work.run("echo again > in; echo again > out")
    work.history.undo_turn(SESSION)

    assert outside.read_text() == "theirs"
    assert work.path("real").read_text() == "before"
    assert work.path("in").is_symlink()
    assert work.path("out").is_symlink()


def test_a_folder_that_became_a_link_is_not_written_through(work: Work, tmp_path: Path) -> None:
    """An undo never lands in another environment than the change did, whatever the person says."""
    work.path("d").mkdir()
    work.path("d/a").write_text("before")
    work.write("d/a", "after")
    elsewhere = tmp_path / "elsewhere"
    work.path("d").rename(elsewhere)
    work.path("d").symlink_to(elsewhere)

    [undone] = work.history.undo_calls(SESSION, force=True).files

    assert undone.what == "refused"
    assert "link" in undone.reason
    assert (elsewhere / "a").read_text() == "after"


def test_special_files_are_left_alone(work: Work) -> None:
    """A pipe is not opened, which would wait for ever; a tree comes back without it."""
    work.path("tree").mkdir()
    os.mkfifo(work.path("tree/pipe"))
    work.path("tree/a").write_text("a")

    work.delete("tree")
    done = work.undo()

    assert done == [("tree/a", "restored"), ("tree/pipe", "refused")]
    assert sorted(work.tree()) == ["tree", "tree/a"]


def test_a_full_tree_comes_back(work: Work) -> None:
    """Modes, links and empty folders of a tree are kept; folders that are closed to their owner too."""
    (work.path("tree") / "sub" / "empty").mkdir(parents=True)
    (work.path("tree") / "sub" / "b").write_bytes(b"\0\xff")
    (work.path("tree") / "link").symlink_to("/etc/passwd")
    (work.path("tree") / "sub").chmod(0o550)
    work.path("tree").chmod(0o711)
    before = work.tree()

    work.run("chmod -R u+w tree; rm -rf tree")
    work.history.undo_calls(SESSION)

    assert work.tree() == before


def test_what_git_keeps_is_not_touched(work: Work) -> None:
    """Of a repository that is deleted the files come back; its .git does not, and the record says so."""
    work.path("repo/.git").mkdir(parents=True)
    work.path("repo/.git/HEAD").write_text("ref: refs/heads/main\n")
    work.path("repo/code.py").write_text("code")

    work.run("rm -rf repo")
    work.write("note", "x")
    work.history.undo_calls(SESSION, 2)

    assert sorted(work.tree()) == ["repo", "repo/code.py"]
    assert any(".git" in note and "not saved" in note for note in work.notes())
    assert b"refs/heads" not in stored_bytes(work)


def test_named_files_are_undone_wherever_they_are_except_in_our_own_home(work: Work, tmp_path: Path) -> None:
    """What a tool or a command names is covered outside of the workspace, too; of our home, only the skills are."""
    outside, deleted = tmp_path / "outside", tmp_path / "deleted"
    outside.write_text("x")
    deleted.write_text("d")
    skills, own = work.runtime.settings.home.skills_dir, work.runtime.settings.home.root / "private"
    skills.mkdir(parents=True)

    def write(args: dict[str, str], **_: object) -> str:
        outside.write_text("y")
        own.write_text("o")
        (skills / "SKILL.md").write_text("s")
        return "{}"

    effects = tuple(Effect("write", str(one)) for one in (outside, own, skills / "SKILL.md"))
    work.runtime.registry.register(
        name="both", toolset="test", schema={"description": "x"}, handler=write, effects=effects
    )
    work.call("both")
    work.run(f"rm {deleted}")

    assert [Path(one.path).name for one in work.history.changed(SESSION)] == ["SKILL.md", "outside", "deleted"]
    assert [one for one in work.history.undo_turn(SESSION).files if one.what == "refused"] == []
    assert (outside.read_text(), deleted.read_text(), own.read_text()) == ("x", "d", "o")
    assert not (skills / "SKILL.md").exists()


def test_calls_without_a_session_are_recorded_too(make_runtime: Callable[..., Runtime], tmp_path: Path) -> None:
    """A runtime without an agent keeps files under the name `direct`."""
    target = tmp_path / "a"
    target.write_text("before")
    runtime = make_runtime(workspace=tmp_path)
    runtime.registry.register(
        name="write",
        toolset="t",
        schema={"description": "x"},
        handler=lambda args, **_: str(target.write_text("after")),
        effects=(Effect("write", str(target)),),
    )
    runtime.call_sync("write", {})
    history = FileHistory(runtime.settings.home.undo_dir)

    assert history.latest_session(str(tmp_path)) == "direct"
    history.undo_calls("direct")
    assert target.read_text() == "before"


def test_undo_can_be_switched_off(tmp_path: Path) -> None:
    """Nothing is kept, and nothing is written into the home."""
    with working_in(tmp_path, "undo:\n  enabled: false\n") as work:
        work.write("a", "1")

        assert not work.history.store.folder.exists()


def test_a_file_too_large_to_keep_is_named_as_changed(tmp_path: Path) -> None:
    """Nothing larger than the setting is copied; the change is still shown, and its undo refused with the reason."""
    with working_in(tmp_path, "undo:\n  max_file_mb: 0.001\n") as work:
        work.path("big").write_bytes(b"x" * 1_001)
        work.write("big", "small now")

        [undone] = work.history.undo_turn(SESSION).files

        assert work.changed() == [("big", "changed")]
        assert "0.001 MB" in undone.reason
        assert "cannot be shown" in work.history.diff(SESSION, str(work.path("big")))


def test_a_large_file_that_only_lost_its_mode_gets_it_back(tmp_path: Path) -> None:
    """Without a copy of its content, a file can still be given its mode."""
    with working_in(tmp_path, "undo:\n  max_file_mb: 0.001\n") as work:
        work.path("big").write_bytes(b"x" * 1_001)
        work.path("big").chmod(0o640)
        work.run("chmod -R 600 .")

        assert work.history.undo_calls(SESSION).refused == []
        assert work.path("big").stat().st_mode & 0o777 == 0o640


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("text", ["text", ""])
@pytest.mark.parametrize("steps", [(2,), (1, 1)], ids=["at once", "one by one"])
@pytest.mark.parametrize("command", ["rm sub/f", "printf other > sub/f", "chmod -R go-r sub; mv sub/f g"])
def test_a_file_is_restored_across_a_change_of_modes(
    work: Work, text: str, steps: tuple[int, ...], command: str
) -> None:
    """A recursive `chmod` saves modes alone; the copy that the next call on a file saves serves both."""
    work.path("sub").mkdir()
    work.path("sub/f").write_text(text)
    before = work.tree()
    work.run("chmod -R u+x sub")
    work.run(command)

    undone = [work.history.undo_calls(SESSION, count) for count in steps]

    assert [one.refused for one in undone] == [[] for _ in steps]
    assert work.tree() == before


def test_a_large_file_that_was_moved_is_moved_back(tmp_path: Path) -> None:
    """Without a copy of its content, a file that only stands elsewhere now returns to its place."""
    with working_in(tmp_path, "undo:\n  max_file_mb: 0.001\n") as work:
        (work.path("tree") / "sub").mkdir(parents=True)
        for name in ("big", "tree/one", "tree/sub/two"):
            work.path(name).write_bytes(name.encode() * 1_000)
        before = work.tree()

        work.run("mv big renamed; mv tree other; chmod 600 renamed")

        assert work.history.undo_calls(SESSION).refused == []
        assert work.tree() == before


def test_the_oldest_sessions_are_dropped_when_the_store_is_full(tmp_path: Path) -> None:
    """The latest session can be undone, the others are forgotten; there is never much more than the limit."""
    with working_in(tmp_path, "undo:\n  max_total_mb: 0.3\n") as work:
        for number in range(12):
            work.path("a").write_bytes(os.urandom(50_000))
            last = work.path("a").read_bytes()
            ctx = work.context(session=f"s{number}")
            work.runtime.call_sync("write", {"path": "a", "text": "new"}, ctx)

        assert len(stored_bytes(work)) < 1_000_000
        assert work.history.calls("s0") == []
        assert work.history.undo_calls("s11").refused == []
        assert work.path("a").read_bytes() == last


def test_equal_contents_are_kept_once(work: Work) -> None:
    """Many copies of one file, and the same file again and again, take the room of one."""
    same = os.urandom(1000)
    for number in range(5):
        work.path(f"f{number}").write_bytes(same)
    work.run("rm f*")
    work.history.undo_calls(SESSION)
    work.run("rm f*")

    with work.history.store.read() as connection:
        assert connection.execute("SELECT count(*) FROM contents").fetchone() == (1,)


def test_a_diff_shows_the_session_as_a_whole(work: Work) -> None:
    """The difference is that between before the session and now; without one it is empty."""
    work.path("a").write_text("one\ntwo\n")
    work.write("a", "one\n2\n")
    work.write("a", "one\nthree\n")
    work.path("bytes").write_bytes(b"\0\1")
    work.write("bytes", "text")
    work.write("same", "x")
    work.path("same").unlink()

    assert "-two\n+three\n" in work.history.diff(SESSION, str(work.path("a")))
    assert "cannot be shown as text" in work.history.diff(SESSION, str(work.path("bytes")))
    assert work.history.diff(SESSION, str(work.path("same"))) == ""
    assert work.history.diff(SESSION, "never/touched") == ""


def test_the_copies_are_for_their_owner_and_can_be_forgotten(work: Work) -> None:
    """Nobody else can read them, and of a deleted session nothing is left that no other needs."""
    secret = "secret" * 100_000
    work.path("a").write_text(secret)
    work.path("b").write_text("small secret")
    work.write("a", "b")
    work.write("b", "b")
    folder = work.history.store.folder
    files = [path for path in folder.rglob("*") if path.is_file()]

    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "contents")} == {0o700}
    os.utime(next((folder / "contents").iterdir()), (0, 0))
    work.history.forget(SESSION)
    assert list((folder / "contents").iterdir()) == []
    with work.history.store.read() as connection:
        assert connection.execute("SELECT count(*) FROM contents").fetchone() == (0,)


def test_a_name_that_is_no_text_is_kept(work: Work) -> None:
    """A file whose name is not UTF-8 is restored like any other."""
    path = os.fsencode(work.folder) + b"/\xff\xfe"
    with open(path, "w") as stream:  # noqa: PTH123 - a name of bytes
        stream.write("odd")

    work.run("rm -f *")
    work.history.undo_calls(SESSION)

    assert [os.fsencode(one.name) for one in work.folder.iterdir()] == [b"\xff\xfe"]


def test_a_large_file_goes_through_several_undos(work: Work) -> None:
    """What calls left of large files is known by their times; undo and redo find them again all the same."""
    texts = [letter * 300_000 for letter in "abcd"]
    work.path("large").write_text(texts[0])
    for text in texts[1:]:
        work.write("large", text)

    for text in (texts[2], texts[1]):
        assert work.history.undo_calls(SESSION).refused == []
        assert work.path("large").read_text() == text
    assert work.history.redo(SESSION).refused == []
    assert work.path("large").read_text() == texts[2]
    assert work.history.undo_calls(SESSION, 2).refused == []
    assert work.path("large").read_text() == texts[0]


@pytest.mark.parametrize("limit", ["max_files: 100", "max_workspace_mb: 0.0001", "max_scan_seconds: 0"])
def test_a_workspace_beyond_the_limits_is_covered_by_name_only(tmp_path: Path, limit: str) -> None:
    """The person is told once, and the record says so; what the command names comes back, nothing else is touched."""
    with working_in(tmp_path, f"undo:\n  {limit}\n") as work:
        work.path("named").write_text("named")
        for number in range(120):
            work.path(f"m{number:04}").write_text("mine")

        commands = ("touch named", "rm named; ls m00* | xargs rm")
        results = [work.runtime.call_sync("terminal", {"command": one}, work.context()) for one in commands]
        undone = work.history.undo_calls(SESSION)

        assert [Path(one.path).name for one in undone.files] == ["named"]
        assert len(work.tree()) == 21
        assert ["so undo covers only files" in "".join(one.notices) for one in results] == [True, False]
        assert any("workspace" in note and "only files that the call names" in note for note in work.notes())


def test_a_call_goes_on_when_nothing_can_be_kept(work: Work) -> None:
    """A home that cannot be written to makes no call fail."""
    folder = work.history.store.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")

    work.write("a", "1")

    assert work.path("a").read_text() == "1"


def test_what_does_not_fit_on_the_disk_is_noted(work: Work) -> None:
    """The call goes on, and the record says that there is no copy."""
    work.path("large").write_text("x" * 300_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        work.delete("large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert not work.path("large").exists()
    assert any(note.startswith("not saved:") and "large" in note for note in work.notes())


def test_a_copy_that_is_damaged_is_not_restored(work: Work) -> None:
    """A content that does not have its digest any more is refused, with the reason."""
    work.path("a").write_text("before" * 50_000)
    work.write("a", "after")
    [copy] = (work.history.store.folder / "contents").iterdir()
    copy.write_bytes(b"x" + copy.read_bytes()[1:])

    [undone] = work.history.undo_calls(SESSION).files

    assert "damaged" in undone.reason
    assert work.path("a").read_text() == "after"


def test_a_huge_tree_is_one_note(tmp_path: Path) -> None:
    """What is beyond the limit is told once, not for each file."""
    for name in range(20):
        (tmp_path / f"f{name:02}").touch()
    snapshot = PathSnapshot(LocalFiles(), store.UndoStore(tmp_path / "store"))

    snapshot.take([str(tmp_path)], SnapshotLimits(max_files=5))

    assert len(snapshot.states) == 5
    assert len(snapshot.notes) == 1
