"""An MCP server on the SDK, over stdio, HTTP or the older SSE: `sdk_server.py [PORT [sse]]`."""

import base64
import sys

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 20).decode()
OBJECT = {"type": "object", "properties": {}}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


GROWN: list[str] = []
BUS = InMemorySubscriptionBus()


async def list_tools(ctx, params):
    tools = [
        types.Tool(
            name="echo",
            description="Gives back a text",
            input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
            annotations=types.ToolAnnotations(read_only_hint=True),
        ),
        types.Tool(name="media", input_schema=OBJECT),
        types.Tool(name="structured", input_schema=OBJECT, output_schema=NUMBER),
        types.Tool(name="progress", input_schema=OBJECT),
        types.Tool(name="sleep", input_schema=OBJECT),
        types.Tool(name="grow", input_schema=OBJECT),
        types.Tool(name="ask", input_schema=OBJECT),
        *(types.Tool(name=name, input_schema=OBJECT) for name in GROWN),
    ]
    return types.ListToolsResult(tools=tools)


async def call_tool(ctx, params):
    arguments = params.arguments or {}
    if params.name == "echo":
        return types.CallToolResult(content=[types.TextContent(text=str(arguments.get("text")))])
    if params.name == "media":
        embedded = types.TextResourceContents(uri="file:///notes.txt", mime_type="text/plain", text="some notes")
        blob = types.BlobResourceContents(uri="file:///a.bin", mime_type="application/zip", blob=PNG)
        return types.CallToolResult(
            content=[
                types.TextContent(text="here they are"),
                types.ImageContent(data=PNG, mime_type="image/png"),
                types.AudioContent(data=PNG, mime_type="audio/wav"),
                types.EmbeddedResource(resource=embedded),
                types.EmbeddedResource(resource=blob),
                types.ResourceLink(name="the page", uri="https://example.com/page", description="a link"),
            ]
        )
    if params.name == "structured":
        return types.CallToolResult(content=[types.TextContent(text="n is 3")], structured_content={"n": 3})
    if params.name == "progress":
        await ctx.session.report_progress(1, 2, "half way")
        return types.CallToolResult(content=[types.TextContent(text="done")])
    if params.name == "ask":
        given = (params.input_responses or {}).get("who")
        if given is None:
            wanted = {"type": "object", "properties": {"name": {"type": "string"}}}
            question = types.ElicitRequestFormParams(message="Who are you?", requested_schema=wanted)
            request = types.ElicitRequest(params=question)
            return types.InputRequiredResult(input_requests={"who": request}, request_state="asked once")
        return types.CallToolResult(content=[types.TextContent(text=f"{given.content} {params.request_state}")])
    if params.name == "grow":
        GROWN.append(f"grown_{len(GROWN)}")
        await BUS.publish(ToolsListChanged())
        return types.CallToolResult(content=[types.TextContent(text="grown")])
    if params.name == "sleep":
        await ctx.session.report_progress(0, None, "asleep")
        await anyio.sleep(30)
    return types.CallToolResult(content=[types.TextContent(text=f"no tool {params.name}")], is_error=True)


SERVER = Server(
    "sdk", version="1", on_list_tools=list_tools, on_call_tool=call_tool, on_subscriptions_listen=ListenHandler(BUS)
)


async def over_stdio():
    async with stdio_server() as (reading, writing):
        await SERVER.run(reading, writing, SERVER.create_initialization_options())


def sse_app():
    from mcp.server.sse import SseServerTransport
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    transport = SseServerTransport("/messages/")

    async def handle(request):
        async with transport.connect_sse(request.scope, request.receive, request._send) as (reading, writing):
            await SERVER.run(reading, writing, SERVER.create_initialization_options())
        return Response()

    return Starlette(routes=[Route("/sse", handle), Mount("/messages/", app=transport.handle_post_message)])


if len(sys.argv) > 1:
    import uvicorn

    app = sse_app() if sys.argv[2:] == ["sse"] else SERVER.streamable_http_app()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
else:
    anyio.run(over_stdio)
