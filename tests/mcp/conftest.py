"""Runtimes with real servers behind them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.mcp.real_servers import LIMIT_SECONDS, RAW_HTTP, SDK, free_port
from toolcrib.runtime import Runtime


@pytest.fixture
def with_servers(make_runtime: Callable[..., Runtime]) -> Callable[..., Any]:
    """A loaded runtime with these servers, each of which has been tried once."""

    async def make(servers: dict[str, Any], config: dict[str, Any] | None = None, **options: Any) -> Runtime:
        runtime = make_runtime(json.dumps({"mcp_servers": servers, **(config or {})}), **options)
        runtime.load()
        assert await runtime.mcp.wait_ready(LIMIT_SECONDS)
        return runtime

    return make


@pytest.fixture
def http_server() -> Iterator[Callable[..., Any]]:
    """Starts the SDK's server on a free port; gives its address, and the process to end it with."""
    with ExitStack() as started:

        def start(port: int = 0, kind: str = "mcp") -> tuple[str, subprocess.Popen[bytes], int]:
            port = port or free_port()
            program = SDK if kind in ("mcp", "sse") else RAW_HTTP
            command = [sys.executable, str(program), str(port), kind]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            started.callback(process.wait)
            started.callback(process.kill)
            end = time.monotonic() + LIMIT_SECONDS
            while time.monotonic() < end:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        return f"http://127.0.0.1:{port}/{kind}", process, port
                time.sleep(0.05)
            raise AssertionError("the server did not start")

        yield start
