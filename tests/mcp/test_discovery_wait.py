"""Agents and MCP servers: the first request waits for their tools, later ones follow them and the config file."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.mcp.real_servers import eventually, raw
from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, Notified
from toolcrib.agent.host import AgentHost
from toolcrib.providers.scripted import ScriptedProvider, Step, calls
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore

MakeRuntime = Callable[..., Runtime]
ECHO = "mcp__s__echo"


def config_with(servers: dict[str, Any], **mcp: Any) -> str:
    return json.dumps({"mcp_servers": servers, "mcp": {"discovery_timeout": 30, **mcp}})


def write_config(runtime: Runtime, text: str) -> None:
    runtime.settings.home.config_file.write_text(text)


def agent_of(runtime: Runtime, *steps: Step, **options: Any) -> Agent:
    provider = ScriptedProvider(steps, otherwise="fine")
    host = AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=provider)
    return Agent(host=host, model=provider, **options)


def offered(agent: Agent) -> list[list[str]]:
    """The tools of servers that each request offered."""
    provider = agent.provider
    assert isinstance(provider, ScriptedProvider)
    return [
        [one["function"]["name"] for one in request.definitions if one["function"]["name"].startswith("mcp__")]
        for request in provider.requests
    ]


def gated(gate: Path, **options: Any) -> dict[str, Any]:
    """A server that does not start before the gate is open, which is when the file is there."""
    server = raw(**options)
    program = shlex.join([server["command"], *server["args"]])
    script = f"while [ ! -e {shlex.quote(str(gate))} ]; do sleep 0.02; done; exec {program}"
    return {**server, "command": "/bin/sh", "args": ["-c", script]}


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    gate = tmp_path / "gate"
    yield gate
    gate.touch()


async def test_the_first_request_has_the_tools_of_a_server_that_is_starting(make_runtime: MakeRuntime) -> None:
    """Nobody has to wait before he asks: the agent does it, for a toolset that was not there when it was made."""
    runtime = make_runtime(config_with({"s": raw()}))
    agent = agent_of(runtime, calls(ECHO, {"text": "hello"}), toolsets=["mcp-s"])

    result = await agent.run("Say hello")

    assert ECHO in offered(agent)[0]
    assert result.outcome == "answered"
    assert any("hello" in message.text for message in agent.messages if message.role == "tool")


async def test_without_a_choice_of_toolsets_the_servers_are_offered_too(make_runtime: MakeRuntime) -> None:
    """What servers bring belongs to the tools that everybody gets."""
    agent = agent_of(make_runtime(config_with({"s": raw()})))

    await agent.run("Hello")

    assert ECHO in offered(agent)[0]


async def test_a_server_that_never_answers_is_waited_for_once(make_runtime: MakeRuntime) -> None:
    """The first request waits as long as the config says, and no other one does."""
    runtime = make_runtime(config_with({"s": raw(stall_on=["initialize"])}, discovery_timeout=6))
    agent = agent_of(runtime)

    began = time.monotonic()
    await agent.run("One")
    first = time.monotonic() - began
    await agent.run("Two")
    second = time.monotonic() - began - first

    assert first >= 5.9
    assert second < 5.9


async def test_a_run_that_waits_for_servers_can_be_stopped(make_runtime: MakeRuntime) -> None:
    """Nobody has to sit out the waiting."""
    agent = agent_of(make_runtime(config_with({"s": raw(stall_on=["initialize"])}, discovery_timeout=60)))
    run = asyncio.ensure_future(agent.run("Hello"))
    await eventually(lambda: agent.is_running)

    agent.interrupt()
    result = await asyncio.wait_for(run, 20)

    assert result.outcome == "interrupted"


async def test_a_server_that_is_ready_later_joins_the_next_request(
    make_runtime: MakeRuntime, add_tool: Callable[..., None], gate: Path
) -> None:
    """Its tools are offered, and may be called, while the same question is worked on."""
    runtime = make_runtime(config_with({"s": gated(gate)}, discovery_timeout=0))

    async def open_gate(args: dict[str, Any], **_: Any) -> str:
        await asyncio.to_thread(gate.touch)
        await eventually(lambda: runtime.mcp.servers()[0].state == "ready")
        return "{}"

    add_tool(runtime, "open_gate", open_gate, is_async=True, effects=())
    agent = agent_of(runtime, calls("open_gate"), calls(ECHO, {"text": "late"}), toolsets=["test", "mcp-s"])

    result = await agent.run("Open it")

    assert ECHO not in offered(agent)[0]
    assert ECHO in offered(agent)[1]
    assert result.calls == 2
    assert any("late" in message.text for message in agent.messages if message.role == "tool")


async def test_requests_are_the_same_while_nothing_changes(make_runtime: MakeRuntime) -> None:
    """The tools of two requests are the same bytes, so that a provider's cache hits."""
    agent = agent_of(make_runtime(config_with({"s": raw()})), calls(ECHO, {"text": "a"}))

    await agent.run("Hello")

    provider = agent.provider
    assert isinstance(provider, ScriptedProvider)
    assert json.dumps(provider.requests[0].tools) == json.dumps(provider.requests[1].tools)


async def test_a_changed_config_file_starts_and_ends_servers(make_runtime: MakeRuntime) -> None:
    """What the file says is so at the next question, without a restart; a server that is as it was goes on."""
    runtime = make_runtime(config_with({"a": raw()}))
    agent = agent_of(runtime)
    await agent.run("One")
    [kept] = runtime.mcp.servers()

    write_config(runtime, config_with({"a": raw(), "b": raw()}))
    await agent.run("Two")
    pids = {one.name: one.pid for one in runtime.mcp.servers()}
    write_config(runtime, config_with({"b": raw()}))
    await agent.run("Three")

    first, second, third = (set(names) for names in offered(agent))
    assert "mcp__a__echo" in first
    assert {"mcp__a__echo", "mcp__b__echo"} <= second
    assert pids["a"] == kept.pid
    assert "mcp__a__echo" not in third
    assert "mcp__b__echo" in third


async def test_a_server_that_is_switched_off_takes_its_tools_along(make_runtime: MakeRuntime) -> None:
    """`enabled: false` in the file means that its tools are not offered any more."""
    runtime = make_runtime(config_with({"s": raw()}))
    agent = agent_of(runtime)
    await agent.run("One")

    write_config(runtime, config_with({"s": raw(enabled=False)}))
    await agent.run("Two")

    assert ECHO in offered(agent)[0]
    assert offered(agent)[1] == []


async def test_the_first_server_may_come_while_the_agent_lives(make_runtime: MakeRuntime) -> None:
    """A program that began without any server uses one that was added since."""
    runtime = make_runtime("")
    agent = agent_of(runtime)
    await agent.run("One")

    write_config(runtime, config_with({"s": raw()}))
    await agent.run("Two")

    assert [ECHO in names for names in offered(agent)] == [False, True]


async def test_a_broken_config_file_changes_nothing_and_is_told_once(make_runtime: MakeRuntime) -> None:
    """The servers go on; the person hears it one time, and a corrected file is used."""
    runtime = make_runtime(config_with({"s": raw()}))
    agent = agent_of(runtime)
    told: list[AnyEvent] = []
    await agent.run("One", on_event=told.append)

    write_config(runtime, "mcp_servers: [")
    await agent.run("Two", on_event=told.append)
    runtime.settings.home.config_file.touch()
    await agent.run("Three", on_event=told.append)
    write_config(runtime, config_with({"t": raw()}))
    await agent.run("Four", on_event=told.append)

    warnings = [event.message for event in told if isinstance(event, Notified)]
    assert len(warnings) == 1
    assert "were not updated" in warnings[0]
    assert [ECHO in names for names in offered(agent)] == [True, True, True, False]
    assert "mcp__t__echo" in offered(agent)[3]


async def test_the_config_can_say_that_its_changes_are_not_followed(make_runtime: MakeRuntime) -> None:
    """Without `auto_reload_on_config_change` servers are as they were at the start."""
    runtime = make_runtime(config_with({"s": raw()}, auto_reload_on_config_change=False))
    agent = agent_of(runtime)
    await agent.run("One")

    write_config(runtime, config_with({}, auto_reload_on_config_change=False))
    await agent.run("Two")

    assert [ECHO in names for names in offered(agent)] == [True, True]


async def test_servers_that_were_named_in_code_stay(make_runtime: MakeRuntime) -> None:
    """A program that gives its servers itself does not lose them when a setting is written to the file."""
    known = make_runtime(config_with({"s": raw()})).settings
    runtime = make_runtime("")
    settings = replace(runtime.settings, mcp_servers=known.mcp_servers, mcp=known.mcp)
    own = Runtime(settings=settings)
    try:
        agent = agent_of(own)
        await agent.run("One")
        write_config(own, "command_allowlist: [recursive delete]")
        await agent.run("Two")
    finally:
        own.close()

    assert [ECHO in names for names in offered(agent)] == [True, True]


async def test_a_variable_that_was_set_since_counts_at_a_reload(make_runtime: MakeRuntime) -> None:
    """A server that lacked a variable is used when `.env` has it, though the config file is the same."""
    server = {**raw(), "env": {"KEY": "${SOME_KEY_OF_A_SERVER}"}}
    runtime = make_runtime(config_with({"s": server}))
    agent = agent_of(runtime)
    await agent.run("One")

    runtime.settings.home.env_file.write_text("SOME_KEY_OF_A_SERVER=1\n")
    runtime.settings.home.env_file.chmod(0o600)
    await agent.host.servers.reload()
    await agent.run("Two")

    assert [ECHO in names for names in offered(agent)] == [False, True]


async def test_a_call_waits_for_a_tool_whose_server_is_still_starting(make_runtime: MakeRuntime) -> None:
    """Who uses the library need not know when a server is ready."""
    runtime = make_runtime(config_with({"s": raw()}))
    runtime.load()

    result = await runtime.call(ECHO, {"text": "hi"})

    assert json.loads(result.text) == {"result": "hi"}


def test_a_call_from_plain_code_waits_as_well(make_runtime: MakeRuntime) -> None:
    """The same for `call_sync`."""
    runtime = make_runtime(config_with({"s": raw()}))

    assert json.loads(runtime.call_sync(ECHO, {"text": "hi"}).text) == {"result": "hi"}
