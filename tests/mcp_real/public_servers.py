"""The public reference servers, as `scripts/test-services up` installs them, and what is done with each of them."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import toolcrib

STATE_FILE = Path(__file__).parents[2] / ".services" / "env"
SOURCE = Path(toolcrib.__file__).parents[1]
LIMIT_SECONDS = 90.0
TOKEN = "a-token-that-only-tests-know"
PAGE = b"<html><head><title>Orchard</title></head><body><h1>Orchard</h1><p>Seven pears.</p></body></html>"
ZONES = {"source_timezone": "Asia/Tokyo", "time": "09:30", "target_timezone": "Europe/Berlin"}

Use = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a tool of a server by the server's own name; gives its answer, out of the JSON around it."""
Play = Callable[[Use, Path], Awaitable[None]]


class Programs(NamedTuple):
    """Where the programs are."""

    node: str
    servers: Path
    inspector_before: Path
    python_servers: Path

    def settings(self, server: str, folder: Path) -> dict[str, Any]:
        """How a server is reached over stdio; `folder` is the one that it may work in."""
        command, *arguments = self.command(server, folder)
        # Where a client names its roots, this one forgets the folder that it was started with.
        more = {"roots": [str(folder)]} if server == "filesystem" else {}
        env = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")} if server == "memory" else {}
        return {"command": command, "args": arguments, "env": env, "cwd": str(folder), "trust": "all", **more}

    def prepare(self, server: str, folder: Path) -> dict[str, Any]:
        """The same, after the folder was filled with what the server wants to find when it starts."""
        if server == "git":
            _git(folder, "init", "--quiet", "--initial-branch", "main")
            _git(folder, "config", "user.name", "Ada")
            _git(folder, "config", "user.email", "ada@localhost")
            (folder / "list.txt").write_text("pears\n")
            _git(folder, "add", "list.txt")
            _git(folder, "commit", "--quiet", "--message", "Begin")
        return self.settings(server, folder)

    def command(self, server: str, folder: Path) -> list[str]:
        script, python = str(self.servers / f"mcp-server-{server}"), str(self.python_servers / f"mcp-server-{server}")
        return {
            "everything": [self.node, script, "stdio"],
            "filesystem": [self.node, script, str(folder)],
            "memory": [self.node, script],
            "sequential-thinking": [self.node, script],
            "git": [python, "--repository", str(folder)],
            "time": [python, "--local-timezone", "UTC"],
            "fetch": [python, "--ignore-robots-txt", "--allow-private-ips"],
        }[server]


def programs() -> Programs:
    """Skips where they are not installed."""
    lines = STATE_FILE.read_text().splitlines() if STATE_FILE.exists() else []
    told = dict(shlex.split(line)[0].split("=", 1) for line in lines if line)
    names = ("NODE", "SERVERS", "INSPECTOR_BEFORE", "PYTHON_SERVERS")
    found = [told.get(f"TOOLCRIB_TEST_MCP_{name}", "") for name in names]
    if not all(Path(place).exists() and place for place in found):
        pytest.skip("no public MCP servers: run scripts/test-services up")
    return Programs(found[0], *map(Path, found[1:]))


# What is done with each


async def use_filesystem(use: Use, folder: Path) -> None:
    """Writes, reads, edits, lists and moves files that are really there."""
    note = folder / "note.txt"
    await use("write_file", {"path": str(note), "content": "one\ntwo\n"})
    read = await use("read_text_file", {"path": str(note)})
    edit = {"path": str(note), "edits": [{"oldText": "two", "newText": "three"}]}
    await use("edit_file", edit)
    listed = await use("list_directory", {"path": str(folder)})
    await use("move_file", {"source": str(note), "destination": str(folder / "moved.txt")})
    outside = await use("read_text_file", {"path": "/etc/hostname"})

    assert "one\ntwo" in read["result"]
    assert "[FILE] note.txt" in listed["result"]
    assert (folder / "moved.txt").read_text() == "one\nthree\n"
    assert "outside" in outside["error"]


async def use_memory(use: Use, folder: Path) -> None:
    """Makes a graph, finds it again, and sees it in its file."""
    entities = [
        {"name": name, "entityType": "person", "observations": [f"{name} likes pears"]} for name in ("Ada", "Grace")
    ]
    await use("create_entities", {"entities": entities})
    await use("create_relations", {"relations": [{"from": "Ada", "to": "Grace", "relationType": "knows"}]})
    graph = (await use("read_graph", {}))["structuredContent"]
    found = (await use("search_nodes", {"query": "Grace likes"}))["structuredContent"]

    assert {entity["name"] for entity in graph["entities"]} == {"Ada", "Grace"}
    assert [relation["relationType"] for relation in graph["relations"]] == ["knows"]
    assert [entity["name"] for entity in found["entities"]] == ["Grace"]
    assert "Ada" in (folder / "memory.jsonl").read_text()


async def use_thinking(use: Use, folder: Path) -> None:
    """Thinks in two steps that the server counts."""
    for number in (1, 2):
        step = {"thought": f"step {number}", "thoughtNumber": number, "totalThoughts": 2}
        answer = await use("sequentialthinking", {**step, "nextThoughtNeeded": number == 1})

    said = answer["structuredContent"]
    assert (said["thoughtNumber"], said["nextThoughtNeeded"], said["thoughtHistoryLength"]) == (2, False, 2)


async def use_git(use: Use, folder: Path) -> None:
    """Looks at a change, commits it, and finds the commit in the log."""
    (folder / "list.txt").write_text("pears\nplums\n")
    place = {"repo_path": str(folder)}
    status = await use("git_status", place)
    diff = await use("git_diff_unstaged", place)
    await use("git_add", {**place, "files": ["list.txt"]})
    await use("git_commit", {**place, "message": "Add plums"})
    log = await use("git_log", {**place, "max_count": 5})

    assert "list.txt" in str(status["result"])
    assert "+plums" in str(diff["result"])
    assert "Add plums" in str(log["result"])
    assert _git(folder, "log", "--format=%s") == "Add plums\nBegin\n"


async def use_time(use: Use, folder: Path) -> None:
    """Says what time it is, and what time that is elsewhere."""
    now = await use("get_current_time", {"timezone": "UTC"})
    converted = await use("convert_time", ZONES)
    unknown = await use("get_current_time", {"timezone": "Nowhere/Land"})

    assert time.strftime("%Y-%m", time.gmtime()) in str(now["result"])
    assert "T09:30" in str(converted["result"])
    assert "Europe/Berlin" in str(converted["result"])
    assert "error" in unknown


async def use_fetch(use: Use, folder: Path) -> None:
    """Gets a page of this machine, as text and as it is."""
    with page() as address:
        simplified = await use("fetch", {"url": address})
        raw = await use("fetch", {"url": address, "raw": True})
        missing = await use("fetch", {"url": f"{address}missing"})

    assert "Seven pears." in simplified["result"]
    assert "<p>Seven pears.</p>" in raw["result"]
    assert "404" in missing["error"]


PLAYS: dict[str, Play] = {
    "filesystem": use_filesystem,
    "memory": use_memory,
    "sequential-thinking": use_thinking,
    "git": use_git,
    "time": use_time,
    "fetch": use_fetch,
}


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(("git", *words), cwd=folder, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path == "/"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE if found else b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@contextmanager
def page() -> Iterator[str]:
    """A page on loopback; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


# Processes


def served_environ(home: Path) -> dict[str, str]:
    """The environment of a `toolcrib` with this home."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "TOOLCRIB_HOME": str(home), "PYTHONPATH": str(SOURCE), "SERVE_TOKEN": TOKEN}


def descendants(pid: int) -> list[int]:
    """All processes under one, itself not counted."""
    found: list[int] = []
    parents = {child: parent for child, parent in _parents() if parent}
    for child in parents:
        above = parents.get(child)
        while above is not None and above != pid:
            above = parents.get(above)
        if above == pid:
            found.append(child)
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                yield int(place.name), int(fields[1])


def own_children() -> set[int]:
    return set(descendants(os.getpid()))


async def eventually(holds: Callable[[], Any], what: str) -> Any:
    """What `holds` gives as soon as that is true; fails when it never is."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        if found := holds():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"it never came to this: {what}")


def answer_of(result: Any) -> Any:
    """What a tool answered, as JSON."""
    return json.loads(result.text)
