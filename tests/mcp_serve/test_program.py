"""`toolcrib mcp serve` as a process of its own: over its standard streams, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types import TextContent

from tests.mcp_serve.mcp_serving import (
    ERAS,
    LIMIT_SECONDS,
    TOKEN,
    Changes,
    Person,
    Web,
    eventually,
    is_running,
    program,
    started,
)

# Programs with the SDK behind them take a second or two to start.
pytestmark = pytest.mark.services

BOTH = pytest.mark.parametrize("era", ERAS)
NOISY_TOOL = """
import json, os, sys
from toolcrib.core.types import Effect
from toolcrib.registry import registry

print("a tool file that prints")
os.write(1, b"and writes to the descriptor\\n")
SCHEMA = {"description": "For tests.", "parameters": {"type": "object", "properties": {}}}

def noisy(args, *, ctx, **_):
    print("printed by a tool")
    os.write(1, b"written by a tool\\n")
    os.system("echo echoed by a child")
    ctx.progress("half")
    return json.dumps({"read": sys.stdin.read(), "session": ctx.session_id})

def shout(args, **_):
    return "loud"

def grow(args, **_):
    registry.register(name="grown", toolset="noise", handler=shout, schema=SCHEMA)
    return "ok"

registry.register(name="noisy", toolset="noise", handler=noisy, schema=SCHEMA)
registry.register(name="grow", toolset="noise", handler=grow, schema=SCHEMA)
registry.register(name="shout", toolset="noise", handler=shout, schema=SCHEMA, effects=(Effect("publish", "x"),))
"""


@pytest.fixture
def workspace(home: Path, tmp_path: Path) -> Path:
    (home / "tools").mkdir(parents=True)
    (home / "tools" / "noise.py").write_text(NOISY_TOOL)
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@BOTH
async def test_a_client_over_stdio(home: Path, workspace: Path, era: str) -> None:
    """Over stdio a client lists and calls tools, is asked, and hears of changes, whatever tools print."""
    person, changes = Person({"answer": "session"}), Changes()
    server = program(home, workspace, "--toolsets", "noise")

    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with Client(server, mode=era, elicitation_callback=person, message_handler=changes) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            noisy: Any = (await client.call_tool("noisy", {})).structured_content
            shouted = [await client.call_tool("shout", {}) for _ in range(2)]
            if era == "legacy":
                await client.call_tool("grow", {})
                await changes.heard.wait()
            else:
                async with client.listen(tools_list_changed=True) as events:
                    await client.call_tool("grow", {})
                    assert isinstance(await anext(aiter(events)), ToolsListChanged)
            grown = [tool.name for tool in (await client.list_tools()).tools]

    assert names == ["grow", "noisy", "shout"]
    assert noisy["read"] == ""
    assert [result.is_error for result in shouted] == [False, False]
    assert len(person.asked) == 1
    assert "grown" in grown


async def test_stdout_carries_nothing_but_the_protocol(home: Path, workspace: Path) -> None:
    """Every line on stdout is a message, though tools and their children print; what was asked is answered before
    the end of input ends the program."""
    requests = [
        _request(
            1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t", "version": "1"}
        ),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        "this is no message",
        _request(2, "tools/call", name="noisy", arguments={}),
    ]
    lines = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in requests)

    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, workspace) as process:
            stdout, stderr = await process.communicate(lines.encode())

    messages = [json.loads(line) for line in stdout.splitlines()]
    assert sorted(str(message.get("id")) for message in messages) == ["1", "2", "None"]
    assert next(message for message in messages if message.get("id") is None)["error"]["code"] == -32700
    assert b"echoed by a child" in stderr
    assert process.returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_ends_it_in_good_order(home: Path, workspace: Path, number: signal.Signals, code: int) -> None:
    """Stopped while a client is silent and a command runs, the program ends soon, and the command with it."""
    noted = workspace / "pid"
    command = f"echo $$ > {noted}.new; mv {noted}.new {noted}; sleep 600"
    requests = [
        _request(
            1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t", "version": "1"}
        ),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        _request(2, "tools/call", name="terminal", arguments={"command": command}),
    ]

    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, workspace) as process:
            assert process.stdin is not None
            process.stdin.write("".join(json.dumps(request) + "\n" for request in requests).encode())
            await process.stdin.drain()
            await eventually(noted.exists, "the command runs")
            process.send_signal(number)
            await process.wait()

    assert process.returncode == code
    assert not is_running(int(noted.read_text()))


@BOTH
async def test_a_client_over_http(home: Path, workspace: Path, era: str) -> None:
    """Over HTTP on a free port a client with the token of a variable calls tools; a signal ends the program."""
    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, workspace, "--http", "0", "--token-env", "MY_TOKEN", MY_TOKEN=TOKEN) as process:
            said = await _read_until(process, "Serving")
            url = next(word for word in said.split() if word.startswith("http")).rstrip(";")
            async with Web(url).client(era) as client:
                result = await client.call_tool("terminal", {"command": "pwd"})
                denied = await client.call_tool("shout", {})
            process.terminate()
            await process.wait()

    answer: Any = result.structured_content
    assert answer["output"].strip() == str(workspace)
    assert denied.is_error
    assert isinstance(denied.content[0], TextContent)
    assert "not allowed" in denied.content[0].text
    assert process.returncode == 0
    assert TOKEN not in said


async def test_a_token_is_made_where_none_is_given(home: Path, workspace: Path) -> None:
    """Without a token one is made and printed once, on stderr; it opens the door."""
    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, workspace, "--http", "0", "--policy", "allow") as process:
            said = await _read_until(process, "token:")
            url = next(word for word in said.split() if word.startswith("http")).rstrip(";")
            async with Web(url, token=said.rpartition("token: ")[2].strip()).client() as client:
                result = await client.call_tool("shout", {})
            process.terminate()
            stdout, _ = await process.communicate()

    assert not result.is_error
    assert b"token" not in stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--toolsets", "nosie"], "noise"),
        (["--token-env", "X"], "--http"),
        (["--http", "0", "--token-env", "NOT_SET"], "at least 16"),
        (["--http", "0", "--token-file", "a", "--token-env", "b"], "once"),
        (["--http", "0", "--token-file", "missing"], "missing"),
        (["--workspace", "nowhere"], "nowhere"),
        (["--http", "0", "--host", "no.such.host.invalid"], "127.0.0.1"),
    ],
)
async def test_what_cannot_be_served_is_said(home: Path, workspace: Path, arguments: list[str], said: str) -> None:
    """A wrong option ends the program at once, with one line that says what to do."""
    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, workspace, *arguments) as process:
            stdout, stderr = await process.communicate()

    complaint = [line for line in stderr.decode().splitlines() if line.startswith("toolcrib:")]
    assert process.returncode in (1, 2)
    assert len(complaint) == 1
    assert said in complaint[0]
    assert stdout == b""


async def test_toolsets_of_configured_servers_may_come_later(home: Path, workspace: Path) -> None:
    """The name of a server that is not connected yet is no unknown toolset."""
    (home / "config.yaml").write_text("mcp_servers:\n  later:\n    command: a-program-that-is-not-there\n")

    with anyio.fail_after(3 * LIMIT_SECONDS):
        async with started(home, workspace, "--toolsets", "noise,later,mcp-later") as process:
            stdout, stderr = await process.communicate(b"")

    assert (process.returncode, stdout) == (0, b"")
    assert b"unknown toolset" not in stderr


def _request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


async def _read_until(process: asyncio.subprocess.Process, word: str) -> str:
    assert process.stderr is not None
    said = ""
    while word not in said:
        line = await process.stderr.readline()
        assert line, f"it ended with: {said}"
        said += line.decode()
    return said
