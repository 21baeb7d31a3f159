"""MCP Inspector, in two generations, as a client of `toolcrib mcp serve`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_real.public_servers import LIMIT_SECONDS, TOKEN, Programs, eventually, own_children, served_environ

pytestmark = pytest.mark.services
BOTH = pytest.mark.parametrize("generation", ["2.12.0", "0.22.0"])


async def inspect(public: Programs, generation: str, folder: Path, *words: str) -> Any:
    """What the Inspector prints, as JSON."""
    code, said, complained = await run_inspector(public, generation, folder, *words)
    assert code == 0, complained
    return json.loads(said)


async def run_inspector(public: Programs, generation: str, folder: Path, *words: str) -> tuple[int | None, str, str]:
    """How the Inspector ends, and what it says on each of its streams."""
    scripts = public.servers if generation.startswith("2") else public.inspector_before
    environ = {**served_environ(folder), "HOME": str(folder), "PATH": f"{Path(public.node).parent}:/usr/bin:/bin"}
    process = await asyncio.create_subprocess_exec(
        *(public.node, str(scripts / "mcp-inspector"), "--cli", *words),
        env=environ,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, said.decode(), complained.decode()


def over_stdio(home: Path, folder: Path) -> list[str]:
    serve = ("-m", "toolcrib", "mcp", "serve", "--toolsets", "file,terminal", "--workspace", str(folder))
    environ = served_environ(home)
    variables = [word for name in ("TOOLCRIB_HOME", "PYTHONPATH") for word in ("-e", f"{name}={environ[name]}")]
    return [*variables, sys.executable, *serve]


@BOTH
async def test_lists_and_calls_over_stdio(public: Programs, home: Path, folder: Path, generation: str) -> None:
    """The Inspector starts the program, lists its tools and calls them; nothing is left running."""
    (folder / "pears.txt").write_text("seven pears\n")
    before = own_children()
    target = over_stdio(home, folder)

    listed = await inspect(public, generation, folder, *target, "--method", "tools/list")
    read = await inspect(
        *(public, generation, folder, *target),
        *("--method", "tools/call", "--tool-name", "read_file", "--tool-arg", "path=pears.txt"),
    )

    tools = {tool["name"]: tool for tool in listed["tools"]}
    assert {"read_file", "terminal"} <= set(tools)
    assert tools["read_file"]["inputSchema"]["type"] == "object"
    assert "seven pears" in read["content"][0]["text"]
    await eventually(lambda: own_children() <= before, "no process is left")


@BOTH
async def test_lists_and_calls_over_http(
    public: Programs, serve_http: Callable[..., Any], folder: Path, generation: str
) -> None:
    """With the token in a header, the Inspector lists and calls tools over HTTP."""
    url = await serve_http({}, "--toolsets", "terminal")
    target = [url, "--transport", "http", "--header", f"Authorization: Bearer {TOKEN}"]

    listed = await inspect(public, generation, folder, *target, "--method", "tools/list")
    ran = await inspect(
        *(public, generation, folder, *target),
        *("--method", "tools/call", "--tool-name", "terminal", "--tool-arg", "command=echo $((6 * 7))"),
    )

    assert "terminal" in {tool["name"] for tool in listed["tools"]}
    assert ran["structuredContent"]["output"].strip() == "42"


@BOTH
async def test_without_the_token_nothing_is_told(
    public: Programs, serve_http: Callable[..., Any], folder: Path, generation: str
) -> None:
    """Without the token the Inspector is turned away."""
    url = await serve_http({}, "--toolsets", "terminal")

    words = ("--transport", "http", "--method", "tools/list")
    code, said, complained = await run_inspector(public, generation, folder, url, *words)

    assert code not in (0, None)
    assert '"tools"' not in said
    assert "auth_required" in complained or "requires its token" in complained, complained
