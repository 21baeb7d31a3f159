"""Undo sees whatever any program does to the files of a workspace that git would not ignore."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.undo.test_undo_commands import wait_until
from tests.undo.test_undo_git import git
from tests.undo.undo_work import SESSION, Work, working_in
from toolcrib.approval.command_reader import read_command
from toolcrib.core.types import Effect
from toolcrib.undo import workspace
from toolcrib.undo.history import FileHistory
from toolcrib.undo.store import UndoStore
from toolcrib.undo.workspace import Workspace, why_not_scanned

MAKEFILE = "clean:\n\trm -rf out generated.txt\n\tprintf cleaned > state\n"
REWRITE = """
import pathlib
for path in sorted(pathlib.Path("src").rglob("*.py")):
    with path.open("r+b") as stream:  # in place: the same inode, and often the same size
        content = stream.read()
        stream.seek(0)
        stream.write(content.swapcase())
"""


def fill(folder: Path, count: int = 40) -> None:
    """Many sources, some of them executable, and what a build made."""
    for number in range(count):
        path = folder / "src" / f"part{number % 7}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def  f{number}( ):\n  return {number}\n")
        path.chmod(0o755 if number % 50 == 0 else 0o644)
    (folder / "src" / "link.py").symlink_to("part0/module0.py")
    (folder / "src" / "empty").mkdir()
    (folder / "out").mkdir()
    (folder / "out" / "a.o").write_bytes(os.urandom(2000))
    (folder / "generated.txt").write_text("generated")
    (folder / "Makefile").write_text(MAKEFILE)
    (folder / "rewrite.py").write_text(REWRITE)
    (folder / "format.sh").write_text("find src -name '*.py' -type f | xargs sed -i 's/  */ /g'\n")


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize(
    "command",
    ["make -s clean", "sh format.sh", "rm -rf src", f"{sys.executable} rewrite.py", "mv src old && mkdir src"],
)
def test_whatever_a_program_does_is_undone_byte_for_byte(work: Work, command: str) -> None:
    """The text of the command does not tell which files change; all of them come back, with modes and links."""
    fill(work.folder, 500 if "format" in command else 40)
    before = work.tree()

    assert work.run(command)["exit_code"] == 0
    changed = work.tree()
    undone = work.history.undo_calls(SESSION)

    assert changed != before
    assert (undone.refused, work.tree()) == ([], before)
    assert work.history.redo(SESSION).refused == []
    assert work.tree() == changed


TEXT = st.binary(max_size=6)
NAME = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/f", "g/h/i", "é", "x y"])
ACTION = st.tuples(st.sampled_from(["write", "remove", "link", "mode", "folder", "move", "tree"]), NAME, NAME, TEXT)


def act(folder: Path, action: tuple[str, str, str, bytes]) -> None:
    """One edit; one that does not fit what is there does nothing."""
    what, first, second, content = action
    path, other = folder / first, folder / second
    try:
        if what == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif what == "remove":
            path.unlink()
        elif what == "link":
            path.symlink_to(second)
        elif what == "mode":
            path.chmod(0o600 if content else 0o755)
        elif what == "folder":
            path.mkdir(parents=True)
        elif what == "move":
            path.rename(other)
        else:
            subprocess.run(["rm", "-rf", str(path.parent)], check=False) if path.parent != folder else None
    except OSError:
        pass


@pytest.mark.services
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(first=st.lists(ACTION, max_size=8), rounds=st.lists(st.lists(ACTION, max_size=6), min_size=1, max_size=3))
def test_any_edits_of_programs_are_undone_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[tuple[str, str, str, bytes]],
    rounds: list[list[tuple[str, str, str, bytes]]],
) -> None:
    """Random trees and edits: each undo gives the tree before one call, and a redo the tree after it."""
    root = tmp_path_factory.mktemp("any")
    with working_in(root) as work:
        for one in first:
            act(work.folder, one)
        states = [work.tree()]
        for edits in rounds:
            with during_a_command(work):
                for one in edits:
                    act(work.folder, one)
            if work.tree() != states[-1]:
                states.append(work.tree())

        for before, after in zip(reversed(states[:-1]), reversed(states[1:]), strict=True):
            assert work.history.undo_calls(SESSION).refused == []
            assert work.tree() == before
            assert work.history.redo(SESSION).refused == []
            assert work.tree() == after
            assert work.history.undo_calls(SESSION).refused == []
        assert work.tree() == states[0]


class during_a_command:  # noqa: N801 - reads like a statement
    """What is done in this context happens while a command of unknown effects runs."""

    def __init__(self, work: Work, command: str = "make -s unknown") -> None:
        self._work, self._command = work, command

    def __enter__(self) -> None:
        self._begun, self._go_on = threading.Event(), threading.Event()

        def handler(args: dict[str, Any], **_: Any) -> str:
            self._begun.set()
            assert self._go_on.wait(30)
            return "{}"

        name = f"opaque{self._work._calls}"
        effects = (Effect("exec", self._command, str(self._work.folder)),)
        self._work.runtime.registry.register(
            name=name, toolset="test", schema={"description": "x"}, handler=handler, effects=effects
        )
        self._thread = threading.Thread(target=self._work.call, args=(name,))
        self._thread.start()
        assert self._begun.wait(30)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join(30)


def names(files: Any) -> list[str]:
    return [Path(one.path).name for one in files]


# What is followed


def test_ignored_files_are_undone_when_the_command_names_them(work: Work) -> None:
    """`rm -rf build` and `mv .env x` are undone although git ignores both; so are ignored files in a named folder."""
    git(work.folder, "init", "-q")
    work.path(".gitignore").write_text("build/\n.env\n*.o\n")
    work.path("build/deep").mkdir(parents=True)
    work.path("build/deep/lib.a").write_bytes(b"\0binary")
    work.path(".env").write_text("SECRET=1")
    work.path("src").mkdir()
    work.path("src/x.o").write_text("object")
    work.path("src/x.c").write_text("source")
    before = without_git(work)

    work.run("rm -rf build")
    work.run("mv .env x")
    work.run("rm -rf src")
    undone = work.history.undo_calls(SESSION, 3)

    assert undone.refused == []
    assert without_git(work) == before


CLEAN = "clean:\n\trm -rf build *.log node_modules; mkdir build; printf new > build/made; printf SECRET=2 > .env\n"


def test_small_ignored_trees_come_back_after_a_command_that_does_not_name_them(work: Work) -> None:
    """`make clean` deletes what git ignores: a deletion is undone, what a build makes or changes is not listed."""
    git(work.folder, "init", "-q")
    work.path(".gitignore").write_text("build/\n*.log\n.env\n__pycache__/\n")
    work.path("build/deep").mkdir(parents=True)
    work.path("build/deep/lib.a").write_bytes(b"\0binary")
    work.path("build/deep/lib.a").chmod(0o755)
    work.path("build/link").symlink_to("deep/lib.a")
    work.path("run.log").write_text("log")
    work.path(".env").write_text("SECRET=1")
    work.path("Makefile").write_text(CLEAN)
    before = without_git(work)

    work.run("make -s clean")
    listed = sorted(work.changed())
    undone = work.history.undo_calls(SESSION)

    assert listed == [("build/deep/lib.a", "deleted"), ("build/link", "deleted"), ("run.log", "deleted")]
    assert undone.refused == []
    made = {".env": ("file", 0o644, b"SECRET=2"), "build/made": ("file", 0o644, b"new")}
    assert without_git(work) == {**before, **made}
    assert work.notes() == []


def test_what_is_not_recorded_of_ignored_folders_is_said_at_once(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ignored folders are not saved; that files were deleted in them stands in the list, and with the result."""
    monkeypatch.setattr(workspace, "IGNORED_FILES", 20)
    git(work.folder, "init", "-q")
    work.path(".gitignore").write_text("build/\nnode_modules/\n__pycache__/\n")
    work.path("Makefile").write_text(CLEAN)
    for folder in ("build", "node_modules", "__pycache__"):
        work.path(folder).mkdir()
        for number in range(30):
            work.path(f"{folder}/{number}").write_text("x")

    arguments = {"command": "make -s clean; rm -r __pycache__"}
    said = work.runtime.call_sync("terminal", arguments, work.context()).notices

    lost = ["29 ignored files were deleted in build/", "the ignored folder node_modules/ was deleted"]
    assert sorted(work.notes()) == [f"not recorded: {one}" for one in lost]
    assert sorted(said) == [f"{one}; undo cannot restore that" for one in lost]


def without_git(work: Work) -> dict[str, object]:
    return {name: entry for name, entry in work.tree().items() if name != ".git" and not name.startswith(".git/")}


def test_what_git_ignores_is_not_saved_unless_it_is_tracked_or_included(tmp_path: Path) -> None:
    """Tracked files count although a rule ignores them; the settings add folders and leave out others."""
    config = json.dumps({"undo": {"include": ["cache/kept"], "ignore": ["*.big"]}})
    with working_in(tmp_path, config) as work:
        git(work.folder, "init", "-q")
        for name in ("forced/tracked", "forced/other", "cache/kept/a", "cache/b", "log.big", "plain", "sub/log.tmp"):
            work.path(name).parent.mkdir(parents=True, exist_ok=True)
            work.path(name).write_text(name)
        work.path(".gitignore").write_text("forced/\ncache/\n")
        work.path("sub/.gitignore").write_text("*.tmp\n")
        git(work.folder, "add", "-f", "forced/tracked")

        with during_a_command(work):
            for name in (
                "forced/tracked",
                "forced/other",
                "cache/kept/a",
                "cache/b",
                "log.big",
                "plain",
                "sub/log.tmp",
            ):
                work.path(name).write_text("changed")

        assert sorted(names(work.history.changed(SESSION))) == ["a", "plain", "tracked"]


def test_a_file_counts_once_git_tracks_it(work: Work) -> None:
    """An ignored file that is added by force is followed from then on."""
    git(work.folder, "init", "-q")
    work.path(".gitignore").write_text("*.env\n")
    work.path("a.env").write_text("before")
    work.run("make -s unknown; true")
    git(work.folder, "add", "-f", "a.env")
    work.run("make -s unknown; true")

    with during_a_command(work):
        work.path("a.env").write_text("changed")

    assert work.changed() == [("a.env", "changed")]


def test_outside_of_git_what_can_be_rebuilt_is_left_out(work: Work) -> None:
    """Without a repository a list of well-known folders is ignored; everything else is followed."""
    for name in ("node_modules/m.js", "pkg/__pycache__/m.pyc", "pkg/m.py", "build/out"):
        work.path(name).parent.mkdir(parents=True, exist_ok=True)
        work.path(name).write_text(name)

    with during_a_command(work):
        for name in ("node_modules/m.js", "pkg/__pycache__/m.pyc", "pkg/m.py", "build/out"):
            work.path(name).write_text("changed")

    assert sorted(names(work.history.changed(SESSION))) == ["m.py", "out"]


def test_what_new_rules_reveal_is_not_taken_for_new(work: Work) -> None:
    """A command that changes .gitignore makes files visible that were there before; an undo removes none of them."""
    git(work.folder, "init", "-q")
    work.path(".gitignore").write_text("data/\n*.log\n")
    work.path("data").mkdir()
    work.path("data/mine").write_text("mine")
    work.path("a.log").write_text("mine")
    before = without_git(work)

    with during_a_command(work):
        work.path(".gitignore").write_text("\n")
    with during_a_command(work):
        work.path("data/mine").write_text("changed")
        work.path(".gitignore").write_text("data/\n")
    assert work.history.undo_calls(SESSION, 2).refused == []

    assert without_git(work) == before


@pytest.mark.parametrize("folder", ["/", "/home", "/home/someone", "/Users/someone", "/root", "/data/me", "/data"])
def test_a_home_is_never_scanned(folder: str) -> None:
    """Neither the root of the file system, nor a home, nor what is above it."""
    assert why_not_scanned(folder, "/data/me")


@pytest.mark.parametrize("folder", ["/home/someone/work", "/root/work", "/srv", "/tmp/x"])
def test_a_folder_in_a_home_is_scanned(folder: str) -> None:
    """Projects are usually there."""
    assert why_not_scanned(folder, "/home/user") == ""


def test_in_a_home_only_named_files_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person is told once, the record says why, and the files that the command names are undone."""
    with working_in(tmp_path) as work:
        monkeypatch.setenv("HOME", str(work.folder))
        for name in ("a", "b"):
            work.path(name).write_text(name)
        work.path("Makefile").write_text("all:\nclean:\n\t@rm b\n")

        commands = ("touch a", "make -s", "rm a; make -s clean")
        results = [work.runtime.call_sync("terminal", {"command": one}, work.context()) for one in commands]
        undone = work.history.undo_calls(SESSION)

        assert names(undone.files) == ["a"]
        assert not work.path("b").exists()
        told = "the workspace is a home folder, so undo covers only files that calls name"
        assert [list(one.notices) for one in results] == [[], [told], []]
        assert any("home folder" in note for note in work.notes())


# Which commands are looked at


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize(
    "command",
    [
        "ls -la", "git status", "git -C . log --oneline | head", "echo hello", "cat a | grep -c x 2> /dev/null",
        "grep -rl alpha . | xargs grep beta", "find . -name '*.py' -type f", "test -e a && echo yes || echo no",
        "for f in *; do wc -l \"$f\"; done", "cd sub; pwd; ls", "sed -n 1,3p a", "awk '{print $1}' a", "sort a | uniq",
        "uniq -c a", "xxd a | head -2", "less a", "rg -n x .",
    ],
)  # fmt: skip
def test_commands_that_only_read_are_not_scanned(work: Work, command: str) -> None:
    """Nothing is written down for them, and the workspace is not walked."""
    work.run(command)

    assert not work.history.store.folder.exists()


@pytest.mark.parametrize(
    "command",
    ["make", "echo a > b", "find . -delete", "find . -exec touch {} +", "sed -i s/a/b/ c", "sort -o a a",
     "git checkout x", "xargs rm", "awk '{print > \"b\"}' a", "sed 's/a/b/w out' a", "python3 x.py", "$CMD a",
     "git diff --output=x", "git grep -Otouch x", "uniq a b", "xxd a b", "sdiff -o c a b", "history -w x",
     "rg --pre ./run x", "less -o log a", "file -C -m magic",
     "cat a | tee b", "f() { rm a; }; f", "eval \"$X\"", "ls; npm test", "tree -o x", "sed -ni p a", "git stash",
     "date > x", "timeout 5 make", "env A=1 make", "echo `touch x`", "cat <(touch x)"],
)  # fmt: skip
def test_what_may_write_is_never_taken_for_reading(command: str) -> None:
    """In doubt a command is scanned."""
    reading = read_command(command, cwd="/work", home="/home/user")

    assert not reading.files.reads_only


# Whose changes


def test_what_the_first_scan_finds_belongs_to_no_call(work: Work) -> None:
    """Files that were there, and changes between two commands, are nobody's."""
    fill(work.folder, 5)
    work.run("make -s unknown; true")
    work.path("generated.txt").write_text("by hand")
    work.run("make -s unknown; true")

    assert work.history.calls(SESSION) == []


def test_what_an_editor_saves_during_an_exact_command_is_listed_and_left_alone(work: Work) -> None:
    """A command that names all it changes has not changed the rest: that is listed, and undone only by force."""
    for name in ("a", "b"):
        work.path(name).write_text("before")
    with during_a_command(work, "rm a"):
        work.path("a").unlink()
        work.path("b").write_text("from an editor")

    [call] = work.history.calls(SESSION)
    undone = work.history.undo_calls(SESSION)

    assert [(Path(one.path).name, one.during) for one in call.files] == [("a", False), ("b", True)]
    assert [(Path(one.path).name, one.what) for one in undone.files] == [("a", "restored"), ("b", "refused")]
    assert "during the call" in undone.refused[0].reason
    assert work.path("b").read_text() == "from an editor"
    assert work.history.undo_calls(SESSION, force=True).refused == []
    assert work.path("b").read_text() == "before"


def test_what_a_parallel_call_writes_belongs_to_that_call(work: Work) -> None:
    """A file tool names its file, so a command that runs meanwhile is not blamed for it."""
    work.path("a").write_text("before")
    work.path("b").write_text("before")
    with during_a_command(work):
        work.write("a", "by the tool")
        work.path("b").write_text("by the command")

    tool, command = sorted(work.history.calls(SESSION), key=lambda one: one.tool != "write")
    undone = work.history.undo_to(SESSION, command.call_id)

    assert names(tool.files) == ["a"]
    assert {Path(one.path).name: one.during for one in command.files} == {"a": True, "b": False}
    assert work.path("b").read_text() == "before"
    assert {Path(one.path).name: one.what for one in undone.files}["b"] == "restored"


def test_changes_while_two_commands_run_are_listed_with_both(work: Work) -> None:
    """Nobody knows which of them it was, so neither undo takes it back silently; what one did alone, it does."""
    for name in ("first", "both", "last"):
        work.path(name).write_text("before")
    with during_a_command(work):
        work.path("first").write_text("changed")
        with during_a_command(work):
            work.path("both").write_text("changed")
        work.path("last").write_text("changed")

    outer, inner = work.history.calls(SESSION)
    refused = names(work.history.undo_calls(SESSION, 2).refused)

    assert {Path(one.path).name: one.during for one in outer.files} == {"both": True, "first": False, "last": False}
    assert {Path(one.path).name: one.during for one in inner.files} == {"both": True}
    assert refused == ["both"]
    assert [work.path(name).read_text() for name in ("first", "both", "last")] == ["before", "changed", "before"]


def test_what_a_background_process_changes_later_is_not_blamed_on_other_calls(work: Work) -> None:
    """It is listed with the call that started the process, and what runs meanwhile does not undo it silently."""
    work.path("a").write_text("a")
    line = (
        f"while [ ! -e {work.folder}/go ]; do sleep 0.02; done; cd {work.folder} && make -s x; echo b > a && touch done"
    )
    work.runtime.call_sync("terminal", {"command": line, "background": True}, work.context())
    with during_a_command(work):
        work.path("go").touch()
        wait_until(work.path("done").exists)
        work.path("mine").write_text("x")

    background, command = work.history.calls(SESSION)

    assert background.runs_on
    assert "a" in names(background.files)
    assert all(one.during for one in command.files)
    assert "a" in names(work.history.undo_calls(SESSION, 2).refused)
    assert work.path("a").read_text() == "b\n"


# Several processes, faults


def test_another_process_goes_on_from_the_same_scan(work: Work) -> None:
    """The second process reads no file again, and sees what has changed since the first."""
    fill(work.folder, 20)
    folder = str(work.folder)
    first, second = (Workspace(UndoStore(work.history.store.folder), folder) for _ in range(2))
    assert first.scan() == {}
    work.path("generated.txt").chmod(0o600)

    assert names_of(second.scan()) == ["generated.txt"]
    work.path("state").write_text("new")
    assert names_of(first.scan()) == ["state"]
    assert second.scan() == {}


def names_of(changes: dict[str, Any]) -> list[str]:
    return [Path(path).name for path in changes]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_change_within_the_grain_of_the_clock_is_seen(work: Work, same_size: bool) -> None:
    """Even with the old size and modification time, a change of content is found."""
    path = work.path("a")
    path.write_text("one")
    os.utime(path, (1, 1))
    watched = Workspace(UndoStore(work.history.store.folder), str(work.folder))
    watched.scan()
    with path.open("r+") as stream:
        stream.write("two" if same_size else "longer")
    os.utime(path, (1, 1))

    assert names_of(watched.scan()) == ["a"]


KILLED = """
import os, signal, sys
from pathlib import Path
from toolcrib.undo.store import UndoStore
from toolcrib.undo.workspace import Workspace
home, folder, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
count = 0
def hear(event, args):
    global count
    if event in ("open", "os.scandir", "os.rename"):
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hear)
Workspace(UndoStore(home), folder).scan()
print(count)
"""


def test_a_scan_that_is_killed_leaves_a_store_that_works(tmp_path: Path) -> None:
    """Wherever the process ends, the next one scans again and undoes what follows."""
    choose = random.Random(1)
    with working_in(tmp_path) as work:
        fill(work.folder, 30)
        work.path("large").write_bytes(os.urandom(200_000))
        before = work.tree()
        store = work.history.store.folder
        for at in sorted(choose.sample(range(1, 60), 4)):
            done = subprocess.run(
                [sys.executable, "-c", KILLED, str(store), str(work.folder), str(at)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False, capture_output=True,
            )  # fmt: skip
            assert done.returncode == -9, done.stderr

        work.run("rm -rf src large; make -s clean")

        assert work.history.undo_calls(SESSION).refused == []
        assert work.tree() == before


def test_a_full_disk_stops_no_command(work: Work) -> None:
    """Where the workspace cannot be saved, the command runs and the record says so; later calls are saved again."""
    fill(work.folder, 20)
    work.path("much").write_bytes(os.urandom(120_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        work.run("make -s clean")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    cleaned = work.tree()

    assert work.path("state").read_text() == "cleaned"
    assert any(note.startswith("not saved:") for note in work.notes())
    work.run("rm -rf src much")
    assert work.history.undo_calls(SESSION).refused == []
    assert work.tree() == cleaned


@pytest.mark.services
def test_a_command_that_was_cut_short_is_listed_with_what_it_did(work: Work) -> None:
    """The process died during a command: the next look finds what changed, and undoes it only by force."""
    work.path("a").write_text("before")
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom toolcrib.testing import isolated_runtime\n"
        "from toolcrib.core.types import Effect\n"
        "with isolated_runtime(Path(sys.argv[1]), workspace=Path(sys.argv[2]), yolo=True) as runtime:\n"
        "    def handler(args, **_):\n        Path(sys.argv[2], 'a').write_text('half')\n"
        "        os.kill(os.getpid(), 9)\n"
        "    runtime.registry.register(name='x', toolset='t', schema={'description': 'x'}, handler=handler,\n"
        "        effects=(Effect('exec', 'make all', sys.argv[2]),))\n"
        "    runtime.call_sync('x', {}, runtime.context(session_id='s', call_id='c', cwd=sys.argv[2]))\n"
    )
    home = work.history.store.folder.parent.parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, str(home), str(work.folder)], env=env, check=False)

    history = FileHistory(work.history.store.folder)
    [call] = history.calls(SESSION)

    assert done.returncode == -9
    assert (call.finished, [(Path(one.path).name, one.now) for one in call.files]) == (False, [("a", "new")])
    assert names(history.undo_calls(SESSION).refused) == ["a"]
    assert history.undo_calls(SESSION, force=True).refused == []
    assert work.path("a").read_text() == "before"


def test_a_long_first_scan_reports_its_progress(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for longer than a second is told why."""
    fill(work.folder, 5)
    monkeypatch.setattr(workspace, "PROGRESS_SECONDS", 0.0)
    said: list[str] = []

    Workspace(UndoStore(work.history.store.folder), str(work.folder)).scan(progress=said.append)

    assert said
    assert "for undo" in said[0]
