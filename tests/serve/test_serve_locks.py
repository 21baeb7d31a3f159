"""Another process that holds the lock of a database delays what it must, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.serve.agent_serving import LIMIT_SECONDS, RunningServer, events_of, serving
from toolcrib.core.messages import Message
from toolcrib.core.models import Emit, ModelRequest, ModelResponse, TextDelta
from toolcrib.providers.scripted import ScriptedProvider

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""
HOLD_FILE = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


class DictatedModel(ScriptedProvider):
    """Says what the test puts into the queue of a question, until it is an empty text."""

    def __init__(self, *questions: str) -> None:
        super().__init__()
        self.words: dict[str, asyncio.Queue[str]] = {one: asyncio.Queue() for one in questions}

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        said = []
        while word := await self.words[request.messages[-1].text].get():
            said.append(word)
            emit(TextDelta(word))
        return ModelResponse(message=Message(role="assistant", content="".join(said)), stop="end")


@asynccontextmanager
async def held(path: Path, program: str = HOLD) -> AsyncIterator[None]:
    """While another process holds the lock of a file."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path), stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    try:
        yield
    finally:
        process.stdin.write(b"\n")
        await process.wait()


async def started(served: RunningServer, text: str) -> tuple[str, str]:
    async with served.http() as http:
        run = (await http.post("/api/runs", json={"text": text})).json()
    return run["id"], run["session_id"]


@pytest.mark.parametrize("database", ["sessions.db", "serve/runs.db"])
async def test_a_locked_database_delays_nobody_who_does_not_write_to_it(home: Path, database: str) -> None:
    """While one run waits to store its answer, the server answers and another run streams; then all is stored."""
    model = DictatedModel("one", "two")
    async with asyncio.timeout(LIMIT_SECONDS), serving(home, model=model) as served, served.http() as http:
        first, session = await started(served, "one")
        second, _ = await started(served, "two")
        async with (
            http.stream("GET", f"/api/runs/{second}/events") as other,
            http.stream("GET", f"/api/runs/{first}/events") as waiting,
        ):
            heard = events_of(other)
            model.words["two"].put_nowait("here ")
            async for _, event in heard:
                if event["event"] == "text_streamed":
                    break
            async with held(home / database):
                for word in ("done", ""):
                    model.words["one"].put_nowait(word)
                assert (await http.get("/health")).status_code == 200
                for word in ("and ", "still ", "here"):
                    model.words["two"].put_nowait(word)
                    async for _, event in heard:
                        if event["event"] == "text_streamed":
                            assert event["text"] == word
                            break
                assert (await http.get(f"/api/sessions/{session}")).status_code == 200
            model.words["two"].put_nowait("")
            events = [event async for _, event in events_of(waiting)]
        stored = (await http.get(f"/api/sessions/{session}/messages")).json()["messages"]

    kinds = [event["event"] for event in events]
    assert kinds.index("message_added") < kinds.index("turn_started") < kinds.index("run_ended")
    assert [one["content"] for one in stored] == ["one", "done"]


async def test_a_locked_login_file_delays_only_logins(home: Path) -> None:
    """Another process that holds the lock of the logins does not hold up the server."""
    async with asyncio.timeout(LIMIT_SECONDS), serving(home) as served, served.http() as http:
        code = await asyncio.to_thread(served.server.logins.create_code)
        lock = next(iter((home / "serve").glob("*logins*lock*")))
        async with held(lock, HOLD_FILE):
            login = asyncio.ensure_future(http.post("/login", json={"code": code}, headers={"Origin": served.url}))
            assert (await http.get("/health")).status_code == 200
            assert not login.done()
        assert (await login).status_code == 200
