"""Undo where commands run elsewhere: in a sandbox, in a container, over ssh."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.environments import engines
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime
from toolcrib.undo.history import FileHistory

pytestmark = pytest.mark.services

SESSION = "s"
FILL = (
    "cd $(mktemp -d -p $PWD undo-XXXXXX) && mkdir -p sub/empty && printf alpha > a.txt && printf x > sub/x && "
    "chmod 751 a.txt && ln -s a.txt link && pwd -P"
)
LOOK = "find . -printf '%P %y %m %l\\n' | sort; find . -type f | sort | xargs md5sum"


class EnvironmentSession:
    """A session whose commands run in a place, in a new folder there."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        undo = runtime.settings.home.undo_dir
        self.history = FileHistory(undo, runtime.settings.undo, terminal=lambda: runtime.terminal)
        self.folder = self.run(FILL)
        self._calls = 0

    def run(self, command: str, call_id: str = "") -> str:
        ctx = self.runtime.context(session_id=SESSION, call_id=call_id)
        answer: dict[str, Any] = json.loads(self.runtime.call_sync("terminal", {"command": command}, ctx).text)
        assert answer["exit_code"] == 0, answer
        return str(answer["output"])

    def call(self, tool: str, **args: str) -> None:
        ctx = self.runtime.context(session_id=SESSION, call_id=tool)
        result = self.runtime.call_sync(tool, args, ctx)
        assert not result.is_error, result.text


MakeThere = Callable[..., EnvironmentSession]


@pytest.fixture
def make_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeThere]:
    with ExitStack() as opened:

        def make(environment: str, home: str = "crib") -> EnvironmentSession:
            config = json.dumps(
                {"terminal": {"login_shell": False, **engines.terminal_settings(environment, monkeypatch)}}
            )
            folder = tmp_path / "work"
            folder.mkdir(exist_ok=True)
            registry = ToolRegistry(parent=default_registry)
            runtime = opened.enter_context(
                isolated_runtime(tmp_path / home, config, registry=registry, workspace=folder, yolo=True)
            )
            runtime.load()
            there = EnvironmentSession(runtime)
            opened.callback(there.run, f"cd / && rm -rf {there.folder}")
            return there

        yield make


@pytest.mark.parametrize("environment", ["sandbox", "docker", "ssh"])
@pytest.mark.parametrize(
    "command",
    [
        "rm -rf sub a.txt link",
        "mv a.txt sub/; echo new > b",
        "rm *.txt; mkdir -p n/m && cp sub/x n/m/y; printf 1 > link",
        "sed -i s/alpha/omega/ a.txt; chmod 600 a.txt; ln -sfn sub link",
        "printf 'rm -r sub; printf b > a.txt; mkdir new; printf c > new/c' > script; sh ./script; sh -c 'rm script'",
    ],
)
def test_commands_are_undone_there(make_there: MakeThere, environment: str, command: str) -> None:
    """Contents, modes, links and folders are what they were before the command."""
    there = make_there(environment)
    before = there.run(LOOK)

    there.run(command, "c1")
    changed = there.run(LOOK)
    undone = there.history.undo_calls(SESSION)

    assert changed != before
    assert undone.refused == []
    assert there.run(LOOK) == before
    assert there.history.redo(SESSION).refused == []
    assert there.run(LOOK) == changed


@pytest.mark.parametrize("environment", ["docker", "ssh"])
def test_a_file_that_a_tool_wrote_there_is_undone(make_there: MakeThere, environment: str) -> None:
    """The tools that edit files work in the environment, and so does undo."""
    there = make_there(environment)
    before = there.run(LOOK)

    there.call("write_file", path=f"{there.folder}/a.txt", content="written\n")
    written = there.run("cat a.txt")
    refused = there.history.undo_to(SESSION, "write_file").refused

    assert written == "written"
    assert refused == []
    assert there.run(LOOK) == before


def test_a_container_that_is_gone_is_named_as_the_reason(make_there: MakeThere) -> None:
    """What was done in a container cannot be undone when the container is gone; the reason is told."""
    there = make_there("docker")
    there.run("rm a.txt", "c1")

    undone = FileHistory(there.runtime.settings.home.undo_dir).undo_calls(SESSION)

    assert [one.what for one in undone.files] == ["refused"]
    assert "docker" in undone.files[0].reason


def test_a_host_is_reached_again_by_another_process(make_there: MakeThere) -> None:
    """What was done over ssh is undone by whoever comes later: the host is still there."""
    there = make_there("ssh")
    before = there.run(LOOK)
    there.run("rm a.txt", "c1")
    later = make_there("ssh", "another-home")
    history = FileHistory(
        there.runtime.settings.home.undo_dir, there.runtime.settings.undo, terminal=lambda: later.runtime.terminal
    )

    assert history.undo_calls(SESSION).refused == []
    assert there.run(LOOK) == before
