"""Our server and its clients, for tests: on loopback in this process, or as the real program."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestFormParams, ElicitResult, ToolListChangedNotification

import toolcrib
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.http import RequestGuard, address_of, open_socket, serve_http
from toolcrib.runtime import Runtime

SOURCE = Path(toolcrib.__file__).parents[1]
TOKEN = "a-token-that-only-tests-know"
LEGACY, MODERN = "legacy", "auto"
ERAS = (LEGACY, MODERN)
LIMIT_SECONDS = 60.0
MakeServer = Callable[..., tuple[ToolServer, Runtime]]
AddTool = Callable[..., None]


@dataclass
class Person:
    """Fills in the forms that a client shows, always in the same way; keeps what it was asked."""

    answer: dict[str, Any] | None = None
    action: str = "accept"
    asked: list[ElicitRequestFormParams] = field(default_factory=list)
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    waits: bool = False
    """Never answers."""

    async def __call__(self, _: Any, params: Any) -> ElicitResult:
        self.asked.append(params)
        self.was_asked.set()
        if self.waits:
            await asyncio.Event().wait()
        return ElicitResult(action=self.action, content=self.answer)  # type: ignore[arg-type]


@dataclass
class Web:
    """A server on loopback."""

    url: str
    server: ToolServer | None = None
    token: str = TOKEN

    @asynccontextmanager
    async def client(self, mode: str = LEGACY, **options: Any) -> AsyncIterator[Client]:
        async with (
            self.http() as http,
            Client(streamable_http_client(self.url, http_client=http), **_by(mode, options)) as client,
        ):
            yield client

    def http(self, **headers: str) -> httpx2.AsyncClient:
        given = {"Authorization": f"Bearer {self.token}", **headers}
        return httpx2.AsyncClient(headers=given, timeout=LIMIT_SECONDS)


def _by(mode: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"mode": mode, "read_timeout_seconds": LIMIT_SECONDS, **options}


@asynccontextmanager
async def serving(server: ToolServer, token: str = TOKEN) -> AsyncIterator[Web]:
    """The server over HTTP, in this process; ended with the block."""
    listening, stop = open_socket("127.0.0.1", 0), asyncio.Event()
    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(serve_http, server, RequestGuard(token=token), listening, stop)
            try:
                yield Web(address_of(listening), server, token)
            finally:
                stop.set()


class Changes:
    """Hears that the list of tools has changed."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.heard.set()


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until something of another process holds, within the limit."""
    with anyio.move_on_after(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - another process tells nobody
            await anyio.sleep(0.02)
        return
    raise AssertionError(f"it never came to this: {what}")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def environ(home: Path, **more: str) -> dict[str, str]:
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**known, "TOOLCRIB_HOME": str(home), "PYTHONPATH": str(SOURCE), **more}


def program(home: Path, workspace: Path, *arguments: str) -> StdioServerParameters:
    """The real program over stdio."""
    command = ["-m", "toolcrib", "mcp", "serve", *arguments]
    return StdioServerParameters(command=sys.executable, args=command, env=environ(home), cwd=str(workspace))


@asynccontextmanager
async def started(
    home: Path, workspace: Path, *arguments: str, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The real program with pipes at its streams; ended with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolcrib", "mcp", "serve", *arguments),
        env=environ(home, **variables),
        cwd=workspace,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()
