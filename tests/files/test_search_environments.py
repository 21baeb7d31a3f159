"""`search_files` where commands run elsewhere: in a sandbox, in a container without ripgrep, over ssh."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.environments import engines
from toolcrib.files.search import search_files
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover, isolated_runtime

pytestmark = pytest.mark.services

FILES = {
    ".gitignore": b"*.log\nbuild/\n!keep.log\n",
    "a.log": b"hit\n",
    "keep.log": b"hit\n",
    "build/x": b"hit\n",
    "sub/.ignore": b"quiet\n",
    "sub/quiet": b"hit\n",
    "sub/ü ä.txt": b"one\r\nhit two\r\nthree\r\n",
    "sub/-dash": b"hit\n",
    "binary": b"hit\n\0",
    "utf16": b"\xff\xfe" + "hit ü\n".encode("utf-16-le"),
    "many": b"hit\n" * 120,
    "large": b"x" * 3_000_000 + b" hit\n",
    ".env": b"hit\n",
}


@dataclass(frozen=True)
class EnvironmentFolder:
    """A folder in a place, filled with the files above."""

    runtime: Runtime
    folder: str

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(str(self.runtime.call_sync(tool, arguments).content))
        return answer

    def run(self, command: str) -> str:
        answer = self.call("terminal", command=command)
        assert answer["exit_code"] == 0, answer
        return str(answer["output"])

    async def search(self, pattern: str, **arguments: Any) -> dict[str, Any]:
        """What our own search finds, also where there is ripgrep."""
        ctx = self.runtime.context()
        found: dict[str, Any] = json.loads(await search_files({"pattern": pattern, **arguments}, ctx, engine="fetch"))
        return found


@pytest.fixture(params=["sandbox", "docker", "ssh"])
def elsewhere(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EnvironmentFolder]:
    config = json.dumps({"terminal": {"login_shell": False, **engines.terminal_settings(request.param, monkeypatch)}})
    workspace = tmp_path / "work"
    workspace.mkdir()
    approver = ScriptedApprover(*["once"] * 20)
    options: dict[str, Any] = {
        "registry": ToolRegistry(parent=default_registry),
        "workspace": workspace,
        "approver": approver,
    }
    with isolated_runtime(tmp_path / "place", config, **options) as runtime:
        made = EnvironmentFolder(runtime, "")
        folder = made.run("cd $(mktemp -d -p $PWD search-XXXXXX) && pwd -P")
        made.run(f"base64 -d <<'E' | tar xzf -\n{packed()}\nE\nmkfifo pipe; ln -s many link")
        yield EnvironmentFolder(runtime, folder)
        made.run(f"cd / && rm -rf {folder}")


def packed() -> str:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return base64.encodebytes(content.getvalue()).decode()


def without_engine(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "searched_with"}


async def test_the_tool_finds_files_where_commands_run(elsewhere: EnvironmentFolder) -> None:
    """Ignore files, encodings, odd names, binary files and pipes are treated as on this machine."""
    found = await elsewhere.runtime.call("search_files", {"pattern": "hit", "output_mode": "count"})
    answer = json.loads(str(found.content))

    counts = {name: count for name, count in answer["counts"].items() if name != ".env"}
    assert counts == {
        "keep.log": 1,
        "large": 1,
        "many": 120,
        "sub/-dash": 1,
        "sub/ü ä.txt": 1,
        "utf16": 1,
    }, answer


async def test_fetched_files_give_the_same_answers_as_the_tool(elsewhere: EnvironmentFolder) -> None:
    """Whatever a place has to search with, pages, context and names are the same."""
    for arguments in (
        {"pattern": "hit", "limit": 70, "offset": 60},
        {"pattern": "two$", "context": 1},
        {"pattern": "hit", "path": "sub", "output_mode": "files_only"},
        {"pattern": "hit", "path": "many", "limit": 1},
        {"pattern": "*.txt", "target": "files"},
        {"pattern": "hit", "path": "binary"},
    ):
        by_tool = json.loads(str((await elsewhere.runtime.call("search_files", arguments)).content))
        fetched = await elsewhere.search(**arguments)

        assert fetched["searched_with"] == "python"
        assert without_engine(by_tool) == without_engine(fetched), arguments


async def test_files_that_are_too_large_to_fetch_are_told(elsewhere: EnvironmentFolder) -> None:
    """A file of many megabytes is left out, and that is said."""
    elsewhere.run("yes hit | head -c 9000000 > huge")

    answer = await elsewhere.search("hit", output_mode="files_only")

    assert "huge" not in answer["files"]
    assert answer["notes"] == ["1 files were too large to search"]
