"""Answers of the newer protocol that leave out or get wrong what a client can do without."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.mcp.real_servers import text_of

ABOUT = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
DISCOVERED = {
    **ABOUT,
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "modern", "version": "1"},
}
TEXT = {"type": "string"}
TOOLS = [
    {"name": "plain", "inputSchema": {"type": "object", "properties": {"region": {**TEXT, "x-mcp-header": "Region"}}}},
    {"name": "spaced", "inputSchema": {"type": "object", "properties": {"a": {**TEXT, "x-mcp-header": "Two words"}}}},
]
ANSWERS: dict[str, dict[str, Any]] = {
    "server/discover": DISCOVERED,
    "tools/list": {**ABOUT, "tools": TOOLS},
    "tools/call": {"content": [{"type": "text", "text": "fine"}]},
}


class Handler(BaseHTTPRequestHandler):
    """Answers each method with what stands above."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": ANSWERS.get(message["method"], ABOUT)}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def modern() -> Iterator[dict[str, Any]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield {"url": f"http://127.0.0.1:{server.server_port}/mcp", "trust": "all"}
        server.shutdown()
        thread.join()


async def test_a_result_without_a_type_is_complete(with_servers: Callable[..., Any], modern: dict[str, Any]) -> None:
    """A server that does not say of which kind its result is means the ordinary one."""
    runtime = await with_servers({"s": modern})

    result = await runtime.call("mcp__s__plain", {"region": "north"})

    [status] = runtime.mcp.servers()
    assert status.protocol_version == "2026-07-28"
    assert text_of(result) == "fine"


async def test_a_tool_with_impossible_headers_is_set_aside(
    with_servers: Callable[..., Any], modern: dict[str, Any]
) -> None:
    """A tool that wants an argument sent in a header that cannot be is not offered, and people are told why."""
    runtime = await with_servers({"s": modern})

    [status] = runtime.mcp.servers()

    assert set(runtime.mcp.tool_names("s")) == {"plain"}
    [(name, reason)] = status.rejected
    assert name == "spaced"
    assert "Two words" in reason
