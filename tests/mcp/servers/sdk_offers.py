"""An MCP server on the SDK with resources and prompts, and with tools of its own that have such names."""

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


async def list_tools(ctx, params):
    names = ("list_resources", "get prompt")
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in names])


async def call_tool(ctx, params):
    return types.CallToolResult(content=[types.TextContent(text=f"the server's own {params.name}")])


async def list_resources(ctx, params):
    if params is not None and params.cursor:
        return types.ListResourcesResult(resources=[types.Resource(uri="memo://two", name="two", size=3)])
    return types.ListResourcesResult(resources=[types.Resource(uri="memo://one", name="one")], next_cursor="more")


async def read_resource(ctx, params):
    text = types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=f"what {params.uri} says")
    return types.ReadResourceResult(contents=[text])


async def list_prompts(ctx, params):
    argument = types.PromptArgument(name="who", required=True)
    return types.ListPromptsResult(prompts=[types.Prompt(name="greet", arguments=[argument])])


async def get_prompt(ctx, params):
    content = types.TextContent(text=f"Greet {(params.arguments or {}).get('who')}")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


SERVER = Server(
    "offers",
    version="1",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_read_resource=read_resource,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
)


async def main():
    async with stdio_server() as (reading, writing):
        await SERVER.run(reading, writing, SERVER.create_initialization_options())


anyio.run(main)
