"""Calls of the file tools through the whole pipeline, in a folder of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime

CONFIG = "terminal: {login_shell: false}\n"


class EditCalls:
    """Calls tools of a runtime that works in `folder`."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self.runtime = runtime
        self.folder = folder

    def call(self, name: str, session: str = "", **arguments: Any) -> dict[str, Any]:
        """The answer of a tool, which is JSON."""
        ctx = self.runtime.context(session_id=session) if session else None
        answer: dict[str, Any] = json.loads(self.runtime.call_sync(name, arguments, ctx=ctx).text)
        return answer

    def write(self, path: str | Path, content: str, **options: Any) -> dict[str, Any]:
        return self.call("write_file", path=str(path), content=content, **options)

    def replace(self, path: str | Path, old: str, new: str, **options: Any) -> dict[str, Any]:
        return self.call("patch", mode="replace", path=str(path), old_string=old, new_string=new, **options)

    def patch(self, *lines: str, **options: Any) -> dict[str, Any]:
        """Apply a V4A patch of these lines."""
        text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
        return self.call("patch", mode="patch", patch=text, **options)

    def unified(self, text: str) -> dict[str, Any]:
        return self.call("patch", mode="patch", patch=text)

    def files(self) -> dict[str, bytes]:
        """Every file in the folder, by its relative path."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }


@contextmanager
def edit_calls(tmp_path: Path, config: str = CONFIG, **options: Any) -> Iterator[EditCalls]:
    folder = tmp_path / "work"
    folder.mkdir(exist_ok=True)
    made = {"registry": ToolRegistry(parent=default_registry), "workspace": folder, **options}
    with isolated_runtime(tmp_path / "edit-home", config, **made) as runtime:
        yield EditCalls(runtime, folder)
