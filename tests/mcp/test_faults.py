"""Servers that do everything wrong: each harms its own calls, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.real_servers import LIMIT_SECONDS, eventually, is_running, open_descriptors, raw, text_of
from toolcrib.mcp.client.connection import Connection

WithServers = Callable[..., Any]


async def calm(runtime: Any) -> None:
    """A well-behaved server beside the one under test answers as ever."""
    assert text_of(await asyncio.wait_for(runtime.call("mcp__good__echo", {"text": "ok"}), LIMIT_SECONDS)) == "ok"


async def test_a_server_that_crashes_at_its_start_is_told_with_its_last_words(with_servers: WithServers) -> None:
    """The state says why: how it ended, and what it printed last; the log has the rest."""
    runtime = await with_servers({"s": raw(crash="no licence found"), "good": raw()})

    [_, status] = runtime.mcp.servers()

    assert status.state == "waiting"
    assert status.last_error == "it ended with exit code 3: no licence found"
    assert "no licence found" in (runtime.settings.home.root / "logs/mcp/s.log").read_text()
    await calm(runtime)


async def test_a_call_during_which_the_server_dies_is_answered(with_servers: WithServers) -> None:
    """The answer says that nobody knows whether it was carried out; the next call has a new server."""
    runtime = await with_servers({"s": raw()})
    first = text_of(await runtime.call("mcp__s__pid", {}))

    died = await runtime.call("mcp__s__die", {})
    second = text_of(await runtime.call("mcp__s__pid", {}))

    assert "may or may not" in died.error_message
    assert "exit code 7: about to die" in died.error_message
    assert first != second
    assert not is_running(int(first))


async def test_all_calls_in_flight_are_answered_when_the_server_dies(with_servers: WithServers) -> None:
    """No call is lost without an answer, however many there are."""
    runtime = await with_servers({"s": raw(supports_parallel_tool_calls=True, max_parallel=20)})
    calls = [asyncio.ensure_future(runtime.call("mcp__s__stall", {})) for _ in range(10)]
    await eventually(lambda: len(runtime.mcp._supervisors["s"].contexts) == 10)

    calls.append(asyncio.ensure_future(runtime.call("mcp__s__die", {})))
    results = await asyncio.wait_for(asyncio.gather(*calls), LIMIT_SECONDS)

    assert all("may or may not" in result.error_message for result in results)
    assert text_of(await runtime.call("mcp__s__echo", {"text": "up"})) == "up", "one crash is one failure"


async def test_many_callers_share_one_reconnect(with_servers: WithServers, tmp_path: Path) -> None:
    """However many calls find a server down, it is started once."""
    started = tmp_path / "started"
    runtime = await with_servers({"s": raw(started_file=str(started), supports_parallel_tool_calls=True)})
    await runtime.call("mcp__s__die", {})

    results = await asyncio.gather(*(runtime.call("mcp__s__echo", {"text": "x"}) for _ in range(20)))

    assert {text_of(result) for result in results} == {"x"}
    assert len(started.read_text().split()) == 2


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("stalled", ["initialize", "tools/list"])
async def test_a_server_that_stalls_at_its_start_gives_up_in_time(with_servers: WithServers, stalled: str) -> None:
    """A server that does not greet is ended when its time is up, and tried again later."""
    runtime = await with_servers({"s": raw(stall_on=[stalled], connect_timeout=1), "good": raw()})

    [_, status] = runtime.mcp.servers()

    assert (status.state, status.pid) == ("waiting", None)
    assert "in time" in status.last_error or "timed out" in status.last_error
    await calm(runtime)


async def test_garbage_between_messages_is_passed_over(with_servers: WithServers) -> None:
    """Lines that are no messages are noted in the log, and calls go on."""
    runtime = await with_servers({"s": raw()})

    assert text_of(await runtime.call("mcp__s__garbage", {})) == "after the garbage"
    assert text_of(await runtime.call("mcp__s__unknown_ids", {})) == "after answers that nobody asked for"
    assert "this is no JSON" in (runtime.settings.home.root / "logs/mcp/s.log").read_text()


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize(
    ("tool", "reason"),
    [("flood_garbage", "lines in a row that are not messages"), ("long_line", "a line longer than 16 MB")],
)
async def test_output_without_end_ends_the_connection(with_servers: WithServers, tool: str, reason: str) -> None:
    """A server that floods its output loses its connection, with the reason; others do not notice."""
    runtime = await with_servers({"s": raw(), "good": raw()})
    pid = int(text_of(await runtime.call("mcp__s__pid", {})))

    flooding = asyncio.ensure_future(runtime.call(f"mcp__s__{tool}", {}))
    await calm(runtime)
    result = await asyncio.wait_for(flooding, LIMIT_SECONDS)

    assert reason in result.error_message
    await eventually(lambda: not is_running(pid))
    assert text_of(await runtime.call("mcp__s__echo", {"text": "again"})) == "again"


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("tool", ["flood_notices", "flood_errors"])
async def test_a_flood_of_notices_or_errors_is_slowed_down(with_servers: WithServers, tool: str) -> None:
    """A server may print as much as it likes: it waits, its log stays small, and everybody's calls go on."""
    runtime = await with_servers({"s": raw(), "good": raw()})
    await runtime.call(f"mcp__s__{tool}", {})

    for _ in range(3):
        await calm(runtime)

    logs = runtime.settings.home.root / "logs/mcp"
    assert sum(file.stat().st_size for file in logs.glob("s.log*")) <= 2 * 1024 * 1024 + 4096


async def test_an_answer_that_the_protocol_does_not_allow_costs_that_call(with_servers: WithServers) -> None:
    """Nonsense and refusals are errors of one call; the connection stays."""
    runtime = await with_servers({"s": raw()})
    pid = text_of(await runtime.call("mcp__s__pid", {}))

    nonsense = await runtime.call("mcp__s__nonsense", {})
    refused = await runtime.call("mcp__s__refuse", {})

    assert "violates the protocol" in nonsense.error_message
    assert "it is not allowed (code -32602)" in refused.error_message
    assert text_of(await runtime.call("mcp__s__pid", {})) == pid


async def test_a_server_that_closes_its_output_but_runs_on_is_replaced(with_servers: WithServers) -> None:
    """Half a connection is none."""
    runtime = await with_servers({"s": raw()})
    pid = int(text_of(await runtime.call("mcp__s__pid", {})))

    result = await runtime.call("mcp__s__close_output", {})

    assert "it closed its stdout" in result.error_message
    await eventually(lambda: not is_running(pid))


async def test_a_server_that_never_works_is_not_tried_for_every_call(with_servers: WithServers, tmp_path: Path) -> None:
    """After several failures in a row calls are answered at once, with the reason."""
    started = tmp_path / "started"
    runtime = await with_servers({"s": raw(die_every=1, started_file=str(started))})
    for _ in range(3):
        await runtime.call("mcp__s__echo", {})
    before = len(started.read_text().split())

    answer = await runtime.call("mcp__s__echo", {})

    assert "failed 3 times in a row" in answer.error_message
    assert runtime.mcp.servers()[0].state == "degraded"
    assert len(started.read_text().split()) - before <= 1


@pytest.mark.services
async def test_a_person_can_have_a_degraded_server_tried_at_once(with_servers: WithServers) -> None:
    """`reconnect` forgets earlier failures."""
    runtime = await with_servers({"s": raw(die_every=2)})
    for _ in range(2):
        await runtime.call("mcp__s__die", {})
    await runtime.call("mcp__s__die", {})
    assert runtime.mcp.servers()[0].state == "degraded"

    runtime.mcp.reconnect("s")

    assert text_of(await runtime.call("mcp__s__echo", {"text": "back"})) == "back"


async def test_tools_that_change_during_a_call_are_offered_after_it(with_servers: WithServers, tmp_path: Path) -> None:
    """The call is answered; what is new is offered, what is gone is not, what stayed is the same entry."""
    file = tmp_path / "tools.json"
    tools = [
        {"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("change", "old", "pid")
    ]
    file.write_text(json.dumps(tools))
    runtime = await with_servers({"s": raw(tools_file=str(file))})
    kept, generation = runtime.registry.get_entry("mcp__s__pid"), runtime.registry.generation
    new = [tools[0], tools[2], {"name": "new", "inputSchema": {"type": "object"}}]

    result = await runtime.call("mcp__s__change", {"tools": new})
    await eventually(lambda: runtime.registry.get_entry("mcp__s__new"))

    assert text_of(result) == "changed"
    assert runtime.registry.get_entry("mcp__s__old") is None
    assert runtime.registry.get_entry("mcp__s__pid") is kept
    assert runtime.registry.generation > generation
    assert (await runtime.call("mcp__s__old", {})).error_type == "unknown_tool"


async def test_a_server_that_lies_about_what_it_can_do_is_believed_only_so_far(with_servers: WithServers) -> None:
    """One that claims to have no tools gives none; one that answers with a protocol that nobody knows is not used."""
    runtime = await with_servers({"none": raw(capabilities={}), "future": raw(protocol="2099-01-01")})

    future, none = runtime.mcp.servers()

    assert (none.state, none.tools) == ("ready", 0)
    assert future.state == "waiting"
    assert "2099-01-01" in future.last_error


async def test_pages_without_end_are_not_followed(with_servers: WithServers) -> None:
    """A server that always has a next page is read once for each new page."""
    runtime = await with_servers({"s": raw(list_extra={"nextCursor": "more"})})

    assert runtime.mcp.servers()[0].state == "ready"
    assert text_of(await runtime.call("mcp__s__echo", {"text": "x"})) == "x"


async def reconnected(runtime: Any, times: int) -> list[Any]:
    results = [await runtime.call("mcp__s__echo", {"text": "x"}) for _ in range(3 * times)]
    return [result for result in results if result.is_error]


async def left_over(runtime: Any, pids: list[int]) -> dict[str, int]:
    """What is still there of a server and its connections, after the runtime is closed."""
    await asyncio.to_thread(runtime.close)
    gc.collect()
    return {
        "processes": sum(map(is_running, pids)),
        "threads": sum(thread.name == "toolcrib-mcp" for thread in threading.enumerate()),
        "ledger": len(list((runtime.settings.home.root / "processes/mcp").glob("*"))),
    }


@pytest.mark.services
@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=pytest.mark.services)])
async def test_reconnects_leave_nothing_behind(with_servers: WithServers, tmp_path: Path, times: int) -> None:
    """A server that dies at every third call answers the others; nothing is left, and no call without an answer."""
    started = tmp_path / "started"
    runtime = await with_servers({"s": raw(die_every=3, started_file=str(started))})
    await reconnected(runtime, 2)
    tasks, descriptors = await tasks_of(runtime), open_descriptors()

    errors = await reconnected(runtime, times)

    assert len(errors) == times
    assert all("may or may not" in error.error_message for error in errors)
    pids = [int(pid) for pid in started.read_text().split()]
    assert len(pids) >= times
    assert await tasks_of(runtime) <= tasks
    assert open_descriptors() <= descriptors
    assert await left_over(runtime, pids) == {"processes": 0, "threads": 0, "ledger": 0}


async def tasks_of(runtime: Any) -> int:
    """How many tasks the manager has while its server is up and nothing is called."""
    await runtime.call("mcp__s__echo", {})

    async def count() -> int:
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    return await runtime.mcp._loop.run(count())


async def test_a_server_that_was_away_for_long_is_back_with_the_first_call(
    with_servers: WithServers, tmp_path: Path
) -> None:
    """Attempts that nobody waited for are no reason to refuse a call."""
    program = tmp_path / "server"
    settings = raw()
    runtime = await with_servers({"s": {**settings, "command": str(program)}})
    owner = runtime.mcp._supervisors["s"]
    for _ in range(4):
        runtime.mcp.reconnect("s")
        await eventually(lambda: owner.status().state == "waiting")

    program.symlink_to(settings["command"])

    assert await runtime.mcp.use("s", Connection.is_alive, LIMIT_SECONDS)
    assert text_of(await runtime.call("mcp__s__echo", {"text": "here"})) == "here"


@pytest.mark.services
async def test_a_close_right_after_a_change_leaves_nothing_begun(with_servers: WithServers, tmp_path: Path) -> None:
    """What was to be listed again is not, and no work is left that nobody waits for."""
    file = tmp_path / "tools.json"
    tools = [{"name": "change", "inputSchema": {"type": "object"}}]
    file.write_text(json.dumps(tools))
    runtime = await with_servers({"s": raw(tools_file=str(file))})
    assert text_of(await runtime.call("mcp__s__change", {"tools": tools})) == "changed"

    await asyncio.to_thread(runtime.close)

    gc.collect()  # Work that was never begun is reported now, and a warning is an error here.
