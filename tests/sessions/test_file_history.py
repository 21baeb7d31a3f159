"""What files were before tools changed them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolcrib
from toolcrib.core.types import Effect
from toolcrib.sessions import file_history
from toolcrib.sessions.file_copies import MAX_FILE_BYTES
from toolcrib.sessions.file_history import FileHistory

SOURCE = Path(toolcrib.__file__).parents[1]


class Work:
    """A working folder whose files are changed by calls of one session."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "work"
        self.folder.mkdir()
        self.history = FileHistory(root / "cache" / "undo")
        self._calls = 0

    def path(self, name: str) -> Path:
        return self.folder / name

    def begin(self, kind: str, name: str, turn: str = "t1") -> str:
        self._calls += 1
        call_id = f"c{self._calls}"
        self.history.remember("s", turn, call_id, (Effect(kind, name),), str(self.folder))  # type: ignore[arg-type]
        return call_id

    def write(self, name: str, text: str, turn: str = "t1") -> None:
        call_id = self.begin("write", name, turn)
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)
        self.history.finished("s", call_id)

    def delete(self, name: str, turn: str = "t1") -> None:
        call_id = self.begin("delete", name, turn)
        if self.path(name).is_dir():
            shutil.rmtree(self.path(name))
        else:
            self.path(name).unlink()
        self.history.finished("s", call_id)

    def changed(self) -> list[tuple[str, str]]:
        return [(Path(one.path).name, one.kind) for one in self.history.changed("s")]

    def undo(self, turn: str | None = None) -> list[tuple[str, str]]:
        return [(Path(one.path).name, one.what) for one in self.history.undo("s", turn_id=turn)]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def test_a_session_is_taken_back_as_a_whole(work: Work) -> None:
    """Created files go, changed ones get their content and mode back, deleted ones return."""
    work.path("changed").write_text("before")
    work.path("changed").chmod(0o755)
    work.path("deleted").write_text("was here")
    work.write("new/deep/file", "x")
    work.write("changed", "once")
    work.path("changed").chmod(0o600)
    work.write("changed", "twice")
    work.delete("deleted")

    assert work.changed() == [("file", "created"), ("changed", "changed"), ("deleted", "deleted")]
    assert work.history.changed("s")[1].call_ids == ("c2", "c3")
    assert work.history.diff("s", str(work.path("deleted"))).splitlines()[-1] == "\\ No newline at end of file"


def test_undo_restores_content_and_mode(work: Work) -> None:
    """After an undo the files are what they were, and nothing is left to take back."""
    work.path("run.sh").write_text("before")
    work.path("run.sh").chmod(0o755)
    work.write("run.sh", "once")
    work.write("run.sh", "twice")
    work.write("new/deep/file", "x")
    work.path("gone").write_text("was here")
    work.delete("gone")

    undone = work.undo()

    assert undone == [("run.sh", "restored"), ("file", "removed"), ("gone", "restored")]
    assert work.path("run.sh").read_text() == "before"
    assert work.path("run.sh").stat().st_mode & 0o777 == 0o755
    assert not work.path("new").exists()
    assert work.path("gone").read_text() == "was here"
    assert work.changed() == []
    assert work.undo() == []


def test_one_turn_is_taken_back_alone(work: Work) -> None:
    """Earlier turns stay; a turn before the last one that touched the file is refused."""
    work.write("a", "one", "t1")
    work.write("a", "two", "t2")
    work.write("b", "two", "t2")

    early = work.history.undo("s", turn_id="t1")
    late = work.undo("t2")

    assert [one.what for one in early] == ["refused"]
    assert "later call" in early[0].reason
    assert late == [("a", "restored"), ("b", "removed")]
    assert work.path("a").read_text() == "one"
    assert work.undo("t1") == [("a", "removed")]


def test_what_somebody_else_changed_is_left_alone(work: Work) -> None:
    """A file that is not as the session left it is refused with the reason; the others are put back."""
    work.path("a").write_text("0")
    work.write("a", "1")
    work.write("b", "1")
    work.path("a").write_text("by hand")

    first, second = work.history.undo("s")

    assert (first.what, second.what) == ("refused", "removed")
    assert "somebody else" in first.reason
    assert work.path("a").read_text() == "by hand"


def test_a_change_between_two_calls_is_not_lost(work: Work) -> None:
    """Going back before both calls would lose what a person did between them."""
    work.write("a", "1")
    work.path("a").write_text("by hand")
    work.write("a", "2")

    [undone] = work.history.undo("s")

    assert undone.what == "refused"
    assert work.path("a").read_text() == "2"


def test_a_call_that_was_cut_short_is_not_guessed_about(work: Work) -> None:
    """Without its end, what is there now may be anybody's; what did not change at all needs no undo."""
    work.begin("write", "a")
    work.path("a").write_text("half")
    work.begin("write", "b")

    [undone] = work.history.undo("s")

    assert (Path(undone.path).name, undone.what) == ("a", "refused")
    assert "cut short" in undone.reason


def test_a_tool_that_calls_another_is_taken_back_as_one(work: Work) -> None:
    """Calls inside a call carry its id; what the outer one did after them counts too."""
    effects = (Effect("write", "a"),)
    work.history.remember("s", "t", "c", effects, str(work.folder))
    work.history.remember("s", "t", "c", (Effect("write", "b"),), str(work.folder))
    work.path("b").write_text("inner")
    work.history.finished("s", "c")
    work.path("a").write_text("outer")
    work.history.finished("s", "c")

    assert work.undo() == [("a", "removed"), ("b", "removed")]


def test_a_deleted_folder_comes_back_with_its_files(work: Work) -> None:
    """Every file of a folder that is deleted is kept, links as links."""
    (work.path("tree") / "sub").mkdir(parents=True)
    (work.path("tree") / "a").write_text("a")
    (work.path("tree") / "sub" / "b").write_text("b")
    (work.path("tree") / "link").symlink_to("/etc/passwd")

    work.delete("tree")
    work.undo()

    assert (work.path("tree") / "a").read_text() == "a"
    assert (work.path("tree") / "sub" / "b").read_text() == "b"
    assert (work.path("tree") / "link").readlink() == Path("/etc/passwd")


def test_links_are_not_followed_out_of_the_folder(work: Work, tmp_path: Path) -> None:
    """What a link outside points to is neither copied nor changed; inside, the real file is kept."""
    outside = tmp_path / "outside"
    outside.write_text("private")
    work.path("out").symlink_to(outside)
    work.path("real").write_text("before")
    work.path("in").symlink_to("real")

    work.write("out", "changed")
    work.write("in", "changed")
    work.undo()

    assert outside.read_text() == "changed"
    assert work.path("real").read_text() == "before"
    assert work.path("in").is_symlink()
    copies = [one.read_text() for one in (work.history.folder / "s" / "copies").iterdir()]
    assert copies == ["before"]


def test_a_folder_that_became_a_link_is_not_written_through(work: Work, tmp_path: Path) -> None:
    """An undo never lands in another place than the change did."""
    work.path("d").mkdir()
    work.path("d/a").write_text("before")
    work.write("d/a", "after")
    elsewhere = tmp_path / "elsewhere"
    work.path("d").rename(elsewhere)
    work.path("d").symlink_to(elsewhere)

    [undone] = work.history.undo("s")

    assert undone.what == "refused"
    assert (elsewhere / "a").read_text() == "after"


def test_special_files_are_left_alone(work: Work) -> None:
    """A pipe is not opened, which would wait for ever, and not replaced."""
    os.mkfifo(work.path("pipe"))

    work.history.finished("s", work.begin("write", "pipe"))

    assert work.changed() == []
    assert work.undo() == []


def test_what_is_elsewhere_or_no_file_is_not_kept(work: Work) -> None:
    """Effects in another backend, of other kinds, or without a usable path leave nothing behind."""
    effects = (
        Effect("write", "/x", backend="docker"),
        Effect("exec", "rm a"),
        Effect("read", "a"),
        Effect("write", ""),
        Effect("write", "a\0b"),
    )

    work.history.remember("s", "t", "c", effects, str(work.folder))

    assert not work.history.folder.exists()


def test_a_file_too_large_to_keep_is_named_as_changed(work: Work) -> None:
    """Nothing larger than 10 MB is copied; the change is still shown, and its undo refused with the reason."""
    with work.path("big").open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    work.write("big", "small now")

    [undone] = work.history.undo("s")

    assert work.changed() == [("big", "changed")]
    assert "10 MB" in undone.reason
    assert "cannot be shown" in work.history.diff("s", str(work.path("big")))


def test_a_diff_shows_the_session_as_a_whole(work: Work) -> None:
    """The difference is that between before the session and now; without one it is empty."""
    work.path("a").write_text("one\ntwo\n")
    work.write("a", "one\n2\n")
    work.write("a", "one\nthree\n")
    work.path("bytes").write_bytes(b"\0\1")
    work.write("bytes", "text")
    work.write("same", "x")
    work.path("same").unlink()

    diff = work.history.diff("s", str(work.path("a")))

    assert "-two\n+three\n" in diff
    assert "cannot be shown as text" in work.history.diff("s", str(work.path("bytes")))
    assert work.history.diff("s", str(work.path("same"))) == ""
    assert work.history.diff("s", "never/touched") == ""


def test_the_copies_are_for_their_owner_and_can_be_forgotten(work: Work) -> None:
    """Nobody else can read them, and a deleted session leaves none."""
    work.path("a").write_text("secret")
    work.write("a", "b")
    files = [path for path in work.history.folder.rglob("*") if path.is_file()]

    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert work.history.folder.stat().st_mode & 0o777 == 0o700
    work.history.forget("s")
    assert list(work.history.folder.iterdir()) == []


def test_the_oldest_sessions_are_pruned(tmp_path: Path) -> None:
    """There are never copies of more sessions than the bound; odd session names stay inside the folder."""
    history = FileHistory(tmp_path / "undo")
    target = tmp_path / "a"
    target.write_text("x")
    for number in range(file_history.MAX_SESSIONS + 3):
        history.remember(f"../s{number}", "t", "c", (Effect("write", str(target)),), str(tmp_path))
        index = next(path for path in history.folder.rglob("index.jsonl") if path.stat().st_mtime > 1_000_000)
        os.utime(index, (number, number))

    assert len(list(history.folder.iterdir())) == file_history.MAX_SESSIONS
    target.write_text("y")
    assert history.changed("../s0") == []
    assert len(history.changed(f"../s{file_history.MAX_SESSIONS + 2}")) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "undo"]


def test_a_killed_process_leaves_what_undo_needs(work: Work) -> None:
    """The copy and its line are on disk before the call runs; half a line behind them is passed over."""
    work.path("a").write_text("before")
    code = (
        "import os, sys; from pathlib import Path; from toolcrib.core.types import Effect;"
        "from toolcrib.sessions.file_history import FileHistory;"
        "h = FileHistory(Path(sys.argv[1]));"
        "h.remember('s', 't', 'c', (Effect('write', 'a'),), sys.argv[2]);"
        "Path(sys.argv[2], 'a').write_text('half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(work.history.folder), str(work.folder)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=30,
        check=False,
    )
    with (work.history.folder / "s" / "index.jsonl").open("a") as stream:
        stream.write('{"event": "before", "id"')
    work.write("b", "x")

    assert work.changed() == [("a", "changed"), ("b", "created")]
    assert "-before" in work.history.diff("s", str(work.path("a")))


NAMES = st.sampled_from(["a", "b", "d/c"])
STEPS = st.lists(st.tuples(st.sampled_from(["write", "delete"]), NAMES, st.text("xy\n", max_size=4)), max_size=8)


@settings(max_examples=40, deadline=None)
@given(start=st.dictionaries(NAMES, st.text("xy\n", max_size=4)), steps=STEPS)
def test_any_session_can_be_taken_back(
    tmp_path_factory: pytest.TempPathFactory, start: dict[str, str], steps: list
) -> None:
    """Whatever the calls did, undo gives the files of the beginning."""
    work = Work(tmp_path_factory.mktemp("any"))
    for name, text in start.items():
        work.path(name).parent.mkdir(exist_ok=True)
        work.path(name).write_text(text)
    for kind, name, text in steps:
        if kind == "write":
            work.write(name, text)
        elif work.path(name).exists():
            work.delete(name)

    work.undo()

    files = {str(path.relative_to(work.folder)): path.read_text() for path in work.folder.rglob("*") if path.is_file()}
    assert files == start
