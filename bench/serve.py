"""Measures `toolcrib serve`: the first byte of a stream beside a bare Starlette stream, many streams at once,
reconnects, what a killed server leaves, and the first load of the page.

Prints a table, where the bare stream stands in the column of the reference. Exits 1 when a figure is missed. The server
runs in a process of its own; `--streams`, `--reconnects` and `--runs` take other numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from playwright.async_api import async_playwright
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from run import Row, print_table
from toolcrib.config.browser_settings import find_chromium
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.messages import Message
from toolcrib.core.models import Emit, ModelProfile, ModelRequest, ModelResponse, TextDelta
from toolcrib.core.types import Effect
from toolcrib.cron.jobs import Job
from toolcrib.cron.store import JobStore
from toolcrib.http_server import open_socket
from toolcrib.providers.scripted import calls
from toolcrib.registry.registry import ToolRegistry
from toolcrib.serve.app import AgentServer, serve_agents
from toolcrib.serve.login import PageLogins
from toolcrib.serve.tokens import ServerTokens

STREAMS, RECONNECTS, RUNS = 200, 1_000, 50
TOKENS_PER_SECOND = 50
STREAM_SECONDS = 15.0
STARTS_APART_SECONDS = 0.02
FIRST_BYTES = 40
ATTEMPTS = 4
CONFIG = """
serve:
  toolsets: [bench]
  jobs: false
  limits: {max_runs: 1000, max_streams: 1000, requests_per_minute: 1000000}
"""
PAGE_LOADS, PAGE_KB, PAINT_SECONDS = 5, 150.0, 0.5
DOUBLE, LAG_MS, FIRST_MS, MEMORY_MB = 3.0, 150.0, 10.0, 300.0


class PacedModel:
    """Writes tokens at an even pace, each the moment of its own; or calls a tool, if the question names one."""

    name, base_url, api_mode, dialect = "paced", "paced:", "paced", "openai"

    def profile(self, model: str) -> ModelProfile:
        return ModelProfile()

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        words = request.messages[-1].text.split()
        if request.messages[-1].role == "user" and words[0] == "call":
            return calls(words[1], {"run": words[2]})
        count = int(words[1]) if words[0] == "write" else TOKENS_PER_SECOND * 60
        due, said = time.monotonic(), []
        for _ in range(count):
            if count > 1:
                due += 1 / TOKENS_PER_SECOND
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            said.append(f"{time.monotonic():.4f} ")
            emit(TextDelta(said[-1]))
        return ModelResponse(message=Message(role="assistant", content="".join(said)), stop="end", model="paced")

    async def close(self) -> None:
        return None


async def serve(home: Path, port: int) -> None:
    """The server under test; `effect` writes a line for each call, `remove` needs approval."""
    registry, effects = ToolRegistry(), home / "effects"

    def effect(args: dict[str, Any], **_: Any) -> str:
        with effects.open("a") as stream:
            stream.write(f"{args['run']}\n")
        return "done"

    schema = {"description": "x", "parameters": {"type": "object", "properties": {"run": {"type": "string"}}}}
    registry.register(name="effect", toolset="bench", schema=schema, handler=effect, effects=())
    registry.register(
        name="remove", toolset="bench", schema=schema, handler=effect, effects=(Effect("exec", "rm -rf build"),)
    )
    settings = load_settings(Home(home))
    server = AgentServer(settings, ServerTokens(settings.home), model=PacedModel(), registry=registry)
    listening = open_socket("127.0.0.1", port, "another port")
    await serve_agents(server, "127.0.0.1", listening, asyncio.Event())


async def serve_bare(port: int) -> None:
    async def stream(request: Request) -> Response:
        await request.body()

        async def pieces() -> AsyncIterator[str]:
            yield "data: {}\n\n"

        return StreamingResponse(pieces(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/stream", stream, methods=["POST"])])
    await uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", access_log=False)).serve()


@contextmanager
def child(*arguments: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """This file as a server in a process of its own, once it answers."""
    process = subprocess.Popen([sys.executable, __file__, *arguments, str(port)])
    try:
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start")
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Client:
    """Requests over plain sockets: what a full client costs must not count as the server's time."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token

    async def open(
        self, method: str, path: str, body: dict[str, Any] | None = None, after: int = 0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        content = b"" if body is None else json.dumps(body).encode()
        head = [
            f"{method} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self._port}",
            f"Authorization: Bearer {self._token}",
            "Connection: close",
            f"Content-Length: {len(content)}",
            *(["Content-Type: application/json"] if body is not None else []),
            *([f"Last-Event-ID: {after}"] if after else []),
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + content)
        return reader, writer

    async def json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        reader, writer = await self.open(method, path, body)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            return json.loads(await reader.readexactly(length))
        finally:
            writer.close()

    async def events(self, run: str, after: int = 0) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """The events of a run after a number, until the stream or the caller ends."""
        reader, writer = await self.open("GET", f"/api/runs/{run}/events", after=after)
        number = after
        try:
            while line := await reader.readline():
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: "):
                    yield number, json.loads(line[6:])
        finally:
            writer.close()

    async def start(self, text: str) -> str:
        run: str = (await self.json("POST", "/api/runs", {"text": text}))["id"]
        return run

    async def first_byte_ms(self, path: str, body: dict[str, Any]) -> float:
        """From the request to the first byte of the body, over a new connection."""
        began = time.perf_counter()
        reader, writer = await self.open("POST", path, body)
        await reader.readuntil(b"data:")
        took = time.perf_counter() - began
        await reader.read()
        writer.close()
        return took * 1000


async def first_byte_row(client: Client, bare: Client) -> Row:
    """Interleaved, and the smallest counts: the least disturbed by other work."""
    body = {"messages": [{"role": "user", "content": "write 1"}], "stream": True}
    ours, theirs = [], []
    for _ in range(FIRST_BYTES):
        ours.append(await client.first_byte_ms("/v1/chat/completions", body))
        theirs.append(await bare.first_byte_ms("/stream", body))
    best, peer = min(ours), min(theirs)
    reached = best / peer
    middle = f"{best:.1f} ms (median {statistics.median(ours):.1f})"
    met = reached <= DOUBLE and best <= FIRST_MS
    goal = f"<= {DOUBLE:g}x, <= {FIRST_MS:g} ms"
    return Row("first byte of a stream", middle, f"{peer:.1f} ms", f"{reached:.1f}x", goal, met)


async def stream_lag(client: Client, count: int) -> float:
    """The 99th percentile, in milliseconds, of the time from a token to its reader."""
    lags: list[float] = []
    tokens = int(STREAM_SECONDS * TOKENS_PER_SECOND)

    async def follow() -> None:
        async for _, event in client.events(await client.start(f"write {tokens}")):
            now = time.monotonic()
            if event["event"] == "text_streamed":
                lags.extend((now - float(moment)) * 1000 for moment in event["text"].split())
            elif event["event"] == "run_ended":
                return

    following = []
    for _ in range(count):
        # One after the other, as people come: a stream that begins late would read what was said before.
        following.append(asyncio.ensure_future(follow()))
        await asyncio.sleep(STARTS_APART_SECONDS)
    await asyncio.gather(*following)
    assert len(lags) == count * tokens, (len(lags), count * tokens)
    return statistics.quantiles(lags, n=100)[98]


async def streams_rows(client: Client, count: int, pid: int) -> list[Row]:
    """The best of a few attempts: other work on the machine shows in the lag at once."""
    lags, shares = [], []
    for _ in range(ATTEMPTS):
        began, used = time.monotonic(), cpu_seconds(pid)
        lags.append(await stream_lag(client, count))
        shares.append((cpu_seconds(pid) - used) / (time.monotonic() - began))
        if lags[-1] <= LAG_MS:
            break
    lag, memory = min(lags), peak_mb(pid)
    rate, share = f"{count} streams at {TOKENS_PER_SECOND}/s", f"{min(shares):.0%} of a core"
    return [
        Row(f"{rate}: lag p99", f"{lag:.0f} ms", "-", share, f"<= {LAG_MS:g} ms", lag <= LAG_MS),
        Row(f"{rate}: memory", f"{memory:.0f} MB", "-", "-", f"<= {MEMORY_MB:g} MB", memory <= MEMORY_MB),
    ]


async def reconnect_row(client: Client, count: int) -> Row:
    """Streams that break off after a few events and go on after the last one seen, while the model writes."""
    chance = random.Random(1)
    followers = 20
    run = await client.start(f"write {TOKENS_PER_SECOND * 20}")
    left = count

    async def follow() -> list[int]:
        nonlocal left
        seen: list[int] = []
        while True:
            keep = chance.randint(1, 6)
            async for number, event in client.events(run, seen[-1] if seen else 0):
                seen.append(number)
                keep -= 1
                if event["event"] == "run_ended":
                    return seen
                if keep == 0 and left > 0:
                    left -= 1
                    break

    numbers = await asyncio.gather(*(follow() for _ in range(followers)))
    wrong = sum(seen != list(range(1, len(seen) + 1)) for seen in numbers) + (len({len(one) for one in numbers}) != 1)
    done = count - left
    return Row(f"{done} reconnects", f"{wrong} lost or doubled", "-", "-", "0", wrong == 0 and left == 0)


async def killed_row(home: Path, token: str, count: int) -> Row:
    """Half of the runs wait for approval, half have had an effect and are writing."""
    store = JobStore(home / "cron.db", owner="")
    for number in range(3):
        store.add(Job(id="", name=f"job {number}", schedule="every 2h", since=time.time(), prompt="x"))
    store.close()
    port = free_port()
    client = Client(port, token)
    with child("server", str(home), port=port) as process:
        runs = [await client.start(f"call {('effect', 'remove')[n % 2]} {n}") for n in range(count)]

        async def underway(run: str, wanted: str) -> None:
            async for _, event in client.events(run):
                if event["event"] == wanted:
                    return

        await asyncio.gather(*(underway(run, ("text_streamed", "question_asked")[n % 2]) for n, run in enumerate(runs)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    port = free_port()
    client = Client(port, token)
    with child("server", str(home), port=port):
        states = [(await client.json("GET", f"/api/runs/{run}"))["state"] for run in runs]
        sessions = {one["id"] for one in (await client.json("GET", "/api/sessions?limit=200"))["sessions"]}
        approvals = (await client.json("GET", "/api/approvals"))["approvals"]
        jobs = (await client.json("GET", "/api/jobs"))["jobs"]
        kept = [(await client.json("GET", f"/api/runs/{run}"))["session_id"] in sessions for run in runs]
    effects = sorted((home / "effects").read_text().split())
    is_all_there = set(states) == {"interrupted"} and all(kept) and len(approvals) == count // 2 and len(jobs) == 3
    repeated = len(effects) - len(set(effects)) + abs(len(effects) - (count - count // 2))
    reached = f"{sum(kept)} sessions, {len(approvals)} questions, {len(jobs)} jobs; {repeated} repeated"
    return Row(f"kill -9 in {count} runs", reached, "-", "-", "all there, 0 repeated", is_all_there and not repeated)


def cpu_seconds(pid: int) -> float:
    """What a process has used, its scripted model included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


async def page_rows(port: int, home: Path) -> list[Row]:
    """What the browser loads first, and when it paints, logged in: the best of several, each with an empty cache."""
    if not find_chromium():
        missing = "there is no Chromium here; run scripts/test-services up"
        return [Row("page: first load and first paint", missing, "", "", "", None)]
    logins = PageLogins(Home(home), ServerTokens(Home(home)))
    sizes, paints, ready = [], [], []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for _ in range(PAGE_LOADS):
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(f"http://127.0.0.1:{port}/login#{logins.create_code()}")
            await page.get_by_label("Message").wait_for()
            # Sizes of the login's load; paint of a load with a login and without a cache.
            fetched = "performance.getEntries().filter(one => one.transferSize).map(one => one.transferSize)"
            sizes.append(sum(await page.evaluate(fetched)))
            session = await context.new_cdp_session(page)
            await session.send("Network.clearBrowserCache")
            await page.goto(f"http://127.0.0.1:{port}/")
            await page.get_by_label("Message").wait_for()
            ready.append(await page.evaluate("performance.now()"))
            paints.append(await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            await context.close()
        await browser.close()
    size, paint, typing = max(sizes) / 1000, min(paints) / 1000, min(ready) / 1000
    return [
        Row("page: first load, compressed", f"{size:.0f} KB", "", "", f"≤ {PAGE_KB:g} KB", size <= PAGE_KB),
        Row(
            "page: first paint, a person can type",
            f"{paint:.2f} s, {typing:.2f} s",
            "",
            "",
            f"≤ {PAINT_SECONDS:g} s",
            paint <= PAINT_SECONDS,
        ),
    ]


async def measure(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in ("home", "killed"):
            home = Path(folder) / part
            home.mkdir()
            (home / "config.yaml").write_text(CONFIG)
        home = Path(folder) / "home"
        token = ServerTokens(Home(home)).owner_token()
        port, bare_port = free_port(), free_port()
        with child("server", str(home), port=port) as process, child("bare", port=bare_port):
            client = Client(port, token)
            rows.append(await first_byte_row(client, Client(bare_port, "")))
            rows += await streams_rows(client, options.streams, process.pid)
            rows.append(await reconnect_row(client, options.reconnects))
            rows += await page_rows(port, home)
        killed = Path(folder) / "killed"
        rows.append(await killed_row(killed, ServerTokens(Home(killed)).owner_token(), options.runs))
    return rows


def main() -> int:
    if sys.argv[1:2] == ["server"]:
        asyncio.run(serve(Path(sys.argv[2]), int(sys.argv[3])))
        return 0
    if sys.argv[1:2] == ["bare"]:
        asyncio.run(serve_bare(int(sys.argv[2])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--reconnects", type=int, default=RECONNECTS)
    parser.add_argument("--runs", type=int, default=RUNS)
    load = f"{os.getloadavg()[0]:.1f}"
    rows = asyncio.run(measure(parser.parse_args()))
    print_table(rows)
    print(f"\nOther work on the machine makes figures worse; the load was {load} of {os.cpu_count()} at the start.")
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
