"""Commands are undone: what they delete, overwrite, move or make is kept before they run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.undo.undo_work import SESSION, Work


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


@pytest.mark.quick_rows(6)
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
