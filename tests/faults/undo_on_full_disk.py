"""Changes files and undoes that where a disk has no room left; started in a mount namespace of its own.

python undo_on_full_disk.py ROOT record|scan|command|restore|undo
A disk of two megabytes is mounted at ROOT/store or ROOT/work. Prints what happened, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect
from toolcrib.testing import isolated_runtime
from toolcrib.undo.history import FileHistory, UndoResult

LARGE, SMALL = 1_200_000, 400_000
ROOM = 250_000
"""Enough for a record, not for a copy."""


def mount(folder: Path) -> None:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=True)


def fill_up(folder: Path) -> Path:
    """Take the room that is left, but for some; gives the file to remove for more of it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(b"f" * 4096):
            pass
    os.truncate(filler, filler.stat().st_size - ROOM)
    return filler


def call(
    home: Path, folder: Path, act: Callable[[], object], call_id: str = "c1", *, command: bool = False
) -> tuple[str, ...]:
    named = tuple(Effect("write", str(folder / name)) for name in ("large", "small"))
    effects = (Effect("exec", "make all", str(folder)),) if command else named
    with isolated_runtime(home, workspace=folder, yolo=True) as runtime:
        runtime.registry.register(
            name="act", toolset="test", schema={"description": "x"}, handler=lambda args, **_: str(act()),
            effects=effects,
        )  # fmt: skip
        runtime.load()
        result = runtime.call_sync("act", {}, runtime.context(session_id="s", call_id=call_id, cwd=str(folder)))
        assert not result.is_error, result.text
        return result.notices


def make_while_it_fills_up(folder: Path, full: Path) -> None:
    fill_up(full)
    (folder / "small").write_text("new")
    (folder / "made").write_text("M" * SMALL)


def change(folder: Path) -> None:
    (folder / "large").unlink()
    (folder / "small").write_text("new")


def told(done: UndoResult) -> dict[str, str]:
    return {Path(one.path).name: one.reason or one.what for one in done.files}


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text()[:3] for path in folder.iterdir() if path.name != "filler"}


def main() -> None:
    root, what = Path(sys.argv[1]), sys.argv[2]
    home, folder = root / "home", root / "work"
    full = folder if what == "restore" else home / "cache" / "undo"
    mount(full)
    folder.mkdir(exist_ok=True)
    (folder / "large").write_text("L" * LARGE)
    (folder / "small").write_text("S" * SMALL)
    report: dict[str, object] = {}
    filler = fill_up(full) if what in ("record", "scan") else full / "filler"
    if what == "command":
        # Room for what is there, until the command runs.
        (folder / "large").unlink()
    act = partial(make_while_it_fills_up, folder, full) if what == "command" else partial(change, folder)
    report["notices"] = call(home, folder, act, command=what in ("scan", "command"))
    history = FileHistory(full if what != "restore" else home / "cache" / "undo")
    if what in ("restore", "undo"):
        filler = fill_up(full)
        if what == "undo":
            # What stands in the way of the undo must be saved first, and does not fit.
            (folder / "large").write_text("M" * LARGE)
    try:
        report["first"] = told(history.undo_calls("s", force=True))
    except (ToolcribError, OSError) as error:
        report["first"] = str(error)
    report["between"] = contents(folder)
    report["notes"] = [note for one in history.calls("s") for note in one.notes]
    filler.unlink()
    if what == "undo":
        (folder / "large").unlink()
    if what == "record":
        call(home, folder, lambda: (folder / "small").write_text("newer"), "c2")
    report["second"] = told(history.undo_calls("s", force=True))
    report["end"] = contents(folder)
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
