"""A working folder whose files are changed by the calls of one session, through the whole pipeline."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime
from toolcrib.undo.history import FileHistory

SCHEMA = {
    "description": "A tool for tests",
    "parameters": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("path", "to", "text", "mode")},
    },
}
SESSION = "s"


def write(path: str, args: dict[str, Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(args["text"])


def delete(path: str, args: dict[str, Any]) -> None:
    if Path(path).is_dir() and not Path(path).is_symlink():
        shutil.rmtree(path)
    else:
        Path(path).unlink()


def move(path: str, args: dict[str, Any]) -> None:
    Path(path).rename(Path(path).parent / args["to"])


def chmod(path: str, args: dict[str, Any]) -> None:
    Path(path).chmod(int(args["mode"], 8))


def link(path: str, args: dict[str, Any]) -> None:
    Path(path).unlink(missing_ok=True)
    Path(path).symlink_to(args["to"])


TOOLS: dict[str, tuple[Callable[[str, dict[str, Any]], None], tuple[tuple[str, str], ...]]] = {
    "write": (write, (("write", "path"),)),
    "delete": (delete, (("delete", "path"),)),
    "move": (move, (("delete", "path"), ("delete", "to"))),
    "chmod": (chmod, (("write", "path"),)),
    "link": (link, (("write", "path"),)),
}


class Work:
    """The folder, the runtime that works in it, and what undo knows."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self.runtime = runtime
        self.folder = folder
        self.history = FileHistory(runtime.settings.home.undo_dir, runtime.settings.undo)
        self._calls = 0
        for name in TOOLS:
            self._add(name)

    def _add(self, name: str) -> None:
        act, declared = TOOLS[name]

        def effects(args: dict[str, Any], ctx: ToolContext) -> tuple[Effect, ...]:
            return tuple(Effect(kind, str(self.folder / args[key])) for kind, key in declared)  # type: ignore[arg-type]

        def handler(args: dict[str, Any], **_: Any) -> str:
            act(str(self.folder / args["path"]), args)
            return "{}"

        self.runtime.registry.register(name=name, toolset="test", schema=SCHEMA, handler=handler, effects=effects)

    def path(self, name: str) -> Path:
        return self.folder / name

    def context(self, turn: str = "t1", session: str = SESSION) -> ToolContext:
        self._calls += 1
        call_id = f"c{self._calls}"
        return self.runtime.context(session_id=session, turn_id=turn, call_id=call_id, cwd=str(self.folder))

    def call(self, name: str, turn: str = "t1", **args: str) -> str:
        """Call a tool; gives the id of the call."""
        ctx = self.context(turn)
        result = self.runtime.call_sync(name, args, ctx)
        assert not result.is_error, result.text
        return ctx.call_id

    def write(self, name: str, text: str, turn: str = "t1") -> str:
        return self.call("write", turn, path=name, text=text)

    def delete(self, name: str, turn: str = "t1") -> str:
        return self.call("delete", turn, path=name)

    def run(self, command: str, turn: str = "t1") -> dict[str, Any]:
        """Run a command with the terminal tool."""
        ctx = self.context(turn)
        result = self.runtime.call_sync("terminal", {"command": command}, ctx)
        answer: dict[str, Any] = json.loads(result.text)
        assert answer.get("exit_code") is not None, answer
        return answer

    def changed(self) -> list[tuple[str, str]]:
        return [(str(Path(one.path).relative_to(self.folder)), one.kind) for one in self.history.changed(SESSION)]

    def undo(self, turn: str | None = None) -> list[tuple[str, str]]:
        done = self.history.undo_turn(SESSION, turn).files
        return [(str(Path(one.path).relative_to(self.folder)), one.what) for one in done]

    def tree(self) -> dict[str, tuple[Any, ...]]:
        """Everything in the folder: kind, mode, and content or what a link says."""
        return tree_of(self.folder)

    def notes(self) -> list[str]:
        return [note for one in self.history.calls(SESSION) for note in one.notes]


def tree_of(folder: Path) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(root, name)
            about = path.lstat()
            if path.is_symlink():
                found[str(path.relative_to(folder))] = ("link", str(path.readlink()))
            elif path.is_dir():
                found[str(path.relative_to(folder))] = ("folder", about.st_mode & 0o7777)
            elif path.is_file():
                found[str(path.relative_to(folder))] = ("file", about.st_mode & 0o7777, path.read_bytes())
            else:
                found[str(path.relative_to(folder))] = ("special",)
    return found


@contextmanager
def working_in(root: Path, config: str = "", **options: Any) -> Iterator[Work]:
    """A Work in a new folder below `root`, with the terminal tool; nobody is asked."""
    folder = root / "work"
    folder.mkdir(parents=True)
    registry = ToolRegistry(parent=default_registry)
    with isolated_runtime(root / "crib", config, registry=registry, workspace=folder, yolo=True, **options) as runtime:
        runtime.load()
        yield Work(runtime, folder)
