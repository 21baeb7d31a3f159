"""An editor, or the agent behind it, is killed in the middle of a prompt: the next one shows everything up to there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acp.editors import LIMIT_SECONDS, SOURCE, TestEditor, is_running, started, write_home
from toolcrib.sessions.store import SessionStore

# Each of them starts several programs.
pytestmark = pytest.mark.services

EDITOR = """
import asyncio, json, os, sys
import acp
from acp.schema import ClientCapabilities

class Editor:
    def on_connect(self, conn): pass
    async def session_update(self, session_id, update, **_):
        print(json.dumps({"update": update.model_dump(mode="json")}), flush=True)
    async def request_permission(self, tool_call, **_):
        print(json.dumps({"asked": tool_call.title}), flush=True)
        await asyncio.Event().wait()
    async def create_terminal(self, session_id, command, args=None, cwd=None, **_):
        self.process = await asyncio.create_subprocess_exec(
            command, *args, cwd=cwd, stdout=asyncio.subprocess.DEVNULL)
        return acp.CreateTerminalResponse(terminal_id="t")
    async def terminal_output(self, **_):
        return acp.TerminalOutputResponse(output="before\\n", truncated=False)
    async def wait_for_terminal_exit(self, **_):
        return acp.WaitForTerminalExitResponse(exit_code=await self.process.wait())

async def main():
    command = (sys.executable, "-m", "toolcrib", "acp")
    async with acp.spawn_agent_process(Editor(), *command, env=dict(os.environ)) as (conn, process):
        await conn.initialize(protocol_version=1, client_capabilities=ClientCapabilities(terminal=True))
        session = await conn.new_session(cwd=sys.argv[1], mcp_servers=[])
        print(json.dumps({"session": session.session_id, "agent": process.pid}), flush=True)
        await conn.prompt(session_id=session.session_id, prompt=[acp.text_block("Do it")])

asyncio.run(main())
"""
COMMAND = "echo before; echo $$ > shell.pid; sleep 600"
WRITE: dict[str, Any] = {"say": "First.", "call": "write_file", "arguments": {"path": "a.txt", "content": "one\n"}}
IN_FRONT = [WRITE, {"say": "Now.", "call": "terminal", "arguments": {"command": COMMAND}}]
"""Killed while a command runs."""
BEHIND = [
    WRITE,
    {"call": "terminal", "arguments": {"command": COMMAND, "background": True}},
    {"say": "Now.", "call": "terminal", "arguments": {"command": "rm -rf build"}},
]
"""Killed while a command runs in the background, and the person is asked about another one."""


class Editing:
    """An editor in a process of its own, in the middle of a prompt."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.heard: list[dict[str, Any]] = []

    async def until(self, key: str) -> Any:
        assert self.process.stdout is not None
        while True:
            line = await self.process.stdout.readline()
            assert line, f"the editor ended before it said {key!r}: {self.heard}"
            self.heard.append(json.loads(line))
            if key in self.heard[-1]:
                return self.heard[-1][key]


@asynccontextmanager
async def editing(work: Path) -> AsyncIterator[Editing]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", EDITOR, str(work)),
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=asyncio.subprocess.PIPE,
        limit=10_000_000,
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            yield Editing(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "build").mkdir(parents=True)
    return folder


def pid_in(file: Path) -> int:
    text = file.read_text() if file.exists() else ""
    return int(text) if text.endswith("\n") else 0


async def until(is_so: Callable[[], Any]) -> None:
    """Wait for something that only the system knows."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def loaded(home: Path, work: Path, session_id: str) -> TestEditor:
    """A new editor that loads the session, and says something there."""
    write_home(home, [{"say": "Here again."}])
    async with started(TestEditor(), work) as (open, _):
        await open.conn.load_session(cwd=str(work), session_id=session_id, mcp_servers=[])
        shown = [*open.editor.updates]
        assert (await open.ask(session_id, "Go on")).stop_reason == "end_turn"
    open.editor.updates = shown
    return open.editor


def check_replay(editor: TestEditor, steps: list[dict[str, Any]]) -> None:
    said = "".join(one.content.text for one in editor.of("user_message_chunk"))
    assert (said, editor.text) == ("Do it", "First.Now.")
    calls = [(one.title, one.status) for one in editor.of("tool_call")]
    assert calls[0] == ("Write a.txt", "completed")
    assert len(calls) == len(steps)
    title, status = calls[-1]
    # An agent that ends in order still gets what its command printed.
    result = editor.of("tool_call")[-1].content[0].content.text
    assert title == steps[-1]["arguments"]["command"]
    assert status == "failed" or "before\n[Command interrupted]" in result


@pytest.mark.parametrize("terminal", ["own", "editor"])
@pytest.mark.parametrize("steps", [IN_FRONT, BEHIND], ids=["command", "question"])
async def test_a_killed_editor_loses_nothing_and_leaves_nothing(
    home: Path, work: Path, steps: list[dict[str, Any]], terminal: str
) -> None:
    """The agent ends with its editor, and so does its command; another editor loads all that was said and done."""
    write_home(home, [*steps, {"say": "Never said."}], f"acp: {{terminal: {terminal}}}\n")
    async with editing(work) as editor:
        session_id, agent = await editor.until("session"), editor.heard[-1]["agent"]
        if steps is BEHIND:
            assert await editor.until("asked") == "rm -rf build"
        await until(lambda: pid_in(work / "shell.pid"))
        shell = pid_in(work / "shell.pid")
        assert is_running(agent)
        editor.process.kill()
        await editor.process.wait()
        await until(lambda: not is_running(agent))
        if steps is IN_FRONT and terminal == "editor":
            # What runs in a terminal of the editor is the editor's.
            os.kill(shell, signal.SIGKILL)
        await until(lambda: not is_running(shell))
    assert (work / "build").exists()
    check_replay(await loaded(home, work, session_id), steps)
    stored = [one.message.role for one in SessionStore(home / "sessions.db").messages(session_id)]
    assert stored == ["user", *["assistant", "tool"] * len(steps), "user", "assistant"]


@pytest.mark.parametrize("steps", [IN_FRONT, BEHIND], ids=["command", "question"])
async def test_a_killed_agent_loses_nothing_and_the_next_one_ends_what_it_left(
    home: Path, work: Path, steps: list[dict[str, Any]]
) -> None:
    """After `kill -9` of the agent, the next one shows the call as failed, and ends the command that still runs."""
    write_home(home, [*steps, {"say": "Never said."}])
    async with editing(work) as editor:
        session_id, agent = await editor.until("session"), editor.heard[-1]["agent"]
        if steps is BEHIND:
            assert await editor.until("asked") == "rm -rf build"
        await until(lambda: pid_in(work / "shell.pid"))
        os.kill(agent, signal.SIGKILL)
        await until(lambda: not is_running(agent))
    check_replay(await loaded(home, work, session_id), steps)
    await until(lambda: not is_running(pid_in(work / "shell.pid")))
    assert (work / "build").exists()
