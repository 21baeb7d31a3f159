"""A process that changes several files in one call, or takes that back, and kills itself at the file operation N.

python undo_run.py HOME FOLDER call|command|remove|undo|redo N
A call names its files; around a command, which does the same, the folder is scanned.
Prints how many file operations there were when it comes to its end.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from toolcrib.core.types import Effect
from toolcrib.testing import isolated_runtime
from toolcrib.undo.history import FileHistory

FILES = ("changed", "made/new", "gone", "large")
LARGE = 300_000
COUNTED = tuple(
    "open os.scandir os.rename os.remove os.mkdir os.rmdir os.chmod os.utime os.truncate os.symlink".split()  # noqa: SIM905
)


class Killer:
    """Counts the operations on files, and ends the process before one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.counts = False
        sys.addaudithook(self.hear)

    def hear(self, event: str, _: object) -> None:
        if self.counts and event in COUNTED:
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def change(folder: Path) -> None:
    """Make every file new, each in one step."""
    (folder / "made").mkdir(exist_ok=True)
    for name in FILES:
        path = folder / name
        if name == "gone":
            path.unlink()
            continue
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(new_text(name))
        temporary.replace(path)


def remove(folder: Path) -> None:
    """Put a file in the place of a tree."""
    shutil.rmtree(folder / "tree")
    (folder / "tree").write_text("a file")


def new_text(name: str) -> str:
    return "n" * LARGE if name == "large" else f"new {name}"


def main() -> None:
    home, folder, what, at = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    killer = Killer(at)
    if what in ("undo", "redo"):
        history = FileHistory(home / "cache" / "undo")
        killer.counts = True
        history.undo_calls("s") if what == "undo" else history.redo("s")
    else:
        with isolated_runtime(home, workspace=folder, yolo=True) as runtime:
            gone = ("gone", "tree")
            names = ("tree",) if what == "remove" else FILES
            act = remove if what == "remove" else change
            effects = tuple(Effect("delete" if name in gone else "write", str(folder / name)) for name in names)
            if what == "command":
                effects = (Effect("exec", "make all", str(folder)),)
            runtime.registry.register(
                name="patch_all",
                toolset="test",
                schema={"description": "Changes files."},
                handler=lambda args, **_: str(act(folder)),
                effects=effects,
            )
            runtime.load()
            ctx = runtime.context(session_id="s", call_id="c1", cwd=str(folder))
            killer.counts = True
            runtime.call_sync("patch_all", {}, ctx)
    killer.counts = False
    sys.stdout.write(f"{killer.count}\n")


if __name__ == "__main__":
    main()
