"""A server of agents on loopback, in the test's own process, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI

from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.types import Effect
from toolcrib.http_server import base_url, open_socket
from toolcrib.providers.scripted import ScriptedProvider, Step
from toolcrib.registry.registry import ToolRegistry
from toolcrib.serve.app import AgentServer, serve_agents
from toolcrib.serve.tokens import ServerTokens

LIMIT_SECONDS = 60.0
CONFIG = "serve:\n  toolsets: [test]\n"


class RunningServer:
    """A running server, and clients for it."""

    def __init__(self, server: AgentServer, url: str, removed: list[str], model: ScriptedProvider) -> None:
        self.server = server
        self.url = url
        self.removed = removed
        """What the tools `remove` and `run` were called with."""
        self.model = model
        self.token = server.tokens.owner_token()
        self.openai = AsyncOpenAI(base_url=f"{url}/v1", api_key=self.token, max_retries=0)

    def http(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {token or self.token}", **headers}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=LIMIT_SECONDS, trust_env=False)


@asynccontextmanager
async def serving(
    home: Path,
    steps: Iterable[Step] = (),
    config: str = CONFIG,
    *,
    model: ScriptedProvider | None = None,
    **options: Any,
) -> AsyncIterator[RunningServer]:
    """A server whose model plays these steps, or with this model. The tool `remove` needs approval, `echo` does not;
    `run` takes a command, which is only judged."""
    home.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    (home / "config.yaml").write_text(config)
    registry, removed = ToolRegistry(), []

    def remove(args: dict[str, Any], **_: Any) -> str:
        removed.append(args["path"])
        return json.dumps({"removed": args["path"]})

    text = {"type": "string"}
    registry.register(
        name="remove",
        toolset="test",
        schema={
            "description": "Removes.",
            "parameters": {"type": "object", "properties": {"path": text}},
        },
        handler=remove,
        effects=(Effect("exec", "rm -rf build"),),
    )
    registry.register(
        name="run",
        toolset="test",
        schema={"description": "Runs.", "parameters": {"type": "object", "properties": {"command": text}}},
        handler=lambda args, **_: removed.append(args["command"]) or "done",
        effects=lambda args, ctx: (Effect("exec", args["command"]),),
    )
    registry.register(
        name="echo",
        toolset="test",
        schema={"description": "Echoes.", "parameters": {"type": "object", "properties": {"text": text}}},
        handler=lambda args, **_: args["text"],
    )
    registry.register(
        name="wait",
        toolset="test",
        schema={"description": "Waits."},
        handler=lambda args, **_: asyncio.Event().wait(),
        is_async=True,
    )
    model = model or ScriptedProvider(steps, **options)
    settings = load_settings(Home(home))
    server = AgentServer(settings, ServerTokens(settings.home), model=model, registry=registry)
    listening, stop = open_socket("127.0.0.1", 0, "another port"), asyncio.Event()
    url = base_url(listening)
    serving = asyncio.ensure_future(serve_agents(server, "127.0.0.1", listening, stop))
    served = RunningServer(server, url, removed, model)
    try:
        yield served
    finally:
        await served.openai.close()
        stop.set()
        async with asyncio.timeout(LIMIT_SECONDS):
            await serving


async def events_of(response: httpx2.Response) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """The events of a stream with their numbers."""
    number = 0
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            yield number, json.loads(line[6:])
