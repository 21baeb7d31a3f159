"""Many clients at once: each has its own session, and only its own calls are stopped with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation, TextContent

from tests.mcp_serve.mcp_serving import (
    ERAS,
    LIMIT_SECONDS,
    AddTool,
    MakeServer,
    Person,
    Web,
    eventually,
    is_running,
    serving,
)
from toolcrib.mcp.server.pending_calls import MAX_CALLS_PER_SESSION

BOTH = pytest.mark.parametrize("era", ERAS)


def _whoami(args: Any, *, ctx: Any, **_: Any) -> str:
    return json.dumps({"session": ctx.session_id})


async def _session(client: Client) -> str:
    content: Any = (await client.call_tool("whoami", {})).structured_content
    return str(content["session"])


@pytest.mark.services
@BOTH
async def test_clients_have_their_own_sessions(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """Ten clients of the same name on the same machine, at the same time, keep ten sessions apart."""
    server, runtime = make_server()
    add_tool(runtime, "whoami", _whoami)

    async def use(web: Web) -> set[str]:
        async with web.client(era) as client:
            return {await _session(client) for _ in range(3)}

    async with serving(server) as web:
        seen = await asyncio.gather(*(use(web) for _ in range(10)))

    assert all(len(sessions) == 1 for sessions in seen)
    assert len(set.union(*seen)) == 10


async def test_clients_without_cookies_are_told_apart_by_name(make_server: MakeServer, add_tool: AddTool) -> None:
    """Where every request stands for itself and brings no cookie, requests of one name on one machine are one
    session."""
    server, runtime = make_server()
    add_tool(runtime, "whoami", _whoami)
    seen: dict[str, set[str]] = {"a": set(), "b": set()}

    async with serving(server) as web:
        for name in ("a", "b", "a", "b"):
            async with web.http() as http:
                transport = streamable_http_client(web.url, http_client=http)
                info = Implementation(name=name, version="1")
                async with Client(transport, mode="2026-07-28", client_info=info) as client:
                    seen[name].add(await _session(client))

    assert [len(sessions) for sessions in seen.values()] == [1, 1]
    assert seen["a"] != seen["b"]


@BOTH
async def test_places_are_kept_apart(make_server: MakeServer, era: str, tmp_path: Path) -> None:
    """A folder that one client goes to is not where the commands of another run."""
    server, _ = make_server(builtin=True)

    async with serving(server) as web, web.client(era) as one, web.client(era) as other:
        await one.call_tool("terminal", {"command": "cd / && pwd"})
        results = [await client.call_tool("terminal", {"command": "pwd"}) for client in (one, other)]

    folders: list[Any] = [result.structured_content for result in results]
    assert [answer["output"].strip() for answer in folders] == ["/", str(tmp_path / "workspace")]


@BOTH
async def test_cancelling_a_call_ends_its_command(make_server: MakeServer, era: str, tmp_path: Path) -> None:
    """A client that cancels its request has the command and its children ended, and can go on."""
    server, _ = make_server(builtin=True)
    noted = tmp_path / "workspace" / "pid"
    command = f"echo $$ > {noted}.new; mv {noted}.new {noted}; sleep 600"

    async with serving(server) as web, web.client(era) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "terminal", {"command": command})
            await eventually(noted.exists, "the command runs")
            pid = int(noted.read_text())
            assert is_running(pid)
            group.cancel_scope.cancel()
        await eventually(lambda: not is_running(pid), "the command has ended")
        await eventually(lambda: _open_calls(server) == 0, "nothing is kept of the call")
        after = await client.call_tool("terminal", {"command": "echo still here"})

    assert isinstance(after.content[0], TextContent)
    assert "still here" in after.content[0].text


@BOTH
async def test_calls_of_others_go_on(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """A call that waits for a person, or works for long, holds up no other call of any client."""
    server, runtime = make_server()
    release = asyncio.Event()

    async def wait(args: Any, **_: Any) -> str:
        await release.wait()
        return "at last"

    add_tool(runtime, "wait", wait, is_async=True)
    add_tool(runtime, "whoami", _whoami)

    async with serving(server) as web, web.client(era) as one, web.client(era) as other:
        waiting = asyncio.ensure_future(one.call_tool("wait", {}))
        with anyio.fail_after(LIMIT_SECONDS):
            await _session(one)
            await _session(other)
            release.set()
            result = await waiting

    assert isinstance(result.content[0], TextContent)
    assert result.content[0].text == "at last"


async def test_a_client_that_leaves_is_cleaned_up_after(make_server: MakeServer, add_tool: AddTool) -> None:
    """When a client ends its session, what the session holds is given back, and its calls are stopped."""
    ended: list[str] = []
    gone = asyncio.Event()

    async def end(session_id: str) -> None:
        ended.append(session_id)
        gone.set()

    server, runtime = make_server(end_session=end)
    add_tool(runtime, "whoami", _whoami)

    async with serving(server) as web:
        async with web.client("legacy") as client:
            session = await _session(client)
            assert ended == []
        with anyio.fail_after(LIMIT_SECONDS):
            await gone.wait()
        assert list(server.sessions) == []

    assert ended == [session]


@BOTH
async def test_stopping_the_server_ends_calls(make_server: MakeServer, era: str, tmp_path: Path) -> None:
    """A command that runs when the server is stopped is ended with it, and the stop does not wait for it."""
    server, _ = make_server(builtin=True)
    noted = tmp_path / "workspace" / "pid"
    command = f"echo $$ > {noted}.new; mv {noted}.new {noted}; sleep 600"

    async with serving(server) as web, web.client(era, elicitation_callback=Person()) as client:
        calling = asyncio.ensure_future(client.call_tool("terminal", {"command": command}))
        await eventually(noted.exists, "the command runs")
        server.stop("the test is over")
        with anyio.fail_after(LIMIT_SECONDS):
            await asyncio.wait({calling})

    assert not is_running(int(noted.read_text()))
    if not calling.cancelled():
        calling.exception()


@pytest.mark.services
async def test_a_client_cannot_open_calls_without_end(make_server: MakeServer, add_tool: AddTool) -> None:
    """Beyond its limit of open calls a client is told to wait; other clients are not."""
    server, runtime = make_server()
    add_tool(runtime, "forever", _forever, is_async=True)
    add_tool(runtime, "whoami", _whoami)

    async with (
        serving(server) as web,
        web.client("legacy") as client,
        web.client("legacy") as other,
        anyio.create_task_group() as group,
    ):
        for _ in range(MAX_CALLS_PER_SESSION):
            group.start_soon(client.call_tool, "forever", {})
        await eventually(lambda: _open_calls(server) == MAX_CALLS_PER_SESSION, "all calls are open")
        refused = await client.call_tool("whoami", {})
        served = await other.call_tool("whoami", {})
        group.cancel_scope.cancel()

    assert refused.is_error
    assert not served.is_error


async def _forever(args: Any, **_: Any) -> str:
    await asyncio.Event().wait()
    return ""


def _open_calls(server: Any) -> int:
    return sum(len(server.calls.of_session(session.id)) for session in server.sessions)
