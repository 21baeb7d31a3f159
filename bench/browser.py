"""Measures the browser tools beside bare playwright in the same run, and our memory over many pages.

Prints a table; exits 1 when a figure misses its goal. Pages come from a server on loopback in another process. Both
sides do the same work: a navigation or a click, and then a snapshot to know the outcome. The driver runs already.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from playwright.async_api import Playwright, async_playwright

from toolcrib.config.browser_settings import find_chromium
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime
from toolcrib.tools.browser import browser_navigate  # noqa: F401 - registers the tools

FRESH_ROUNDS, ROUNDS = 7, 40
MAX_FIRST, MAX_ACT, MAX_SNAPSHOT = 1.2, 1.3, 1.3
NAVIGATIONS, SETTLED_AT = 1_000, 200
MAX_GROWTH_MB = 10.0
ROW = "<p>Row {n} of a list with <a href='#{n}'>a link</a> and <button onclick='document.title={n}'>button {n}</button>"
PAGE = "<!doctype html><title>Bench</title><h1>A page</h1>" + "".join(ROW.format(n=n) for n in range(60))
ARGUMENTS = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]


def main() -> int:
    if not find_chromium():
        print("there is no Chromium here; run scripts/test-services up")
        return 0
    with tempfile.TemporaryDirectory() as home, _Server() as address:
        config = json.dumps({"security": {"allow_private_urls": True}})
        with isolated_runtime(Path(home) / "home", config, registry=ToolRegistry(parent=default_registry)) as runtime:
            return asyncio.run(measure(runtime, address))


async def measure(runtime: Runtime, address: str) -> int:
    ours, bare = _Ours(runtime, address), _Bare(address)
    async with async_playwright() as driver:
        bare.driver = driver
        # The first one starts the driver and fills the caches of the disk.
        await ours.first()
        await bare.first()
        first = await _alternate(ours.first, bare.first, FRESH_ROUNDS)
        acts = await _alternate(ours.act, bare.act, ROUNDS)
        snapshots = await _alternate(ours.snapshot, bare.snapshot, ROUNDS)
        await bare.close()
    missed = _show("first navigate on a fresh session", first, MAX_FIRST)
    missed |= _show("later act (click, then the page)", acts, MAX_ACT)
    missed |= _show("snapshot", snapshots, MAX_SNAPSHOT)
    growth = await _growth(ours)
    grew = f"grew by {growth:.1f} MB after the first {SETTLED_AT} (goal ≤ {MAX_GROWTH_MB:g})"
    print(f"{NAVIGATIONS} navigations: our memory {grew}")
    return int(missed or growth > MAX_GROWTH_MB)


class _Ours:
    def __init__(self, runtime: Runtime, address: str) -> None:
        self._runtime = runtime
        self._address = address
        self._sessions = 0

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        context = self._runtime.context(session_id=f"session-{self._sessions}")
        answer = json.loads((await self._runtime.call(f"browser_{tool}", arguments, ctx=context)).text)
        assert "error" not in answer, answer
        return dict(answer)

    async def first(self) -> float:
        """The seconds of a navigation in a session without a browser; the one before is closed outside the clock."""
        await self._runtime.services.end_session(f"session-{self._sessions}")
        self._sessions += 1
        return await _timed(self.call("navigate", url=self._address))

    async def act(self) -> float:
        return await _timed(self.call("click", ref="e8"))

    async def snapshot(self) -> float:
        return await _timed(self.call("snapshot"))

    async def navigate(self) -> None:
        await self.call("navigate", url=self._address)


class _Bare:
    driver: Playwright

    def __init__(self, address: str) -> None:
        self._address = address
        self._browser: Any = None

    async def first(self) -> float:
        await self.close()
        return await _timed(self._open())

    async def _open(self) -> None:
        self._browser = await self.driver.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        context = await self._browser.new_context()
        self._page = await context.new_page()
        await self._page.goto(self._address)
        await self._page.aria_snapshot(mode="ai")

    async def act(self) -> float:
        return await _timed(self._click())

    async def _click(self) -> None:
        await self._page.get_by_ref("e8").click()
        await self._page.aria_snapshot(mode="ai")

    async def snapshot(self) -> float:
        return await _timed(self._page.aria_snapshot(mode="ai"))

    async def close(self) -> None:
        if self._browser is not None:
            await self._browser.close()


async def _timed(work: Awaitable[Any]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def _alternate(
    ours: Callable[[], Awaitable[float]], bare: Callable[[], Awaitable[float]], rounds: int
) -> tuple[list[float], list[float]]:
    """Both in turns, so that a busy machine slows both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[0].append(await ours())
        times[1].append(await bare())
    return times


def _show(what: str, times: tuple[list[float], list[float]], goal: float) -> bool:
    ours, bare = (statistics.median(one) for one in times)
    ratio = ours / bare
    print(
        f"{what:36} ours {ours * 1_000:7.1f} ms  playwright {bare * 1_000:7.1f} ms  ratio {ratio:.2f} (goal ≤ {goal})"
    )
    return ratio > goal


async def _growth(ours: _Ours) -> float:
    """How many megabytes our process grew after it had settled."""
    settled = 0.0
    for number in range(NAVIGATIONS):
        if number == SETTLED_AT:
            settled = _memory_mb()
        await ours.navigate()
    return _memory_mb() - settled


def _memory_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))) / 1_024


class _Server:
    """The page on a free port of 127.0.0.1, in a process of its own so that its cost is not ours."""

    def __enter__(self) -> str:
        ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=self._serve, args=(theirs,), daemon=True)
        self._process.start()
        return f"http://127.0.0.1:{ours.recv()}/"

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        self._process.join()

    def _serve(self, ready: Connection) -> None:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                body = PAGE.encode()
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        ready.send(server.server_port)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
