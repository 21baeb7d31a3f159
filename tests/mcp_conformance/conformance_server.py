"""The server that the official conformance suite is run against.

`python conformance_server.py PORT` serves it on loopback until it is ended; without a token, as the suite sends none.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.subscriptions import PromptsListChanged

from tests.mcp_conformance.conformance_offers import REQUESTS
from tests.mcp_conformance.fixtures import NATIVE, NOTHING, TOOLSET, add_tools
from toolcrib.mcp.server.app import Context, ProtocolTool, ServerExtensions, ToolServer
from toolcrib.mcp.server.approvals import ClientApprover, ClientAsker
from toolcrib.mcp.server.http import RequestGuard, address_of, open_socket, serve_http
from toolcrib.mcp.server.pending_calls import PendingCalls
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime

TRIGGER = "test_trigger_prompt_change"


def conformance_server(runtime: Runtime, calls: PendingCalls) -> ToolServer:
    """Our server with everything that the suite asks for."""
    add_tools(runtime.registry)
    made: list[ToolServer] = []

    async def change_prompts(ctx: Context, params: Any) -> types.CallToolResult:
        await made[0].bus.publish(PromptsListChanged())
        return types.CallToolResult(content=[types.TextContent(text="the prompts have changed")])

    native = {**NATIVE, TRIGGER: (change_prompts, NOTHING)}
    tools = tuple(
        ProtocolTool(types.Tool(name=name, description=f"Conformance: {name}", input_schema=schema), handler)
        for name, (handler, schema) in native.items()
    )
    server = ToolServer(
        runtime, calls=calls, toolsets=[TOOLSET], extensions=ServerExtensions(tools=tools, requests=REQUESTS)
    )
    made.append(server)
    return server


async def serve(port: int) -> None:
    calls, stop = PendingCalls(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory() as home:
        runtime = Runtime(
            home=Path(home),
            registry=ToolRegistry(),
            approver=ClientApprover(calls),
            services={"asker": ClientAsker(calls)},
        )
        listening = open_socket("127.0.0.1", port)
        sys.stderr.write(f"serving MCP at {address_of(listening)}\n")
        sys.stderr.flush()
        try:
            await serve_http(conformance_server(runtime, calls), RequestGuard(token=""), listening, stop)
        finally:
            runtime.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
