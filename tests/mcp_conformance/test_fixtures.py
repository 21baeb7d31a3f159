"""What the scenarios that a server without anything would pass are about: here it is asked for in earnest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.mcp_conformance.conformance_server import conformance_server
from tests.mcp_conformance.fixtures import NATIVE
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.approvals import ClientAsker
from toolcrib.mcp.server.pending_calls import PendingCalls
from toolcrib.runtime import Runtime

BOTH = pytest.mark.parametrize("era", ["legacy", "auto"])


@pytest.fixture
def server(make_runtime: Callable[..., Runtime]) -> ToolServer:
    calls = PendingCalls()
    return conformance_server(make_runtime(services={"asker": ClientAsker(calls)}), calls)


async def _says(_: Any, params: Any) -> types.ElicitResult:
    name = next(iter(params.requested_schema["properties"]))
    return types.ElicitResult(action="accept", content={name: True if name == "ok" else "Ada"})


@BOTH
async def test_texts_and_errors_are_those_of_the_suite(server: ToolServer, era: str) -> None:
    """The simple tool says its sentence, the failing one fails with its own."""
    async with Client(server.protocol, mode=era) as client:
        simple = await client.call_tool("test_simple_text", {})
        failing = await client.call_tool("test_error_handling", {})

    assert simple.content == [types.TextContent(text="This is a simple text response for testing.")]
    assert failing.is_error
    assert isinstance(failing.content[0], types.TextContent)
    assert "intentionally returns an error" in failing.content[0].text


@BOTH
async def test_a_missing_resource_is_named(server: ToolServer, era: str) -> None:
    """Reading what is not there is an error that names it; reading what is there gives it."""
    async with Client(server.protocol, mode=era) as client:
        found = await client.read_resource("test://static-text")
        with pytest.raises(MCPError) as caught:
            await client.read_resource("test://no-such-thing")

    assert isinstance(found.contents[0], types.TextResourceContents)
    assert caught.value.error.data == {"uri": "test://no-such-thing"}


async def test_rounds_end_with_the_answers(server: ToolServer) -> None:
    """A call that needs input asks again without it, ignores what it did not ask for, and ends with the answer."""
    tool = "test_input_required_result_elicitation"
    other = {"something_else": types.ElicitResult(action="accept", content={"name": "Eve"})}
    right = {"user_name": types.ElicitResult(action="accept", content={"name": "Ada"})}

    async with Client(server.protocol, elicitation_callback=_says) as client:
        first, wrong, last = [
            await client.session.call_tool(tool, {}, input_responses=given, allow_input_required=True)
            for given in (None, other, {**other, **right})
        ]

    assert isinstance(first, types.InputRequiredResult)
    assert isinstance(wrong, types.InputRequiredResult)
    assert last.content == [types.TextContent(text="Hello, Ada!")]


async def test_only_what_the_client_can_do_is_asked_for(server: ToolServer) -> None:
    """A client that declares forms alone is not asked to sample."""
    async with Client(server.protocol, elicitation_callback=_says) as client:
        asked = await client.session.call_tool("test_input_required_result_capabilities", {}, allow_input_required=True)

    assert isinstance(asked, types.InputRequiredResult)
    assert list(asked.input_requests or {}) == ["ask"]


@BOTH
async def test_questions_of_our_tools_reach_the_client(server: ToolServer, era: str) -> None:
    """A tool of the runtime that asks gets the answer of the client's person, in either era."""
    async with Client(server.protocol, mode=era, elicitation_callback=_says) as client:
        result = await client.call_tool("test_streaming_elicitation", {})

    assert result.content == [types.TextContent(text="the answer is Ada")]


@BOTH
async def test_every_tool_of_the_suite_is_listed_once(server: ToolServer, era: str) -> None:
    """Tools of the runtime and those that speak the protocol themselves stand in one list."""
    async with Client(server.protocol, mode=era, elicitation_callback=_says) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]

    assert {"test_simple_text", "test_sampling", "test_trigger_prompt_change", *NATIVE} <= set(names)
    assert len(names) == len(set(names))
