"""Runtimes with the public servers behind them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_real.public_servers import LIMIT_SECONDS, Programs, eventually, own_children, programs, served_environ
from toolcrib.runtime import Runtime


@pytest.fixture
def public() -> Programs:
    return programs()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a server may work."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
async def connected(make_runtime: Callable[..., Runtime]) -> AsyncIterator[Callable[..., Any]]:
    """A runtime with one server that is ready; its processes must be gone when the runtime is closed."""
    before = own_children()
    opened: list[Runtime] = []

    async def connect(name: str, settings: dict[str, Any], **options: Any) -> Runtime:
        runtime = make_runtime(json.dumps({"mcp_servers": {name: settings}}), **options)
        opened.append(runtime)
        runtime.load()
        assert await runtime.mcp.wait_ready(LIMIT_SECONDS)
        [status] = runtime.mcp.servers()
        assert status.state == "ready", status.last_error
        return runtime

    yield connect
    for runtime in opened:
        await asyncio.to_thread(runtime.close)
    await eventually(lambda: own_children() <= before, "no process of a server is left")


@asynccontextmanager
async def _toolcrib(home: Path, folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolcrib", "mcp", "serve", *arguments),
        env=served_environ(home),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@pytest.fixture
async def serve_http(tmp_path: Path, folder: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts `toolcrib mcp serve --http` with these servers configured; gives its address."""
    async with AsyncExitStack() as started:

        async def serve(servers: dict[str, Any], *arguments: str) -> str:
            home = tmp_path / "served-home"
            home.mkdir()
            (home / "config.yaml").write_text(json.dumps({"mcp_servers": servers}))
            words = ("--http", "0", "--token-env", "SERVE_TOKEN", *arguments)
            process = await started.enter_async_context(_toolcrib(home, folder, *words))
            assert process.stderr is not None
            async with asyncio.timeout(LIMIT_SECONDS):
                said = ""
                while "http://" not in said:
                    line = await process.stderr.readline()
                    assert line, f"it ended with: {said}"
                    said += line.decode()
            return next(word.rstrip(";") for word in said.split() if word.startswith("http://"))

        yield serve
