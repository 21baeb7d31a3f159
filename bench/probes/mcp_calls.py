"""Prints seconds per call of a stdio server: by the bare SDK client, and through our dispatch; rounds alternate."""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from toolcrib.runtime import Runtime

ROUNDS = 30
CALLS = 60
ARGUMENTS = {"text": "hello"}


async def main(home: Path, server: str) -> None:
    settings = {"command": sys.executable, "args": [server], "trust": "all"}
    (home / "config.yaml").write_text(json.dumps({"mcp_servers": {"bench": settings}}))
    async with (
        Client(StdioServerParameters(command=sys.executable, args=[server])) as client,
        Runtime(home=home) as runtime,
    ):
        assert await runtime.mcp.wait_ready(60)
        await client.list_tools()

        async def bare() -> Any:
            return await client.call_tool("echo", ARGUMENTS)

        async def ours() -> Any:
            return await runtime.call("mcp__bench__echo", ARGUMENTS)

        assert (await bare()).content[0].text == "hello"
        assert json.loads((await ours()).text) == {"result": "hello"}
        times: dict[str, list[float]] = {"bare": [], "ours": []}
        for _ in range(ROUNDS):
            times["bare"].append(await seconds(bare))
            times["ours"].append(await seconds(ours))
    ratios = [mine / other for mine, other in zip(times["ours"], times["bare"], strict=True)]
    best = {name: min(found) for name, found in times.items()}
    print(json.dumps({**best, "ratio": statistics.median(ratios), "best_ratio": best["ours"] / best["bare"]}))


async def seconds(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        await call()
    return (time.perf_counter() - began) / CALLS


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
