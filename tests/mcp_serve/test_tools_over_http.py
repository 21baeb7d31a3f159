"""What clients of both eras see of our tools over HTTP: definitions, results, progress, changes."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types import AudioContent, ImageContent, TextContent

from tests.mcp_serve.mcp_serving import ERAS, LIMIT_SECONDS, AddTool, Changes, MakeServer, Person, serving
from toolcrib.core.types import Effect
from toolcrib.registry.results import tool_error

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="

pytestmark = pytest.mark.parametrize("era", ERAS)


async def test_definitions_are_those_of_the_registry(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """A client sees name, description and schema as they were registered, and nothing of other toolsets."""
    server, runtime = make_server()
    schema = {"description": "Adds.", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    add_tool(runtime, "add", lambda args, **_: "", schema=schema)
    add_tool(runtime, "hidden", lambda args, **_: "", toolset="other")

    async with serving(server) as web, web.client(era) as client:
        tools = (await client.list_tools()).tools

    assert [(tool.name, tool.description, tool.input_schema) for tool in tools] == [
        ("add", "Adds.", schema["parameters"])
    ]


async def test_annotations_say_what_tools_declare(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """Only a tool that declares to change nothing is called read-only; one that declares nothing gets no hints."""
    server, runtime = make_server()
    declared: dict[str, Any] = {
        "reads": (Effect("read", "x"),),
        "pure": (),
        "deletes": (Effect("delete", "x"),),
        "sends": (Effect("publish", "x"),),
        "depends": lambda args, ctx: (),
        "silent": None,
    }
    for name, effects in declared.items():
        add_tool(runtime, name, lambda args, **_: "", effects=effects)

    async with serving(server) as web, web.client(era) as client:
        tools = (await client.list_tools()).tools

    hints = {
        tool.name: tool.annotations and (tool.annotations.read_only_hint, tool.annotations.destructive_hint)
        for tool in tools
    }
    assert hints == {
        "reads": (True, None),
        "pure": (True, None),
        "deletes": (False, True),
        "sends": (False, False),
        "depends": (False, True),
        "silent": None,
    }


async def test_agent_loop_tools_need_their_service(make_server: MakeServer, era: str) -> None:
    """A tool that only an agent can serve is not offered; one for the person only to clients that can ask him."""
    server, _ = make_server(builtin=True, toolsets=["todo", "memory", "session_search", "delegation", "clarify"])

    async with (
        serving(server) as web,
        web.client(era) as alone,
        web.client(era, elicitation_callback=Person()) as asked,
    ):
        seen = [[tool.name for tool in (await client.list_tools()).tools] for client in (alone, asked)]

    assert seen == [[], ["clarify"]]


async def test_json_objects_are_structured_results(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """A result that is a JSON object comes as text and as structured content; any other text only as text."""
    server, runtime = make_server()
    add_tool(runtime, "object", lambda args, **_: json.dumps({"sum": 3}))
    add_tool(runtime, "text", lambda args, **_: "{three}")

    async with serving(server) as web, web.client(era) as client:
        structured, plain = await client.call_tool("object", {}), await client.call_tool("text", {})

    assert structured.structured_content == {"sum": 3}
    assert [block.text for block in structured.content if isinstance(block, TextContent)] == ['{"sum": 3}']
    assert (plain.structured_content, plain.is_error) == (None, False)


async def test_images_and_sound_are_content_of_their_own(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """Multimodal results keep their order: text, images, sound; an address of an image becomes a link."""
    server, runtime = make_server()
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
    ]
    add_tool(runtime, "show", lambda args, **_: {"_multimodal": True, "content": parts})

    async with serving(server) as web, web.client(era) as client:
        content = (await client.call_tool("show", {})).content

    assert [block.type for block in content] == ["text", "image", "audio", "resource_link"]
    assert isinstance(content[1], ImageContent)
    assert (content[1].mime_type, content[1].data) == ("image/png", PIXEL)
    assert isinstance(content[2], AudioContent)
    assert content[2].mime_type == "audio/wav"


async def test_what_a_tool_does_wrong_is_a_result(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """An error of the tool, an exception in it and bad arguments are error results, not errors of the protocol."""
    server, runtime = make_server()

    def fail(args: Any, **_: Any) -> str:
        raise ValueError("out of tune")

    add_tool(runtime, "refuses", lambda args, **_: tool_error("no such song"))
    add_tool(runtime, "fails", fail)

    async with serving(server) as web, web.client(era) as client:
        results = [
            await client.call_tool("refuses", {}),
            await client.call_tool("fails", {}),
            await client.call_tool("fails", {"n": "many"}),
        ]

    texts = [block.text for result in results for block in result.content if isinstance(block, TextContent)]
    assert all(result.is_error for result in results)
    assert "no such song" in texts[0]
    assert "out of tune" in texts[1]
    assert "must be an integer" in texts[2]


async def test_unknown_tools_are_errors_of_the_protocol(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """A name that is not offered is refused as the protocol has it, also when the runtime knows the tool."""
    server, runtime = make_server()
    add_tool(runtime, "hidden", lambda args, **_: "secret", toolset="other")

    async with serving(server) as web, web.client(era) as client:
        with pytest.raises(MCPError, match="Unknown tool: hidden") as caught:
            await client.call_tool("hidden", {})

    assert caught.value.error.code == -32602


async def test_long_results_are_cut(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """What is longer than the budget reaches the client as a preview."""
    server, runtime = make_server("tool_output:\n  max_result_chars: 2000\n")
    add_tool(runtime, "long", lambda args, **_: "x" * 50_000)

    async with serving(server) as web, web.client(era) as client:
        result = await client.call_tool("long", {})

    assert isinstance(result.content[0], TextContent)
    assert len(result.content[0].text) < 4_000


async def test_progress_reaches_whoever_asked_for_it(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """What a tool says about its progress comes in order, with growing numbers, before the result."""
    server, runtime = make_server()

    def work(args: Any, *, ctx: Any, **_: Any) -> str:
        for step in ("dig", "fill", "rest"):
            ctx.progress(step)
        return "done"

    add_tool(runtime, "work", work)
    seen: list[tuple[float, str | None]] = []

    async def watch(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with serving(server) as web, web.client(era) as client:
        await client.call_tool("work", {}, progress_callback=watch)
        await client.call_tool("work", {})

    assert seen == [(1.0, "dig"), (2.0, "fill"), (3.0, "rest")]


async def test_changed_tools_are_announced(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """A tool that is registered while clients are connected is announced to them, and listed."""
    server, runtime = make_server()
    add_tool(runtime, "first", lambda args, **_: "")
    changes = Changes()

    async with serving(server) as web, web.client(era, message_handler=changes) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["first"]
        if era == "legacy":
            add_tool(runtime, "second", lambda args, **_: "")
            with anyio.fail_after(LIMIT_SECONDS):
                await changes.heard.wait()
        else:
            with anyio.fail_after(LIMIT_SECONDS):
                async with client.listen(tools_list_changed=True) as events:
                    add_tool(runtime, "second", lambda args, **_: "")
                    assert isinstance(await anext(aiter(events)), ToolsListChanged)
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("second", {})

    assert names == ["first", "second"]
    assert not result.is_error
