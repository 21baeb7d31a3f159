"""How far a server is: told to whoever watches the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.mcp.real_servers import raw, sdk
from toolcrib.agent.agent import Agent
from toolcrib.agent.events import CallProgressed
from toolcrib.agent.host import AgentHost
from toolcrib.testing import ScriptedProvider, call, says

WithServers = Callable[..., Any]


@pytest.mark.services
@pytest.mark.parametrize("server", [raw(), sdk()], ids=["2025-11-25", "2026-07-28"])
async def test_progress_is_told_with_the_call_it_belongs_to(with_servers: WithServers, server: dict[str, Any]) -> None:
    """Who watches an agent sees the progress of each call under its id, also of calls that run at once."""
    runtime = await with_servers({"one": server, "two": server})
    both = says("", call("mcp__one__progress", {}, id="c1"), call("mcp__two__progress", {}, id="c2"))
    host = AgentHost(runtime=runtime, model=ScriptedProvider([both, "Done."]))
    agent = Agent(host=host, toolsets=["mcp-one", "mcp-two"])
    told: list[CallProgressed] = []

    await agent.run("Go", on_event=lambda event: told.append(event) if isinstance(event, CallProgressed) else None)
    await agent.close()
    await host.close()

    assert {event.call_id for event in told} == {"c1", "c2"}
    assert all(event.message for event in told)
