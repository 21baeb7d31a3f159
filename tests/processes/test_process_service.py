"""What the process tool and front ends get, as JSON, from any loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toolcrib.core.environments import CommandRequest, TerminalSize
from toolcrib.core.types import JsonObject
from toolcrib.processes.process import ProcessLimits
from toolcrib.processes.registry import ProcessRegistry
from toolcrib.processes.service import ProcessService
from toolcrib.testing.environments import FakeEnvironment, FakeExecution

MakeRegistry = Callable[..., ProcessRegistry]


@pytest.fixture
async def service(registry: ProcessRegistry) -> ProcessService:
    return ProcessService(registry, asyncio.get_running_loop(), mask=lambda text: text.replace("hunter2", "[secret]"))


async def start(service: ProcessService, fake: FakeEnvironment, **options: Any) -> FakeExecution:
    request = CommandRequest(command="serve", terminal=options.pop("terminal", None))
    record = await service.registry.start(fake, request, session_key="s", **options)
    return fake.executions[record.id]


async def act(service: ProcessService, action: str, execution: FakeExecution | None = None, **args: Any) -> JsonObject:
    named = {} if execution is None else {"session_id": execution.id}
    return await service.act({"action": action, **named, **args}, "s")


async def test_list_shows_the_processes_of_the_session(service: ProcessService, fake: FakeEnvironment) -> None:
    """Each with its id, state, command, folder and last words."""
    execution = await start(service, fake, notify_on_complete=True)
    execution.prints("listening\n")

    (listed,) = (await act(service, "list"))["processes"]

    assert listed["session_id"] == execution.id
    assert (listed["status"], listed["command"], listed["cwd"]) == ("running", "serve", "/work")
    assert listed["output_preview"] == "listening\n"
    assert listed["notify_on_complete"] is True
    assert (await service.act({"action": "list"}, "other"))["processes"] == []


async def test_poll_gives_what_is_new(service: ProcessService, fake: FakeEnvironment) -> None:
    """Output once, state always, and the exit code when there is one."""
    execution = await start(service, fake)
    execution.prints("one\n")

    first = await act(service, "poll", execution)
    second = await act(service, "poll", execution)
    execution.ends(2)
    await act(service, "wait", execution)
    third = await act(service, "poll", execution)

    assert (first["output"], first["status"], "exit_code" in first) == ("one\n", "running", False)
    assert second["output"] == ""
    assert (third["status"], third["exit_code"]) == ("exited", 2)


async def test_poll_says_that_a_process_waits_for_input(service: ProcessService, fake: FakeEnvironment) -> None:
    """And how to answer it."""
    execution = await start(service, fake)
    execution.reads_input = True

    answer = await act(service, "poll", execution)

    assert answer["waiting_for_input"] is True
    assert "submit" in answer["hint"]


async def test_log_reads_by_lines(service: ProcessService, fake: FakeEnvironment) -> None:
    """The last two hundred lines unless an offset or a limit is given; offset 0 is the first line."""
    execution = await start(service, fake)
    execution.prints("".join(f"line {number}\n" for number in range(300)))

    newest = await act(service, "log", execution)
    oldest = await act(service, "log", execution, offset=0, limit=2)
    beyond = await act(service, "log", execution, offset=1_000)

    assert newest["output"].splitlines() == [f"line {number}" for number in range(100, 300)]
    assert (newest["total_lines"], newest["showing"]) == (300, "lines 100 to 299 of 300")
    assert oldest["output"] == "line 0\nline 1"
    assert (beyond["output"], beyond["showing"]) == ("", "no lines")


async def test_wait_ends_with_the_process_or_with_the_time(service: ProcessService, fake: FakeEnvironment) -> None:
    """Time over is told, and leaves the process alone."""
    execution = await start(service, fake)

    early = await service.act({"action": "wait", "session_id": execution.id, "timeout": 0}, "s")
    execution.prints("bye\n")
    execution.ends(0)
    late = await act(service, "wait", execution, timeout=10)

    assert (early["status"], early["timeout_note"]) == ("timeout", "waited 0 seconds; it is still running")
    assert (late["status"], late["exit_code"], late["output"]) == ("exited", 0, "bye\n")


async def test_a_wait_is_no_longer_than_allowed(make_registry: MakeRegistry, fake: FakeEnvironment) -> None:
    """Neither longer than the limit of one wait nor than the deadline of the call; the answer says so."""
    registry = make_registry(limits=ProcessLimits(max_wait_seconds=0.01))
    service = ProcessService(registry, asyncio.get_running_loop())
    execution = await start(service, fake)
    args = {"action": "wait", "session_id": execution.id, "timeout": 3_600}

    limited = await service.act(args, "s")
    by_deadline = await service.act(args, "s", deadline=time.monotonic() + 0.1)

    assert "wait again" in limited["timeout_note"]
    assert by_deadline["status"] == "timeout"


async def test_kill_says_whether_it_was_running(service: ProcessService, fake: FakeEnvironment) -> None:
    """A second kill is harmless and says that it was over."""
    execution = await start(service, fake)

    first = await act(service, "kill", execution)
    second = await act(service, "kill", execution)

    assert (first["status"], first["exit_code"], first["termination_source"]) == ("killed", 143, "process_tool")
    assert (second["status"], second["exit_code"]) == ("already_exited", 143)


async def test_text_is_typed(service: ProcessService, fake: FakeEnvironment) -> None:
    """write types as it is, submit ends the line, close ends the input; afterwards nothing can be typed."""
    execution = await start(service, fake)
    on_terminal = await start(service, fake, terminal=TerminalSize())

    wrote = await act(service, "write", execution, data="ä")
    await act(service, "submit", execution, data="yes")
    await act(service, "submit", on_terminal, data="yes")
    closed = await act(service, "close", execution)
    refused = await act(service, "write", execution, data="more")

    assert wrote == {"status": "ok", "session_id": execution.id, "bytes_written": 2}
    assert execution.written == "äyes\n".encode()
    assert on_terminal.written == b"yes\r"
    assert closed["status"] == "ok"
    assert "closed" in refused["error"]


async def test_every_action_answers_the_same_for_none_and_anothers(
    service: ProcessService, fake: FakeEnvironment
) -> None:
    """A session cannot find out which processes others have."""
    execution = await start(service, fake)
    for action in ("poll", "log", "wait", "kill", "write", "submit", "close"):
        mine = {"action": action, "session_id": execution.id, "data": "x"}
        unknown = {**mine, "session_id": "proc_0123456789ab"}

        others = await service.act(mine, "other")
        none = await service.act(unknown, "other")

        assert str(others).replace(execution.id, "ID") == str(none).replace("proc_0123456789ab", "ID")
        assert "no process" in none["error"]
    assert (execution.written, execution.terminations) == (b"", 0)


async def test_a_missing_or_odd_argument_is_an_answer(service: ProcessService) -> None:
    """What was forgotten is named."""
    assert "session_id" in (await service.act({"action": "poll"}, "s"))["error"]
    assert "list, poll" in (await service.act({"action": "dance"}, "s"))["error"]


async def test_output_is_readable_and_keeps_secrets(service: ProcessService, fake: FakeEnvironment) -> None:
    """Control sequences go, secrets are masked."""
    execution = await start(service, fake)
    execution.prints("\x1b[31mpassword hunter2\x1b[0m\r\n")

    assert (await act(service, "poll", execution))["output"] == "password [secret]\n"


async def test_long_output_is_cut_to_the_newest(service: ProcessService, fake: FakeEnvironment) -> None:
    """A flood does not fill the answer; it says how to read the rest."""
    execution = await start(service, fake)
    execution.prints("x" * 120_000 + "end")

    answer = await act(service, "poll", execution)

    assert len(answer["output"]) == 50_000
    assert answer["output"].endswith("end")
    assert "log" in answer["output_note"]


@pytest.mark.parametrize("action", ["wait", "log", "kill"])
async def test_an_end_that_was_read_is_not_told_again(
    service: ProcessService, fake: FakeEnvironment, action: str
) -> None:
    """Who waits for a process, reads its log or ends it knows of its end."""
    read = await start(service, fake, notify_on_complete=True)
    unread = await start(service, fake, notify_on_complete=True)
    for execution in (read, unread):
        execution.ends(0)
        await service.registry.get(execution.id, "s").done.wait()

    await act(service, action, read)

    events = await service.unread_events("s", "chat")
    assert [event.fields["session_id"] for event in events] == [unread.id]


async def test_events_are_acknowledged(service: ProcessService, fake: FakeEnvironment) -> None:
    """An acknowledged event does not come again."""
    execution = await start(service, fake, notify_on_complete=True)
    execution.ends(0)

    events = await service.next_events("s", "chat", 10)
    await service.acknowledge("s", "chat", events)

    assert [event.type for event in events] == ["completion"]
    assert await service.unread_events("s", "chat") == []


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own, as that of a Runtime's services does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_it_can_be_used_from_any_loop(
    other_loop: asyncio.AbstractEventLoop, fake: FakeEnvironment, tmp_path: Any
) -> None:
    """The work is done where the registry lives; giving up here gives up there, and leaves the process alone."""
    registry = ProcessRegistry(tmp_path / "elsewhere")
    service = ProcessService(registry, other_loop)

    def there(work: Any) -> Any:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, other_loop))

    record = await there(registry.start(fake, CommandRequest(command="serve"), session_key="s"))
    waiting = asyncio.create_task(service.act({"action": "wait", "session_id": record.id}, "s"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    answer = await service.act({"action": "poll", "session_id": record.id}, "s")
    await there(registry.close())

    assert waiting.cancelled()
    assert answer["status"] == "running"
