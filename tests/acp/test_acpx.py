"""acpx, a client that others wrote in another language, with the real program in front of it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acp.editors import LIMIT_SECONDS, SOURCE, check_transcript, write_home
from toolcrib.sessions.store import SessionStore

pytestmark = pytest.mark.services
STATE_FILE = Path(__file__).parents[2] / ".services" / "env"
STEPS: list[dict[str, Any]] = [
    {"say": "Let me see.", "call": "todo", "arguments": {"todos": [{"id": "1", "content": "a", "status": "pending"}]}},
    {"call": "write_file", "arguments": {"path": "a.txt", "content": "one\n"}},
    {"call": "terminal", "arguments": {"command": "rm -rf build"}},
    {"say": "Done.", "usage": {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.01}},
]


@pytest.fixture
def acpx() -> list[str]:
    lines = STATE_FILE.read_text().splitlines() if STATE_FILE.exists() else []
    known = {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines) if value}
    if "TOOLCRIB_TEST_ACPX" not in known:
        pytest.skip("no acpx: run scripts/test-services up")
    return [known["TOOLCRIB_TEST_ACP_NODE"], known["TOOLCRIB_TEST_ACPX"]]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "build").mkdir(parents=True)
    return folder


async def run_acpx(acpx: list[str], folder: Path, *words: str) -> tuple[int | None, str]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "PATH": f"{Path(acpx[0]).parent}:{os.environ['PATH']}"}
    agent = shlex.join([sys.executable, "-m", "toolcrib", "acp"])
    process = await asyncio.create_subprocess_exec(
        *(*acpx, "--agent", agent, "--cwd", str(folder), *words),
        env=environ,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, said.decode()


async def test_a_whole_turn_follows_the_schema_in_both_directions(acpx: list[str], home: Path, work: Path) -> None:
    """Its transcript, message by message: files, permission, plan, usage and the end."""
    write_home(home, STEPS)
    code, said = await run_acpx(acpx, work, "--approve-all", "--format", "json", "--json-strict", "exec", "go")
    assert code == 0, said
    messages = [json.loads(line) for line in said.splitlines()]
    ours = ("session/update", "session/request_permission", "fs/read_text_file", "fs/write_text_file")
    asked: dict[Any, str] = {}
    for message in messages:
        # It prints both sides as they are; whose an answer is, follows from the latest request with its id.
        if "method" in message:
            message["direction"] = "outgoing" if message["method"] in ours else "incoming"
            asked[message.get("id")] = message["direction"]
        else:
            message["direction"] = "incoming" if asked[message["id"]] == "outgoing" else "outgoing"
    assert check_transcript(messages) > 12
    assert (work / "a.txt").read_text() == "one\n"
    assert not (work / "build").exists()


async def test_a_client_that_denies_everything_is_obeyed(acpx: list[str], home: Path, work: Path) -> None:
    write_home(home, STEPS)
    code, said = await run_acpx(acpx, work, "--deny-all", "exec", "go")
    # acpx has an exit code of its own for a turn in which it denied something.
    assert code in (0, 5), said
    assert "Done." in said
    assert not (work / "a.txt").exists()
    assert (work / "build").exists()
    (session,) = SessionStore(home / "sessions.db").list()
    assert session.message_count == 8
