"""An MCP server that wants a login, for tests, and the browser of the person who logs in."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

PROGRAM = Path(__file__).parent / "mcp" / "servers" / "oauth_site.py"
START_SECONDS = 40.0


@dataclass(frozen=True)
class Site:
    """The two servers of `oauth_site.py`."""

    mcp_port: int
    login_port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.mcp_port}/mcp"

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"url": self.url, "auth": "oauth", "trust": "all", **more}

    def change(self, **wanted: Any) -> None:
        """Let the servers behave in another way from now on."""
        httpx2.post(f"http://127.0.0.1:{self.login_port}/admin", json=wanted).raise_for_status()

    def saw(self) -> dict[str, Any]:
        """What the servers have been asked so far."""
        found: dict[str, Any] = httpx2.get(f"http://127.0.0.1:{self.login_port}/admin").json()
        return found


@contextlib.contextmanager
def started_site() -> Iterator[Site]:
    ports = [_free_port(), _free_port()]
    command = [sys.executable, str(PROGRAM), *map(str, ports)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_SECONDS
        while not all(map(_is_open, ports)):
            assert time.monotonic() < end, "the servers did not start"
            assert process.poll() is None, "the servers ended"
            time.sleep(0.05)
        yield Site(*ports, process)
    finally:
        process.kill()
        process.wait()


async def follow(address: str) -> str:
    """What a browser does: goes to the address, and gives the one that it is sent back to."""
    async with httpx2.AsyncClient() as browser:
        response = await browser.get(address)
    assert response.status_code == 302, response.text
    return str(response.headers["location"])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
