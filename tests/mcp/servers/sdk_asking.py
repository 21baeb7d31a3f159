"""An MCP server of the newer protocol, which asks its client for whatever it is told to, as part of the result.

The tool `ask` takes `method` and `params`, and gives back the answer as JSON.
"""

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

OBJECT = {"type": "object", "properties": {}}


async def list_tools(ctx, params):
    return types.ListToolsResult(tools=[types.Tool(name="ask", input_schema=OBJECT)])


async def call_tool(ctx, params):
    given = (params.input_responses or {}).get("question")
    if given is None:
        question = {"method": params.arguments["method"], "params": params.arguments.get("params") or {}}
        wanted = {"resultType": "input_required", "inputRequests": {"question": question}, "requestState": "asked"}
        return types.InputRequiredResult.model_validate(wanted, by_name=False)
    assert params.request_state == "asked"
    text = given.model_dump_json(by_alias=True, exclude_none=True)
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def main():
    server = Server("asking", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
