"""Commands are undone: what they delete, overwrite, move or make is kept before they run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.undo.undo_work import SESSION, Work
from toolcrib.approval.command_reader import read_command
from toolcrib.undo.commands import may_change_files, targets_of_command
from toolcrib.undo.file_snapshot import UndoScope
from toolcrib.undo.files import LocalFiles


def fill(folder: Path) -> None:
    """Files of all kinds: text, bytes, modes, links, nested and empty folders, odd names."""
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "empty").chmod(0o750)
    (folder / "dst").mkdir()
    for name, text in {
        "a.txt": "alpha\n",
        "b.txt": "beta\n",
        "c.log": "log\n",
        "run.sh": "echo run\n",
        "with blank": "blank\n",
        "-dash": "dash\n",
        "sub/x.txt": "x\n",
        "sub/deep/y.txt": "y\n",
        "dst/a.txt": "old a\n",
        ".hidden": "h\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "bytes").write_bytes(bytes(range(256)))
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("a.txt")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "folder-link").symlink_to("sub")


COMMANDS = [
    "rm a.txt",
    "rm -f a.txt b.txt missing",
    "rm -rf sub",
    "rm -r sub/deep && rmdir empty",
    "rm -- -dash",
    "rm *.txt",
    "rm -rf *",
    "rm -rf ./* .hidden",
    "rm 'with blank'",
    "r''m a.txt",
    r"\rm a.txt",
    "command rm a.txt",
    "f() { rm -f \"$1\"; }; f a.txt",
    "X=a.txt; rm $X",
    "rm ${PWD}/a.txt",
    "cd sub && rm x.txt",
    "(cd sub; rm x.txt); rm a.txt",
    "unlink a.txt",
    "rm link",
    "rm -rf folder-link",
    "rm -rf folder-link/",
    "rm folder-link/x.txt",
    "mv a.txt z.txt",
    "mv a.txt b.txt",
    "mv a.txt dst",
    "mv -t dst a.txt b.txt",
    "mv sub renamed",
    "mv sub dst/",
    "mv link other",
    "mv a.txt link",
    "mv a.txt b.txt; mv b.txt q.txt",
    "mkdir new && mv a.txt new/",
    "mv *.txt empty/",
    "cp a.txt b.txt",
    "cp a.txt link2; cp b.txt link",
    "cp -r sub dst",
    "cp -r sub/. dst/",
    "cp -a sub copy",
    "cp --target-directory=dst a.txt",
    "install -m 600 a.txt b.txt",
    "install -D a.txt new/deep/a.txt",
    "install -d one/two",
    "ln -sf b.txt link",
    "ln -f a.txt b.txt",
    "ln -s a.txt fresh",
    "dd if=/dev/zero of=a.txt bs=1 count=3 2>/dev/null",
    "dd if=/dev/zero of=a.txt bs=1 count=3 conv=notrunc status=none",
    "sed -i s/alpha/omega/ a.txt",
    "sed -i.bak -e s/a/b/ a.txt b.txt",
    "sed -Ei 's/(a)/b/' *.txt",
    "sed -i s/x/z/ sub/*.txt sub/deep/y.txt",
    "perl -pi -e s/alpha/omega/ a.txt",
    "perl -i.orig -pe s/alpha/omega/ a.txt",
    "truncate -s 0 a.txt",
    "truncate --size=100 bytes",
    "echo new > a.txt",
    "echo new >| a.txt",
    "echo more >> a.txt",
    "ls missing &> a.txt",
    "ls missing 2> err.txt",
    "echo x > new/none || true",
    "{ echo 1; echo 2; } > a.txt",
    "for i in 1 2; do echo $i; done > b.txt",
    "> a.txt",
    ": > a.txt; echo y > sub/new.txt",
    "cat > a.txt <<'EOF'\nhello\nEOF",
    "echo t | tee a.txt b.txt > /dev/null",
    "echo t | tee -a a.txt",
    "shred -u a.txt",
    "touch fresh a.txt",
    "mkdir -p one/two/three",
    "chmod 600 a.txt; chmod u+x b.txt",
    "chmod -R go-rwx sub",
    "find . -name '*.txt' -delete",
    "find sub -type f -exec rm {} +",
    "find . -name '*.txt' -exec sed -i s/a/b/ {} ';'",
    "find . -name '*.log' -print0 | xargs -0 rm",
    "find sub -name '*.txt' | xargs rm -f",
    "ls *.log | xargs rm",
    "echo a.txt b.txt | xargs rm",
    "for f in *.txt; do mv \"$f\" \"$f.bak\"; done",
    "for f in $(find sub -name '*.txt'); do echo changed > $f; done",
    "rm $(echo a.txt)",
    "bash -c 'rm a.txt; echo x > b.txt'",
    "sh <<'EOF'\nrm a.txt\nEOF",
    "eval 'rm a.txt'",
    "env A=1 rm a.txt",
    "nohup rm a.txt",
    "timeout 5 rm a.txt",
    "test -e a.txt && rm a.txt || echo none",
    "if [ -f a.txt ]; then rm a.txt; else rm b.txt; fi",
    "gzip a.txt",
    "gzip -k b.txt && gunzip -f b.txt.gz",
    "patch -p1 < p.diff",
    "patch a.txt < p.diff",
    "python3 -c \"open('a.txt','w').write('python')\"",
    "python3 -c \"import os; os.remove('a.txt'); os.rename('b.txt', 'r.txt')\"",
    "python3 -c \"import shutil; shutil.rmtree('sub')\"",
    "python3 -c \"from pathlib import Path; Path('a.txt').write_text('p'); Path('sub/x.txt').unlink()\"",
    "python3 -c \"[open(f,'w').close() for f in ('a.txt','b.txt')]\"",
    "python3 - <<'EOF'\nfor name in ['a.txt', 'sub/x.txt']:\n    open(name, 'a').write('more')\nEOF",
    "printf 'rm a.txt\\n' > script.sh && bash script.sh",
    "bash ./run2.sh",
    "./run2.sh",
    "sort -o a.txt a.txt b.txt",
    "awk -i inplace '{print}' missing 2>/dev/null; true",
    "tar cf a.tar sub && tar xf a.tar -C dst",
    "cp a.txt b.txt & wait",
    "exec 3> a.txt; echo three >&3",
    "rm -rf sub dst empty && mkdir sub && echo z > sub/x.txt",
    "rm -rf sub; ln -s dst sub",
    "rm a.txt; mkdir a.txt; touch a.txt/in",
    "mv sub s1; mv dst sub; mv s1 dst",
    "grep -rl alpha . | xargs sed -i s/alpha/omega/",
    "sed -i s/alpha/omega/ $(grep -rl alpha .)",
    "find . -type f -name '*.txt' | while read f; do rm \"$f\"; done",
    "find . -name '*.txt' -print0 | while IFS= read -r -d '' f; do mv \"$f\" \"$f.old\"; done",
    "printf 'a.txt\\nb.txt\\n' | while read f; do : > $f; done",
    "shopt -s extglob\nrm !(a).txt",
    "mv -b a.txt b.txt; cp --backup=numbered c.log b.txt",
    "tar czf t.tgz sub --remove-files",
    "fallocate -l 100 a.txt",
    "perl -e 'unlink \"a.txt\"'",
    "awk '{print > \"made\"}' a.txt",
]  # fmt: skip
DIFF = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-alpha\n+patched\n"


ORDERED = [
    "f=a.txt; rm $f; f=b.txt; rm $f",
    "cd sub && rm x.txt; cd ..; rm a.txt",
    "(cd sub; rm x.txt); rm x.txt",
    "sudo -n env A=1 sh -c 'rm a.txt'",
    'f() { rm "$1"; }; f a.txt; f b.txt',
    "echo x > a.txt 2> b.txt",
    "patch < p.diff; rm b.txt",
    "rm a.txt & rm b.txt; wait",
    "pushd sub; rm x.txt; popd; rm a.txt",
    "cat <<< text > a.txt",
    "f() { rm a.txt; }",
]
"""What they change depends on the state of the shell before each command."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_undone_byte_for_byte(work: Work, command: str) -> None:
    """After an undo everything in the folder is what it was: contents, modes, links, empty folders."""
    fill(work.folder)
    (work.folder / "p.diff").write_text(DIFF)
    (work.folder / "run2.sh").write_text("#!/bin/bash\nrm a.txt\necho z > b.txt\n")
    (work.folder / "run2.sh").chmod(0o755)
    before = work.tree()

    work.run(command)
    changed = work.tree() != before
    undone = work.history.undo_calls(SESSION)

    assert undone.refused == []
    assert work.tree() == before
    assert changed or not undone.files


def scope_of(folder: Path) -> UndoScope:
    return UndoScope(files=LocalFiles(), workspace=str(folder))


@pytest.mark.parametrize("command", [*COMMANDS, *ORDERED])
def test_what_the_gate_read_tells_the_same_files_as_a_new_evaluation(work: Work, command: str) -> None:
    """Undo takes its targets from the gate's reading where it can, and finds the same files either way."""
    fill(work.folder)
    (work.folder / "p.diff").write_text(DIFF)
    (work.folder / "run2.sh").write_text("#!/bin/bash\nrm a.txt\necho z > b.txt\n")
    cwd, scope = str(work.folder), scope_of(work.folder)
    reading = read_command(command, cwd=cwd, home=str(Path.home()))

    found = targets_of_command(command, cwd=cwd, scope=scope, is_here=True, reading=reading)

    assert found == targets_of_command(command, cwd=cwd, scope=scope, is_here=True)


@pytest.mark.parametrize("command", ["chmod 777 a.txt && ls -l | head -n 3", "cd sub; echo x > x.txt", *ORDERED])
def test_a_command_that_the_gate_read_is_not_evaluated_again(work: Work, command: str) -> None:
    """The gate's reading alone tells which files change, unless that depends on which files exist."""
    fill(work.folder)
    cwd, scope = str(work.folder), scope_of(work.folder)
    reading = read_command(command, cwd=cwd, home=str(Path.home()))

    found = targets_of_command("true", cwd=cwd, scope=scope, is_here=True, reading=replace(reading, script=None))

    assert found.targets
    assert found == targets_of_command(command, cwd=cwd, scope=scope, is_here=True)


@pytest.mark.parametrize("difference", ["cwd", "home"])
def test_a_reading_for_another_folder_is_not_used(work: Work, difference: str) -> None:
    """Paths from a reading count only if it started in the folder and with the home that undo works with."""
    fill(work.folder)
    command = "rm a.txt ~/notes"
    where = {"cwd": str(work.folder), "home": str(Path.home()), difference: "/elsewhere"}
    reading = read_command(command, **where)

    found = targets_of_command(
        command, cwd=str(work.folder), scope=scope_of(work.folder), is_here=True, reading=reading
    )

    assert [one.path for one in found.targets] == [str(work.folder / "a.txt"), str(Path.home() / "notes")]


def targets(folder: Path, command: str) -> dict[str, str]:
    """What the reading of a command says it touches, by the name inside the folder; nothing is run."""
    found = targets_of_command(
        command, cwd=str(folder), scope=UndoScope(files=LocalFiles(), workspace=str(folder)), is_here=True
    )
    inside = [one for one in found.targets if one.path.startswith(f"{folder}/") or one.path == str(folder)]
    widest_last = sorted(inside, key=lambda one: one.how == "tree")
    return {one.path[len(str(folder)) + 1 :]: one.how for one in widest_last}


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("sudo rm -rf sub", {"sub": "tree"}),
        ("rsync -a --delete sub/ dst", {"dst": "tree", "dst/x.txt": "path", "dst/deep/y.txt": "path"}),
        ("rsync -an sub/ dst/", {}),
        ("shred -n 1 a.txt", {"a.txt": "tree"}),
        ("dd if=/dev/zero of=bytes", {"bytes": "path"}),
        ("curl -o a.txt http://127.0.0.1/x", {"a.txt": "path"}),
        ("curl -O http://127.0.0.1/dir/b.txt", {"b.txt": "path"}),
        ("wget http://127.0.0.1/c.log", {"c.log": "path"}),
        ("find . -mindepth 1 -delete", {"a.txt": "path", "sub/deep/y.txt": "path", "empty": "path"}),
        ("xargs rm < a.txt", {"": "guess"}),
        ('rm "$UNKNOWN_VARIABLE"/x', {"": "guess"}),
        ("rm sub/$(date).txt", {"sub": "guess"}),
        ('while read f; do rm "$f"; done < a.txt', {"": "guess"}),
        ("ssh host rm -rf a.txt", {}),
        ("docker run image rm -rf a.txt", {}),
        ("vim a.txt", {"a.txt": "path"}),
        ("chmod -R 600 sub", {"sub": "modes"}),
        ("tar xf some.tar", {"": "guess"}),
        ("ls > /dev/null 2>&1", {}),
        ("rm /etc/hostname ../outside", {}),
    ],
)
def test_what_a_command_touches_is_read_from_its_words(tmp_path: Path, command: str, names: dict[str, str]) -> None:
    """Wrapped, remote and unknown commands: what is known is named, what is not is guessed or left out."""
    fill(tmp_path)

    found = targets(tmp_path, command)

    assert {name: found.get(name) for name in names} == names
    assert names or not found


@pytest.mark.parametrize(
    "command",
    ["xargs rm < a.txt", "rm $(cat list)", "tar xf some.tar", "python3 -c 'import sys; open(sys.argv[1], \"w\")'"],
)
def test_what_cannot_be_known_is_noted(work: Work, command: str) -> None:
    """The journal says that part of the call was not saved."""
    work.path("a.txt").write_text("nothing-there\n")

    work.run(f"{command}; true")

    assert any(note.startswith("not saved:") for note in work.notes())


@pytest.mark.parametrize("command", ["ls -la", "git status", "echo hello", "make test", "cargo build --release"])
def test_harmless_commands_leave_no_trace(work: Work, command: str) -> None:
    """A command that changes no file is not written down."""
    work.run(f"{command}")

    assert not work.history.store.folder.exists()


@pytest.mark.parametrize(
    ("command", "answer"),
    [("ls -la src", False), ("npm run build", False), ("rm a", True), ("echo a > b", True), (r"r\m a", True)],
)
def test_a_quick_look_says_whether_a_command_is_read(command: str, answer: bool) -> None:
    """Plain commands that change nothing are not read at all; whatever might hide something is."""
    assert may_change_files(command) is answer


def test_a_command_in_another_folder_of_the_workspace_is_kept(work: Work) -> None:
    """The folder that an earlier command changed to counts for relative paths."""
    work.path("sub").mkdir()
    work.path("sub/a").write_text("a")
    work.run("cd sub")

    work.run("rm a")
    work.history.undo_calls(SESSION)

    assert work.path("sub/a").read_text() == "a"


@pytest.mark.parametrize("arguments", [{"command": "{line}", "background": True}, {"command": "({line}) & true"}])
def test_a_command_that_goes_on_in_the_background_is_shown_and_undone_by_force(
    work: Work, arguments: dict[str, Any]
) -> None:
    """What it does after its call is seen at the file itself; whose doing that is, nobody knows."""
    work.path("a").write_text("a")
    line = f"while [ ! -e {work.folder}/go ]; do sleep 0.02; done; cd {work.folder} && rm a && touch done"
    given = {**arguments, "command": arguments["command"].format(line=line)}

    try:
        work.runtime.call_sync("terminal", given, work.context())
    finally:
        work.path("go").touch()
    wait_until(work.path("done").exists)
    [call] = work.history.calls(SESSION)
    refused = [Path(one.path).name for one in work.history.undo_calls(SESSION).refused]
    work.history.undo_calls(SESSION, force=True)

    assert (call.runs_on, call.finished) == (True, False)
    assert "a" in refused
    assert work.path("a").read_text() == "a"


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)
