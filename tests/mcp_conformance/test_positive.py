"""What a server that can do nothing would pass too, asked for in earnest: of our server, over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.mcp_conformance.conformance_server import conformance_server
from toolcrib.core.context import ToolContext
from toolcrib.mcp.server.approvals import ClientAsker
from toolcrib.mcp.server.http import RequestGuard, address_of, open_socket, serve_http
from toolcrib.mcp.server.pending_calls import PendingCalls
from toolcrib.runtime import Runtime

BOTH = pytest.mark.parametrize("era", ["legacy", "auto"])
LIMIT_SECONDS = 60.0
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
ELICITS = "test_input_required_result_elicitation"


@pytest.fixture
async def url(make_runtime: Callable[..., Runtime]) -> AsyncIterator[str]:
    """The address of the server of the suite."""
    calls = PendingCalls()
    server = conformance_server(make_runtime(services={"asker": ClientAsker(calls)}), calls)
    listening, stop = open_socket("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve_http(server, RequestGuard(token=""), listening, stop))
    yield address_of(listening)
    stop.set()
    await asyncio.wait_for(serving, LIMIT_SECONDS)


async def send(url: str, method: str, name: str = "", **params: Any) -> dict[str, Any]:
    """The answer to one request of the newer protocol, as it is on the wire."""
    named = {"name": name} if name else {}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        **({"mcp-name": name} if name else {}),
    }
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"_meta": META, **named, **params}}
    async with httpx2.AsyncClient(timeout=LIMIT_SECONDS) as client:
        response = await client.post(url, json=body, headers=headers)
    kind = response.headers["content-type"]
    text = response.text.rpartition("data: ")[2] if kind.startswith("text/event-stream") else response.text
    answer: dict[str, Any] = json.loads(text)
    assert answer["id"] == 7
    return answer


def name_given(value: Any) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": value}}


@BOTH
async def test_tools_call_simple_text(url: str, era: str) -> None:
    """The text is that of the tool, alone, and no error."""
    async with Client(url, mode=era) as client:
        result = await client.call_tool("test_simple_text", {})

    assert result.content == [types.TextContent(text="This is a simple text response for testing.")]
    assert not result.is_error


@BOTH
async def test_tools_call_error(url: str, era: str) -> None:
    """The tool's own words come as the result of a call that failed, and the next call works."""
    async with Client(url, mode=era) as client:
        failed = await client.call_tool("test_error_handling", {})
        after = await client.call_tool("test_simple_text", {})

    assert failed.is_error
    assert isinstance(failed.content[0], types.TextContent)
    assert "This tool intentionally returns an error for testing" in failed.content[0].text
    assert not after.is_error


@BOTH
async def test_server_sse_multiple_streams(url: str, era: str) -> None:
    """Calls of one client that run at once are all open at the same time; each hears its own progress and result."""
    all_open = asyncio.Event()
    begun: set[int] = set()
    heard: dict[int, list[float]] = {number: [] for number in range(3)}

    async with Client(url, mode=era) as client:

        async def call(number: int) -> types.CallToolResult:
            async def progress(done: float, total: float | None, message: str | None) -> None:
                begun.add(number)
                heard[number].append(done)
                if len(begun) == 3:
                    all_open.set()

            return await client.call_tool("test_tool_with_progress", {}, progress_callback=progress)

        with anyio.fail_after(LIMIT_SECONDS):
            results = await asyncio.gather(*(call(number) for number in range(3)))

    assert all_open.is_set()
    assert [result.content for result in results] == [[types.TextContent(text="done")]] * 3
    assert all(told == sorted(told) and len(told) == 3 for told in heard.values())


@BOTH
async def test_sep_2164_resource_not_found(url: str, era: str) -> None:
    """A resource that is there is read; one that is not is an error which names it, and not an empty answer."""
    async with Client(url, mode=era) as client:
        found = await client.read_resource("test://static-text")
        with pytest.raises(MCPError) as caught:
            await client.read_resource("test://nowhere/at-all")

    assert found.contents[0].text == "This is the content of the static text resource."  # type: ignore[union-attr]
    assert caught.value.error.code == types.INVALID_PARAMS
    assert caught.value.error.data == {"uri": "test://nowhere/at-all"}


async def test_input_required_result_missing_input_response(url: str) -> None:
    """Who answers something else is asked the same again, and gets the result when he answers."""
    first = (await send(url, "tools/call", ELICITS, arguments={}))["result"]
    wrong = (await send(url, "tools/call", ELICITS, arguments={}, inputResponses={"other": name_given("Eve")}))[
        "result"
    ]
    right = await send(url, "tools/call", ELICITS, arguments={}, inputResponses={"user_name": name_given("Ada")})

    assert first["resultType"] == wrong["resultType"] == "input_required"
    assert first["inputRequests"] == wrong["inputRequests"]
    assert first["inputRequests"]["user_name"]["method"] == "elicitation/create"
    assert right["result"]["resultType"] == "complete"
    assert right["result"]["content"][0]["text"] == "Hello, Ada!"


async def test_input_required_result_unsupported_methods(url: str) -> None:
    """Only what may ask does: the lists come whole, while a call and a prompt of the same server ask."""
    lists = {kind: (await send(url, f"{kind}/list"))["result"] for kind in ("tools", "prompts", "resources")}
    call = (await send(url, "tools/call", ELICITS, arguments={}))["result"]
    prompt = (await send(url, "prompts/get", "test_input_required_result_prompt"))["result"]

    assert {result["resultType"] for result in lists.values()} == {"complete"}
    assert ELICITS in [tool["name"] for tool in lists["tools"]["tools"]]
    assert all(result[kind] for kind, result in lists.items())
    assert call["resultType"] == prompt["resultType"] == "input_required"


async def test_input_required_result_ignore_extra_params(url: str) -> None:
    """Answers that nobody asked for change nothing about the one that was asked for."""
    responses = {"user_name": name_given("Ada"), "more": name_given("Eve"), "roots": {"roots": []}}

    answer = (await send(url, "tools/call", ELICITS, arguments={}, inputResponses=responses))["result"]

    assert answer["resultType"] == "complete"
    assert answer["content"][0]["text"] == "Hello, Ada!"


@pytest.mark.parametrize("given", [12345, "Ada", None, [], {"action": "maybe"}, {"content": {"name": "Ada"}}])
async def test_input_required_result_validate_input(url: str, given: Any) -> None:
    """What is no answer to a form never passes for one: it is an error, or it is asked for again."""
    answer = await send(url, "tools/call", ELICITS, arguments={}, inputResponses={"user_name": given})

    assert "error" in answer or answer["result"]["resultType"] == "input_required"
    assert "Hello" not in json.dumps(answer)


class Reader:
    """A person who gives his name."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...] = ()) -> str:
        self.asked.append(question)
        return "Ada" if not choices else choices[0]


@pytest.fixture
async def other_process() -> AsyncIterator[str]:
    """The address of the same server in a process of its own: no process can be its own server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("conformance_server.py")), "0"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        yield (await asyncio.wait_for(process.stderr.readline(), LIMIT_SECONDS)).decode().split()[-1]
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.services
async def test_our_client_and_our_server_together(other_process: str, make_runtime: Callable[..., Runtime]) -> None:
    """Through our own client: texts, errors, a question in the middle of a call, resources, several calls at once."""
    person = Reader()
    settings = {"url": other_process, "trust": "all", "supports_parallel_tool_calls": True}
    runtime = make_runtime(json.dumps({"mcp_servers": {"suite": settings}}), services={"asker": person})
    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)

    async def call(tool: str, **arguments: Any) -> Any:
        return json.loads((await runtime.call(f"mcp__suite__{tool}", arguments)).text)

    simple, failed, greeted, resource = await asyncio.gather(
        call("test_simple_text"),
        call("test_error_handling"),
        call(ELICITS),
        call("read_resource", uri="test://no-such-thing"),
    )

    assert simple == {"result": "This is a simple text response for testing."}
    assert "intentionally returns an error" in failed["error"]
    assert greeted == {"result": "Hello, Ada!"}
    assert len(person.asked) == 1
    assert "not found" in resource["error"].lower()
    await asyncio.to_thread(runtime.close)
