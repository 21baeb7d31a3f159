"""Calls of tools of real servers, through the whole pipeline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.real_servers import eventually, raw, sdk, text_of
from toolcrib.core.cancel import CancelToken
from toolcrib.mcp.client.callbacks import ClientCallbacks
from toolcrib.mcp.client.tool_registrar import McpTool
from toolcrib.mcp.names import ToolOrigin

WithServers = Callable[..., Any]


@pytest.mark.parametrize("server", [raw(), sdk()], ids=["2025-11-25", "2026-07-28"])
async def test_a_tool_of_either_era_is_offered_and_called(with_servers: WithServers, server: dict[str, Any]) -> None:
    """A server of the older and of the newer protocol gives tools under our names, in a toolset with an alias."""
    runtime = await with_servers({"my-server": server})

    definitions = runtime.definitions(["mcp-my-server"])
    result = await runtime.call("mcp__my_server__echo", {"text": "hello"})

    assert "mcp__my_server__echo" in definitions.names
    assert runtime.definitions(["my-server"]).names == definitions.names
    [echo] = [tool["function"] for tool in definitions.tools if tool["function"]["name"] == "mcp__my_server__echo"]
    assert echo["description"] == "[my-server] Gives back a text"
    assert json.loads(result.text) == {"result": "hello"}
    assert runtime.mcp.origin("mcp__my_server__echo") == ("my-server", "echo")


async def test_a_synchronous_caller_gets_the_same(with_servers: WithServers) -> None:
    """`call_sync` and `registry.dispatch` reach a server too."""
    runtime = await with_servers({"s": raw()})

    def call() -> Any:
        return runtime.call_sync("mcp__s__echo", {"text": "one"}), runtime.registry.dispatch(
            "mcp__s__echo", {"text": "two"}
        )

    first, second = await asyncio.to_thread(call)

    assert text_of(first) == "one"
    assert json.loads(second) == {"result": "two"}


@pytest.mark.services
async def test_media_resources_and_links_become_parts(with_servers: WithServers) -> None:
    """Images and audio are parts of their own; the rest is text, and nothing that no model reads is sent."""
    runtime = await with_servers({"s": sdk()})

    result = await runtime.call("mcp__s__media", {})

    text, image, audio = result.content["content"]
    said = json.loads(text["text"])["result"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert audio["input_audio"]["format"] == "wav"
    assert "some notes" in said
    assert "[content of file:///a.bin: 28 bytes of application/zip, not shown]" in said
    assert "[link to the page, https://example.com/page: a link]" in said


@pytest.mark.services
async def test_structured_output_stands_beside_the_text(with_servers: WithServers) -> None:
    """Structured content is kept as JSON."""
    runtime = await with_servers({"s": sdk()})

    result = await runtime.call("mcp__s__structured", {})

    assert json.loads(result.text) == {"result": "n is 3", "structuredContent": {"n": 3}}


async def test_an_error_of_a_tool_is_an_error_result(with_servers: WithServers) -> None:
    """A tool that says it failed gives an error, and its server stays in use."""
    runtime = await with_servers({"s": raw()})

    results = [await runtime.call("mcp__s__fail", {}) for _ in range(5)]

    assert {result.error_message for result in results} == {"it did not work"}
    assert text_of(await runtime.call("mcp__s__echo", {"text": "still here"})) == "still here"
    assert runtime.mcp.servers()[0].state == "ready"


@pytest.mark.services
@pytest.mark.parametrize("server", [raw(), sdk()], ids=["2025-11-25", "2026-07-28"])
async def test_progress_reaches_the_caller(make_runtime: Any, server: dict[str, Any]) -> None:
    """What a server says about how far it is, the caller hears."""
    heard: list[str] = []
    runtime = make_runtime(json.dumps({"mcp_servers": {"s": server}}), on_progress=heard.append)
    runtime.load()
    await runtime.mcp.wait_ready(40)

    result = await runtime.call("mcp__s__progress", {})
    await eventually(lambda: heard)

    assert text_of(result) == "done"
    assert heard[0] in ("step 1 (1 of 2)", "half way (1 of 2)")


async def test_cancelling_a_call_tells_the_server(with_servers: WithServers) -> None:
    """A call that is stopped ends at once, the server hears of it, and the connection stays."""
    runtime = await with_servers({"s": raw(supports_parallel_tool_calls=True)})
    cancel = CancelToken()
    waiting = asyncio.ensure_future(runtime.call("mcp__s__wait_for_cancel", {}))
    stopped = asyncio.ensure_future(runtime.call("mcp__s__stall", {}, cancel=cancel))
    await eventually(lambda: len(runtime.mcp._supervisors["s"].contexts) == 2)

    cancel.cancel("enough")

    assert (await stopped).status == "cancelled"
    assert text_of(await waiting) == "True"


async def test_a_call_has_a_deadline(with_servers: WithServers) -> None:
    """A server that does not answer costs its own call the time that the config allows, and no more."""
    runtime = await with_servers({"s": raw(timeout=3)})

    stalled = await runtime.call("mcp__s__stall", {})

    assert "did not answer within 3 seconds" in stalled.error_message
    assert text_of(await runtime.call("mcp__s__echo", {"text": "next"})) == "next"


async def test_calls_keep_their_order_unless_the_server_allows_more(with_servers: WithServers) -> None:
    """By default a server has one call at a time; where it allows several, they run together."""
    runtime = await with_servers({"one": raw(), "many": raw(supports_parallel_tool_calls=True, max_parallel=4)})
    loop = asyncio.get_running_loop()

    async def seconds(server: str, each: float) -> float:
        began = loop.time()
        await asyncio.gather(*(runtime.call(f"mcp__{server}__slow", {"seconds": each}) for _ in range(3)))
        return loop.time() - began

    assert await seconds("one", 0.4) >= 1.2
    # Long enough that a busy machine cannot make three at once look like three in a row.
    assert await seconds("many", 4) < 12


async def test_a_server_has_a_minimal_environment_and_the_workspace(with_servers: WithServers, tmp_path: Path) -> None:
    """What is in our environment stays with us; a server works in the workspace unless the config says otherwise."""
    runtime = await with_servers({"s": raw(env={"ITS_OWN": "yes"})}, workspace=tmp_path)

    environ = json.loads(text_of(await runtime.call("mcp__s__environ", {})))

    assert environ["ITS_OWN"] == "yes"
    assert "TOOLCRIB_HOME" not in environ
    assert text_of(await runtime.call("mcp__s__cwd", {})) == str(tmp_path)


async def test_the_config_chooses_tools(with_servers: WithServers) -> None:
    """Only what `include` names is offered, and nothing that `exclude` names."""
    runtime = await with_servers({"s": {**raw(), "tools": {"include": ["echo", "p*"], "exclude": ["pid"]}}})

    assert set(runtime.mcp.tool_names("s")) == {"echo", "progress"}


async def test_a_name_of_a_toolset_that_exists_is_not_taken(with_servers: WithServers) -> None:
    """A server called like a toolset does not become that toolset."""
    runtime = await with_servers({"terminal": raw()})

    assert "mcp__terminal__echo" not in runtime.toolsets.resolve("terminal")
    assert "mcp__terminal__echo" in runtime.toolsets.resolve("mcp-terminal")


async def test_originals_are_found_by_search(with_servers: WithServers) -> None:
    """A tool whose name had to be cut is found by its own words."""
    tool = {"name": "x" * 60 + "-flamingo", "inputSchema": {"type": "object"}}
    runtime = await with_servers({"s": raw(tools=[tool])})

    [name] = runtime.mcp.tool_names("s").values()
    hits = runtime.context().services.get("tool_catalog").index(runtime.context()).search("flamingo")

    assert len(name) == 64
    assert [hit.name for hit in hits] == [name]


@pytest.mark.services
@pytest.mark.parametrize("how", ["stdio", "http"])
async def test_a_server_may_ask_for_input_during_a_call(
    make_runtime: Any, http_server: Callable[..., Any], how: str
) -> None:
    """What it asks goes to the seam for that, which sees the call that it belongs to; then the call goes on."""
    from mcp_types import ElicitResult

    if how == "stdio":
        server = sdk()
    else:
        url, _, _ = await asyncio.to_thread(http_server)
        server = {"url": url, "trust": "all"}
    asked: list[tuple[str, str]] = []

    def make(server: Any, contexts: Any) -> Any:
        async def elicit(ctx: Any, params: Any) -> ElicitResult:
            asked.append((params.message, contexts()[-1].session_id))
            return ElicitResult(action="accept", content={"name": "me"})

        return elicit

    runtime = make_runtime(json.dumps({"mcp_servers": {"s": server}}))
    runtime.mcp.callbacks = ClientCallbacks(elicitation=make)
    runtime.load()
    await runtime.mcp.wait_ready(40)

    result = await runtime.call("mcp__s__ask", {}, ctx=runtime.context(session_id="this one"))

    assert text_of(result) == "{'name': 'me'} asked once"
    assert asked == [("Who are you?", "this one")]


async def test_further_tools_of_a_server_are_offered_beside_its_own(make_runtime: Any) -> None:
    """Tools from the callback for extra tools are registered like the rest and reach the server through the manager."""
    runtime = make_runtime(json.dumps({"mcp_servers": {"s": raw()}}))
    manager = runtime.mcp

    async def version(arguments: Any, ctx: Any) -> str:
        async def ask(connection: Any) -> str:
            return json.dumps({"result": connection.protocol_version})

        return await manager.use("s", ask, 10)

    def more(server: Any, connection: Any) -> list[Any]:
        tool = McpTool(origin=ToolOrigin(server.name, "version"), description="Says it", schema={"type": "object"})
        return [(tool, version)]

    manager.callbacks = ClientCallbacks(extra_tools=more)
    runtime.load()
    await manager.wait_ready(40)

    assert text_of(await runtime.call("mcp__s__version", {})) == "2025-11-25"
