"""Our own search, as the process that it runs in is seen from here: started, fed, read, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolcrib.environments.host_process import HostProcess, spawn_on_host
from toolcrib.files.search_query import Outcome, Query, from_json

GRACE_SECONDS = 2.0
"""How much longer than it may the process gets to say what it found."""
PAGE_SECONDS = 10.0
"""After this long a search whose page is full goes no further."""
PACKAGES = str(Path(__file__).resolve().parents[2])
START = f"import sys; sys.path.insert(0, {PACKAGES!r}); from toolcrib.files.search_worker import main; main()"
PROGRAM = (sys.executable, "-I", "-S", "-X", "utf8", "-c", START)

Send = Callable[[bytes], Awaitable[None]]
Feed = Callable[[Send], Awaitable[None]]
"""Sends archives to the process, one call for each; returns when there are no more."""


async def search(query: Query, folder: str, *, only: str = "", seconds: float, feed: Feed | None = None) -> Outcome:
    """What our own walk finds in a folder of this machine, or in the archives that `feed` sends."""
    request = {
        "query": asdict(query),
        "root": folder,
        "only": only,
        "archive": feed is not None,
        "seconds": seconds,
        "page_seconds": min(PAGE_SECONDS, seconds),
    }
    output = bytearray()
    in_time = True
    async with _started(output) as process:
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                with contextlib.suppress(BrokenPipeError):  # it may know enough before it has read everything
                    await _send(process, request, feed)
                await process.wait()
        except TimeoutError:
            in_time = False  # it hangs in one line of one file
    return _outcome(bytes(output), in_time=in_time)


def _outcome(output: bytes, *, in_time: bool) -> Outcome:
    messages = list(_messages(output))
    last: dict[str, Any] = {"ending": "lost" if in_time else "time"}
    if messages and "ending" in messages[-1]:
        last = messages.pop()
    whole = last["ending"] == "done"
    return Outcome(
        engine="walk",
        ending=last["ending"],
        found=tuple(map(from_json, messages)),
        total=last["seen"] if whole else None,
        total_matches=last["matches"] if whole else None,
        unreadable=last.get("unreadable", 0),
        too_large=last.get("too_large", 0),
    )


def _messages(output: bytes) -> list[dict[str, Any]]:
    messages = []
    for line in output.split(b"\n"):
        try:
            messages.append(json.loads(line))
        except ValueError:
            continue  # the last line, cut short; or the complaint of an interpreter that could not start
    return messages


@contextlib.asynccontextmanager
async def _started(output: bytearray) -> AsyncIterator[HostProcess]:
    process = await spawn_on_host(PROGRAM, on_output=output.extend, environ={})
    try:
        yield process
    finally:
        if not process.has_ended:
            process.signal_session(signal.SIGKILL)
            await process.wait()
        await process.abandon()


async def _send(process: HostProcess, request: dict[str, Any], feed: Feed | None) -> None:
    async def send(archive: bytes) -> None:
        await process.write(len(archive).to_bytes(8, "big") + archive)

    await process.write(json.dumps(request).encode() + b"\n")
    if feed is not None:
        await feed(send)
    await process.close_input()
