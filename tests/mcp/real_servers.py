"""Servers for tests, and what tests of them wait for."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SERVERS = Path(__file__).parent / "servers"
RAW = SERVERS / "raw_server.py"
RAW_HTTP = SERVERS / "raw_http.py"
SDK = SERVERS / "sdk_server.py"
LIMIT_SECONDS = 40.0


def raw(**options: Any) -> dict[str, Any]:
    """The settings of a server that does wrong what the options say; everything else may be set beside them."""
    settings = {name: options.pop(name) for name in list(options) if name in SETTINGS}
    return {"command": sys.executable, "args": ["-S", "-E", str(RAW), json.dumps(options)], "trust": "all", **settings}


SETTINGS = frozenset(
    ("trust trusted_tools timeout connect_timeout env cwd supports_parallel_tool_calls max_parallel enabled "  # noqa: SIM905
     "idle_timeout_seconds max_lifetime_seconds").split()
)  # fmt: skip


def sdk(**settings: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SDK)], "trust": "all", **settings}


ERAS = {"2025-11-25": SERVERS / "raw_asking.py", "2026-07-28": SERVERS / "sdk_asking.py"}
"""Servers that ask their client for what they are told to."""
# The server of the newer one has the SDK behind it, which takes two seconds to start.
EVERY_ERA = pytest.mark.parametrize("era", ["2025-11-25", pytest.param("2026-07-28", marks=pytest.mark.services)])


def asking(era: str, **settings: Any) -> dict[str, Any]:
    """The settings of a server that asks its client; the tool `ask` has it send `method` and `params`."""
    return {"command": sys.executable, "args": [str(ERAS[era])], "trust": "all", **settings}


async def answer_to(runtime: Any, method: str, params: dict[str, Any] | None = None, **call: Any) -> Any:
    """What a server `s` is told when it asks this of us; an error has a key `error`, whatever the era."""
    result = await runtime.call("mcp__s__ask", {"method": method, "params": params or {}}, **call)
    told = json.loads(result.text)
    return json.loads(told["result"]) if "result" in told else told


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


async def eventually(holds: Callable[[], Any], seconds: float = LIMIT_SECONDS) -> Any:
    """What `holds` gives as soon as that is true; fails when it never is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"it never came true within {seconds:g} seconds")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def text_of(result: Any) -> Any:
    """What a tool answered, out of the JSON around it."""
    return json.loads(result.text).get("result")
