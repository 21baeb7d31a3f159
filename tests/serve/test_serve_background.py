"""What the server does beside its requests: jobs, changes of the config, and MCP."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from tests.serve.agent_serving import CONFIG, serving
from toolcrib.cron.jobs import Job
from toolcrib.cron.store import JobStore

LIMIT_SECONDS = 60.0


@pytest.mark.services
async def test_due_jobs_run_in_the_server(home: Path) -> None:
    async with serving(home) as served, served.http() as http:
        store = JobStore(home / "cron.db", owner="")
        job = store.add(Job(id="", name="say", schedule="every 2h", since=time.time(), script="echo hi", no_agent=True))
        store.close()
        asked = await http.post(f"/api/jobs/{job.id}/run")
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                runs = (await http.get(f"/api/jobs/{job.id}")).json()["latest_runs"]
                if runs and runs[0]["state"] != "running":
                    break
                await asyncio.sleep(0.05)
        listed = (await http.get("/api/jobs")).json()

    assert asked.status_code == 202
    assert (runs[0]["state"], runs[0]["output"].strip()) == ("ok", "hi")
    assert listed["has_scheduler"] is True


async def test_safe_changes_of_the_config_are_taken_up(home: Path) -> None:
    """Limits and times apply at once; a broken file changes nothing."""
    async with serving(home, ["one", "two"]) as served, served.http() as http:
        server = served.server
        (home / "config.yaml").write_text(CONFIG + "  approval_timeout: 7\n  limits: {max_body_mb: 0.001}\n")
        await server._config.look()
        large = await http.post("/api/runs", json={"text": "x" * 5000})
        (home / "config.yaml").write_text("serve: [")
        await server._config.look()
        status = (await http.get("/api/status")).json()

    assert large.status_code == 413
    assert status["approval_timeout"] == 7


async def test_tools_are_offered_over_mcp_to_admins(home: Path) -> None:
    """A dangerous call is denied to a client that cannot ask its user."""
    async with serving(home, config=CONFIG + "  mcp: true\n") as served, served.http() as http:
        async with served.http(served.server.tokens.create("phone", ["chat"])) as phone:
            refused = await phone.post("/mcp", json={})
        async with Client(streamable_http_client(f"{served.url}/mcp", http_client=http)) as client:
            tools = await client.list_tools()
            echoed = await client.call_tool("echo", {"text": "hi"})
            removed = await client.call_tool("remove", {"path": "x"})

    assert refused.status_code == 403
    assert {"echo", "remove"} <= {tool.name for tool in tools.tools}
    assert isinstance(echoed.content[0], TextContent)
    assert echoed.content[0].text == "hi"
    assert (removed.is_error, served.removed) == (True, [])
