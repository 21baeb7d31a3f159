"""Clients and folders of odd kinds at `toolcrib mcp serve`: they cost themselves something, and nobody else."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.mcp_serve.mcp_serving import (
    ERAS,
    LIMIT_SECONDS,
    TOKEN,
    AddTool,
    MakeServer,
    eventually,
    is_running,
    serving,
    started,
)
from toolcrib.mcp.server.http import RequestGuard, open_socket, serve_http

BOTH = pytest.mark.parametrize("era", ERAS)
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def lines(*messages: dict[str, Any]) -> bytes:
    return "".join(json.dumps(message) + "\n" for message in messages).encode()


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    folder.mkdir()
    return folder


@BOTH
async def test_half_characters_in_progress_do_not_end_the_server(
    make_server: MakeServer, add_tool: AddTool, era: str
) -> None:
    """What a tool reports about its progress is made sendable, and cut, as its result is."""
    server, runtime = make_server()

    def work(args: Any, *, ctx: Any, **_: Any) -> str:
        ctx.progress("odd \ud800 name")
        ctx.progress("x" * 1_000_000)
        return "done"

    add_tool(runtime, "work", work)
    seen: list[str | None] = []

    async def watch(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with serving(server) as web, web.client(era) as client:
        result = await client.call_tool("work", {}, progress_callback=watch)

    assert not result.is_error
    assert seen[0] == "odd ? name"
    assert len(seen[1] or "") < 10_000


async def test_who_brings_no_request_does_not_keep_others_out(make_server: MakeServer) -> None:
    """A connection that says nothing, or never comes to the end of a request, is closed after a while."""
    server, _ = make_server()
    listening, stop = open_socket("127.0.0.1", 0), asyncio.Event()
    host, port = listening.getsockname()[:2]
    begun = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
    refused = begun + b"Content-Length: 1000000\r\n\r\n"

    with anyio.fail_after(LIMIT_SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(serve_http, server, RequestGuard(token=TOKEN), listening, stop, 0.3)
            for head in (b"", begun, refused):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(head)
                dripping = asyncio.ensure_future(_drip(writer)) if head else None
                said = await reader.read()
                assert said.startswith(b"HTTP/1.1 401") if head == refused else said == b""
                if dripping is not None:
                    dripping.cancel()
                writer.close()
            stop.set()


async def _drip(writer: asyncio.StreamWriter) -> None:
    """Send a little now and then, as if more were to come."""
    while not writer.is_closing():
        await asyncio.sleep(0.05)
        writer.write(b"x")


@pytest.mark.services
async def test_a_mark_before_the_first_line_is_no_error(home: Path, tmp_path: Path) -> None:
    """A client may write a byte order mark first, and end its lines as Windows does."""
    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, tmp_path) as process:
            stdout, _ = await process.communicate(b"\xef\xbb\xbf" + lines(INITIALIZE).replace(b"\n", b"\r\n"))

    [answer] = [json.loads(line) for line in stdout.splitlines()]
    assert answer["result"]["serverInfo"]["name"] == "toolcrib"


@pytest.mark.services
async def test_a_folder_whose_name_is_no_text_can_be_served(home: Path, odd_folder: Path) -> None:
    """The name of the workspace is told to clients, whatever bytes it is made of."""
    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, odd_folder) as process:
            stdout, _ = await process.communicate(lines(INITIALIZE))

    assert "??" in json.loads(stdout)["result"]["instructions"]


@pytest.mark.services
async def test_a_client_that_does_not_listen_any_more_has_gone(home: Path, tmp_path: Path) -> None:
    """When nobody takes the answers, the program ends with its commands, though its input is still open."""
    noted = tmp_path / "pid"
    command = f"echo $$ > {noted}.new; mv {noted}.new {noted}; sleep 600"
    work = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    work["params"] = {"name": "terminal", "arguments": {"command": command}}

    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, tmp_path) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(lines(INITIALIZE, INITIALIZED, work))
            await process.stdout.readline()
            await eventually(noted.exists, "the command runs")
            listening = process.stdout._transport  # type: ignore[attr-defined]
            listening.close()
            # The loop closes the pipe later, and until then the answers would be accepted.
            await eventually(lambda: listening._pipe is None, "the pipe is closed")
            process.stdin.write(b"no message\n" + lines({"jsonrpc": "2.0", "id": 3, "method": "ping"}))
            code = await process.wait()

    assert code == 0
    assert not is_running(int(noted.read_text()))
