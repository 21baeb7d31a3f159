"""Six of the public reference servers, used for real: over their own stdio, and over HTTP with our server between.

The seventh, which shows everything that the protocol can do, has a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_real.public_servers import PLAYS, TOKEN, Programs, Use, answer_of, eventually
from toolcrib.runtime import Runtime

pytestmark = pytest.mark.services
EACH = pytest.mark.parametrize("server", PLAYS)
ERAS = {"git": "2026-07-28", "time": "2026-07-28", "fetch": "2026-07-28"}


def using(runtime: Runtime, server: str, prefix: str = "") -> Use:
    async def use(tool: str, arguments: dict[str, Any]) -> Any:
        name = runtime.mcp.tool_names(server)[prefix + tool]
        answer = answer_of(await runtime.call(name, arguments))
        # What our server gives is the whole answer of our client behind it.
        return answer.get("structuredContent", answer) if prefix else answer

    return use


@EACH
async def test_over_stdio(public: Programs, connected: Callable[..., Any], folder: Path, server: str) -> None:
    """Tools of the server do real work through the pipeline, in the era that the server speaks."""
    runtime = await connected(server, public.prepare(server, folder))

    await PLAYS[server](using(runtime, server), folder)

    [status] = runtime.mcp.servers()
    assert status.protocol_version == ERAS.get(server, "2025-11-25")


@EACH
async def test_over_http_through_our_server(
    public: Programs, connected: Callable[..., Any], serve_http: Callable[..., Any], folder: Path, server: str
) -> None:
    """The same work is done by a client of `toolcrib mcp serve --http` that has the server configured."""
    url = await serve_http({server: public.prepare(server, folder)}, "--toolsets", f"mcp-{server}")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    runtime = await connected("bridge", {"url": url, "headers": headers, "trust": "all"})
    prefix = f"mcp__{server.replace('-', '_')}__"
    # The server behind it is connected meanwhile, and the client hears of its tools.
    await eventually(lambda: any(name.startswith(prefix) for name in runtime.mcp.tool_names("bridge")), "tools appear")

    await PLAYS[server](using(runtime, "bridge", prefix), folder)
