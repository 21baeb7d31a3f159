"""Servers that are reached by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.mcp.real_servers import LIMIT_SECONDS, eventually, free_port, sdk, text_of

# Programs with the SDK behind them take a second or two to start.
pytestmark = pytest.mark.services

WithServers = Callable[..., Any]


async def test_a_server_over_http_is_called(with_servers: WithServers, http_server: Callable[..., Any]) -> None:
    """Tools of a server behind an address work like those of a program."""
    url, _, _ = await asyncio.to_thread(http_server)
    runtime = await with_servers({"web": {"url": url, "trust": "all"}})

    assert text_of(await runtime.call("mcp__web__echo", {"text": "hi"})) == "hi"
    assert runtime.mcp.servers()[0].protocol_version == "2026-07-28"


async def test_a_server_that_was_restarted_is_found_again_by_the_next_call(
    with_servers: WithServers, http_server: Callable[..., Any]
) -> None:
    """A call that could not be sent goes out again when the server is back; in between it says why it failed."""
    url, process, port = await asyncio.to_thread(http_server)
    runtime = await with_servers({"web": {"url": url, "trust": "all"}})
    assert text_of(await runtime.call("mcp__web__echo", {"text": "before"})) == "before"

    process.kill()
    process.wait()
    down = await runtime.call("mcp__web__echo", {"text": "down"})
    await asyncio.to_thread(http_server, port)
    up = await runtime.call("mcp__web__echo", {"text": "up"})

    assert "nothing was sent to it" in down.error_message
    assert text_of(up) == "up"


async def test_a_server_that_dies_during_a_call_costs_that_call(
    with_servers: WithServers, http_server: Callable[..., Any]
) -> None:
    """The call is answered, with the warning that nobody knows whether it was carried out."""
    url, process, _ = await asyncio.to_thread(http_server)
    heard: list[str] = []
    runtime = await with_servers({"web": {"url": url, "trust": "all"}}, on_progress=heard.append)
    call = asyncio.ensure_future(runtime.call("mcp__web__sleep", {}))
    await eventually(lambda: heard)

    process.kill()
    result = await asyncio.wait_for(call, LIMIT_SECONDS)

    assert "may or may not" in result.error_message


async def test_an_address_without_a_server_is_told(with_servers: WithServers) -> None:
    """Nobody there: the state is waiting, with the reason and the time of the next try."""
    runtime = await with_servers({"web": {"url": f"http://127.0.0.1:{free_port()}/mcp"}})

    [status] = runtime.mcp.servers()

    assert status.state == "waiting"
    assert "no connection" in status.last_error
    assert status.next_retry is not None


async def test_a_server_of_the_older_kind_is_called(with_servers: WithServers, http_server: Callable[..., Any]) -> None:
    """`transport: sse` speaks to servers from before streamable HTTP."""
    url, _, _ = await asyncio.to_thread(http_server, kind="sse")
    runtime = await with_servers({"web": {"url": url, "transport": "sse", "trust": "all"}})

    assert text_of(await runtime.call("mcp__web__echo", {"text": "hi"})) == "hi"
    assert runtime.mcp.servers()[0].transport == "sse"


async def test_a_server_of_the_older_kind_that_dies_costs_its_calls_and_comes_back(
    with_servers: WithServers, http_server: Callable[..., Any]
) -> None:
    """Every call is answered when the stream ends, and the next one finds the new server."""
    url, process, port = await asyncio.to_thread(http_server, kind="sse")
    runtime = await with_servers({"web": {"url": url, "transport": "sse", "trust": "all"}})
    call = asyncio.ensure_future(runtime.call("mcp__web__sleep", {}))
    await eventually(lambda: runtime.mcp._supervisors["web"].contexts)

    process.kill()
    process.wait()
    lost = await asyncio.wait_for(call, LIMIT_SECONDS)
    await asyncio.to_thread(http_server, port, "sse")

    assert lost.is_error
    assert text_of(await runtime.call("mcp__web__echo", {"text": "back"})) == "back"


@pytest.mark.parametrize("tool", ["huge", "endless", "cut", "html"])
async def test_a_wrong_answer_over_http_costs_its_own_call(
    with_servers: WithServers, http_server: Callable[..., Any], tool: str
) -> None:
    """Gigabytes, half an answer, or none at all: the call gets an error, another one at the same time its answer."""
    url, _, _ = await asyncio.to_thread(http_server, kind="calls")
    settings = {"url": url, "trust": "all", "supports_parallel_tool_calls": True}
    runtime = await with_servers({"web": settings})

    wrong, right = await asyncio.wait_for(
        asyncio.gather(runtime.call(f"mcp__web__{tool}", {}), runtime.call("mcp__web__echo", {})), LIMIT_SECONDS
    )

    assert wrong.is_error
    assert text_of(right) == "fine"


async def test_a_compressed_answer_is_not_unpacked(with_servers: WithServers, http_server: Callable[..., Any]) -> None:
    """A few bytes may hold gigabytes: the server is asked not to, and what it sends all the same is not read."""
    url, _, _ = await asyncio.to_thread(http_server, kind="calls")
    runtime = await with_servers({"web": {"url": url, "trust": "all"}})

    packed = await asyncio.wait_for(runtime.call("mcp__web__packed", {}), LIMIT_SECONDS)

    assert "sent a compressed response" in packed.error_message
    assert text_of(await runtime.call("mcp__web__echo", {})) == "fine"


async def test_a_server_that_does_not_let_go_is_connected_again(
    with_servers: WithServers, http_server: Callable[..., Any]
) -> None:
    """One that never answers the end of a session does not keep us from beginning another."""
    url, _, _ = await asyncio.to_thread(http_server, kind="clinging")
    runtime = await with_servers({"web": {"url": url, "trust": "all"}})

    runtime.mcp.reconnect("web")

    answer = await asyncio.wait_for(runtime.call("mcp__web__echo", {}), 20)
    assert text_of(answer) == "fine"


async def test_a_stalled_request_over_http_ends_in_time(
    with_servers: WithServers, http_server: Callable[..., Any]
) -> None:
    """The limit of the config holds for HTTP too, and the connection is used on."""
    url, _, _ = await asyncio.to_thread(http_server, kind="calls")
    runtime = await with_servers({"web": {"url": url, "trust": "all", "timeout": 0.5}})

    stalled = await runtime.call("mcp__web__stall", {})

    assert "did not answer within 0.5 seconds" in stalled.error_message
    assert text_of(await runtime.call("mcp__web__echo", {})) == "fine"


async def test_a_server_that_wants_a_login_says_so(with_servers: WithServers, http_server: Callable[..., Any]) -> None:
    """Nobody is kept waiting for it, and the state says what to do."""
    url, _, _ = await asyncio.to_thread(http_server, kind="forbidden")
    runtime = await with_servers({"web": {"url": url}})

    [status] = runtime.mcp.servers()

    assert status.state == "needs_login"
    assert "HTTP 401" in status.last_error


async def test_a_server_that_fails_is_told_with_its_status(
    with_servers: WithServers, http_server: Callable[..., Any]
) -> None:
    """What HTTP says is what people need to know."""
    url, _, _ = await asyncio.to_thread(http_server, kind="failing")
    runtime = await with_servers({"web": {"url": url}})

    [status] = runtime.mcp.servers()

    assert (status.state, status.last_error) == ("waiting", "the server responded with HTTP 500")


@pytest.mark.parametrize("how", ["stdio", "http"])
async def test_changes_are_heard_in_the_newer_protocol(
    with_servers: WithServers, http_server: Callable[..., Any], how: str
) -> None:
    """There a client has to listen for changes of the tools; it does."""
    if how == "stdio":
        server = sdk()
    else:
        url, _, _ = await asyncio.to_thread(http_server)
        server = {"url": url, "trust": "all"}
    runtime = await with_servers({"s": server})

    await runtime.call("mcp__s__grow", {})

    await eventually(lambda: runtime.registry.get_entry("mcp__s__grown_0"))
