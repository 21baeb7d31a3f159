"""How servers are started, kept and ended."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.real_servers import eventually, is_running, raw, text_of
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.runtime import Runtime

# Servers are started, killed and waited for.
pytestmark = pytest.mark.services

WithServers = Callable[..., Any]


async def test_closing_ends_a_server_with_all_that_it_started(with_servers: WithServers) -> None:
    """Also children in sessions of their own, and a server that ignores TERM."""
    runtime = await with_servers({"s": raw(ignore_term=True)})
    pids = json.loads(text_of(await runtime.call("mcp__s__children", {})))
    assert all(map(is_running, pids))

    await asyncio.to_thread(runtime.close)

    assert not any(map(is_running, pids))
    assert list((runtime.settings.home.root / "processes/mcp").glob("*")) == []


async def test_children_are_ended_before_a_server_is_started_again(with_servers: WithServers) -> None:
    """What a dead server left does not pile up."""
    runtime = await with_servers({"s": raw()})
    pids = json.loads(text_of(await runtime.call("mcp__s__children", {})))

    await runtime.call("mcp__s__die", {})
    await runtime.call("mcp__s__echo", {})

    assert not any(map(is_running, pids))


CRASH = """
import asyncio, json, os, sys
from toolcrib.runtime import Runtime
async def main():
    runtime = Runtime(home=sys.argv[1]).load()
    await runtime.mcp.wait_ready(40)
    print(json.loads((await runtime.call("mcp__s__children", {})).text)["result"], flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def test_what_a_crash_left_is_ended_at_the_next_start(make_runtime: Callable[..., Runtime]) -> None:
    """Servers of a process of ours that was killed do not run on for ever."""
    config = {"mcp_servers": {"s": raw(ignore_term=True)}}
    runtime = make_runtime(json.dumps(config))
    command = [sys.executable, "-c", CRASH, str(runtime.settings.home.root)]
    printed = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True).stdout)
    pids = json.loads(printed)
    assert any(map(is_running, pids))

    runtime.load()
    await runtime.mcp.wait_ready(40)

    await eventually(lambda: not any(map(is_running, pids)))
    assert text_of(await runtime.call("mcp__s__echo", {"text": "new"})) == "new"


async def test_starting_waits_for_no_server(make_runtime: Callable[..., Runtime]) -> None:
    """`load` returns at once, whatever the servers do; the SDK is not loaded by it."""
    servers = {f"s{number}": raw(stall_on=["initialize"]) for number in range(50)}
    runtime = make_runtime(json.dumps({"mcp_servers": servers}))

    runtime.load()

    assert [status.state for status in runtime.mcp.servers()] == ["starting"] * 50
    await asyncio.wait_for(asyncio.to_thread(runtime.close), 60)


async def test_a_server_that_died_while_idle_is_started_again_by_itself(
    with_servers: WithServers, tmp_path: Path
) -> None:
    """Nobody has to call it for that."""
    started = tmp_path / "started"
    runtime = await with_servers({"s": raw(started_file=str(started))})

    os.kill(int(text_of(await runtime.call("mcp__s__pid", {}))), signal.SIGKILL)

    await eventually(lambda: len(started.read_text().split()) == 2)
    await eventually(lambda: runtime.mcp.servers()[0].state == "ready")


async def test_an_idle_server_is_ended_and_comes_back_with_the_next_call(
    with_servers: WithServers, tmp_path: Path
) -> None:
    """`idle_timeout_seconds` ends what nobody uses; its tools stay on offer."""
    runtime = await with_servers({"s": raw(idle_timeout_seconds=0.3)})
    pid = int(text_of(await runtime.call("mcp__s__pid", {})))

    await eventually(lambda: not is_running(pid))

    assert runtime.registry.get_entry("mcp__s__echo") is not None
    assert text_of(await runtime.call("mcp__s__echo", {"text": "back"})) == "back"


async def test_an_old_connection_is_renewed(with_servers: WithServers, tmp_path: Path) -> None:
    """`max_lifetime_seconds` replaces a server between two calls."""
    started = tmp_path / "started"
    runtime = await with_servers({"s": raw(max_lifetime_seconds=0.3, started_file=str(started))})

    await eventually(lambda: len(started.read_text().split()) >= 2)

    assert text_of(await runtime.call("mcp__s__echo", {"text": "x"})) == "x"


async def test_a_changed_config_starts_ends_and_restarts_servers(with_servers: WithServers) -> None:
    """`reload` touches only what is different."""
    runtime = await with_servers({"stays": raw(), "goes": raw(), "changes": raw()})
    pids = {name: text_of(await runtime.call(f"mcp__{name}__pid", {})) for name in ("stays", "goes", "changes")}
    settings = {name: McpServerSettings(**raw()) for name in ("stays", "new")}

    await asyncio.to_thread(runtime.mcp.reload, {**settings, "changes": McpServerSettings(**raw(env={"NEW": "1"}))})
    await runtime.mcp.wait_ready(40)

    assert text_of(await runtime.call("mcp__stays__pid", {})) == pids["stays"]
    assert text_of(await runtime.call("mcp__changes__pid", {})) != pids["changes"]
    assert text_of(await runtime.call("mcp__new__echo", {"text": "hi"})) == "hi"
    assert runtime.registry.get_entry("mcp__goes__pid") is None
    assert not is_running(int(pids["goes"]))


async def test_a_runtime_that_is_dropped_ends_its_servers(tmp_path: Path) -> None:
    """Also without `close`."""
    home = tmp_path / "dropped"
    home.mkdir()
    (home / "config.yaml").write_text(json.dumps({"mcp_servers": {"s": raw()}}))
    code = """
import asyncio, gc, json, sys, threading
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
async def use():
    runtime = Runtime(home=sys.argv[1], registry=ToolRegistry()).load()
    await runtime.mcp.wait_ready(40)
    return json.loads((await runtime.call("mcp__s__pid", {})).text)["result"]
pid = asyncio.run(use())
gc.collect()
for thread in threading.enumerate():
    if thread.name == "toolcrib-mcp":
        # Its last step of the call may have held the runtime for a moment longer.
        thread.join(0.2)
        gc.collect()
        thread.join(30)
print(json.dumps([int(pid), [thread.name for thread in threading.enumerate()]]))
"""
    command = [sys.executable, "-c", code, str(home)]
    printed = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True).stdout)
    pid, threads = json.loads(printed)

    assert not is_running(pid)
    assert "toolcrib-mcp" not in threads


async def test_no_server_is_started_in_safe_mode(
    make_runtime: Callable[..., Runtime], tmp_path: Path, monkeypatch: Any
) -> None:
    """TOOLCRIB_SAFE_MODE loads nothing of other people."""
    monkeypatch.setenv("TOOLCRIB_SAFE_MODE", "1")
    runtime = make_runtime(json.dumps({"mcp_servers": {"s": raw()}}))

    runtime.load()

    assert runtime.mcp.servers() == []


LOADED = """
import sys
from toolcrib.runtime import Runtime
runtime = Runtime(home=sys.argv[1]).load()
runtime.definitions()
print([name for name in sys.modules if name.split(".")[0] in ("mcp", "mcp_types") or name.startswith("toolcrib.mcp")])
runtime.close()
"""


@pytest.mark.parametrize(("servers", "expected"), [({}, set()), ({"s": raw()}, {"toolcrib.mcp.client.manager"})])
async def test_nothing_is_loaded_that_is_not_needed(
    tmp_path: Path, servers: dict[str, Any], expected: set[str]
) -> None:
    """Without servers nothing of this is imported; with servers the SDK is not, until the first is connected."""
    (tmp_path / "config.yaml").write_text(json.dumps({"mcp_servers": servers}))
    command = [sys.executable, "-c", LOADED, str(tmp_path)]

    printed = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True).stdout)

    found = set(ast.literal_eval(printed))
    assert {name for name in found if not name.startswith("toolcrib.")} == set()
    assert expected <= found
    assert bool(found) == bool(expected)


async def test_calls_are_answered_when_the_runtime_is_closed(with_servers: WithServers) -> None:
    """Also those that had not begun."""
    runtime = await with_servers({"s": raw()})
    calls = [asyncio.ensure_future(runtime.call("mcp__s__stall", {})) for _ in range(5)]
    await eventually(lambda: runtime.mcp._supervisors["s"].contexts)

    await asyncio.to_thread(runtime.close)
    results = await asyncio.wait_for(asyncio.gather(*calls), 20)

    assert all(result.is_error for result in results)
    assert sum("may or may not" in result.error_message for result in results) == 1
    assert sum("nothing was sent" in result.error_message for result in results) == 4
