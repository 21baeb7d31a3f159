"""Background processes: started, read, talked to, ended, forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from toolcrib.core.environments import CommandRequest, OrphanedProcess, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.process_identity import is_alive
from toolcrib.processes.events import ProcessEvent
from toolcrib.processes.orphan_cleanup import processes_of
from toolcrib.processes.output import WatchLimits
from toolcrib.processes.process import AdoptedCommand, InputRefused, ProcessLimits, TrackedProcess, UnknownProcess
from toolcrib.processes.registry import ProcessRegistry
from toolcrib.testing.environments import FakeEnvironment, FakeExecution, ScriptedReply

WAIT_SECONDS = 20.0


class Clock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def started(
    registry: ProcessRegistry, environment: FakeEnvironment, command: str = "serve", **options: object
) -> tuple[TrackedProcess, FakeExecution]:
    record = await registry.start(environment, CommandRequest(command=command), session_key="s", **options)  # type: ignore[arg-type]
    return registry.get(record.id, "s"), environment.executions[record.id]


async def run_local(
    registry: ProcessRegistry, local: LocalShellEnvironment, command: str, **options: object
) -> TrackedProcess:
    request = CommandRequest(command=command, terminal=options.pop("terminal", None))  # type: ignore[arg-type]
    record = await registry.start(local, request, session_key="s", **options)  # type: ignore[arg-type]
    return registry.get(record.id, "s")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - output arrives when the program prints it
            await asyncio.sleep(0.01)


def types(events: list[ProcessEvent]) -> list[str]:
    return [event.type for event in events]


async def test_a_process_runs_to_its_end(registry: ProcessRegistry, local: LocalShellEnvironment) -> None:
    """Output, exit code and state of a real command are there when it has ended."""
    process = await run_local(registry, local, "echo hällo; exit 3")

    assert await registry.wait(process, WAIT_SECONDS)

    assert (process.record.status, process.record.exit_code) == ("exited", 3)
    assert process.output.last_lines(10).lines == ["hällo"]
    assert process.record.id.startswith("proc_")
    assert len(process.record.id) == len("proc_") + 12


async def test_input_works_without_a_terminal(registry: ProcessRegistry, local: LocalShellEnvironment) -> None:
    """A command reads what is typed into it, and sees the end of its input."""
    process = await run_local(registry, local, 'read -r name; echo "hi $name"; cat; echo over')

    await process.write(b"Ada\n", registry.limits)
    await process.write(b"more\n", registry.limits)
    await process.close_input()
    assert await registry.wait(process, WAIT_SECONDS)

    assert process.output.last_lines(10).lines == ["hi Ada", "more", "over"]
    with pytest.raises(InputRefused, match="already ended"):
        await process.write(b"x", registry.limits)


async def test_a_background_process_can_have_a_terminal(
    registry: ProcessRegistry, local: LocalShellEnvironment
) -> None:
    """With a terminal the program sees one, and typed text reaches it."""
    process = await run_local(registry, local, "tty >/dev/null && read -r a && echo got:$a", terminal=TerminalSize())

    await process.write(b"yes\r", registry.limits)
    assert await registry.wait(process, WAIT_SECONDS)

    assert "got:yes" in process.output.tail(100)


async def test_kill_ends_the_whole_tree(registry: ProcessRegistry, local: LocalShellEnvironment) -> None:
    """Children and grandchildren are gone when kill returns, and a second kill says that it was over."""
    process = await run_local(registry, local, "(sleep 300 & setsid sleep 300 & wait) & sleep 300 & wait")
    await until(lambda: len(processes_of(process.record.id, process.record.identity)) >= 5)

    first = await registry.kill(process, source="test")
    second = await registry.kill(process, source="test")

    assert (first, second) == (True, False)
    assert processes_of(process.record.id, process.record.identity) == []
    assert (process.record.status, process.record.termination_source) == ("killed", "test")


async def test_what_a_command_left_running_is_ended_by_kill(
    registry: ProcessRegistry, local: LocalShellEnvironment
) -> None:
    """A background command may end before its children: they stay in reach, and in sight."""
    process = await run_local(registry, local, "sleep 300 >/dev/null 2>&1 & echo started")
    await registry.wait(process, WAIT_SECONDS)
    await until(lambda: process.record.children_run)

    was_running = await registry.kill(process, source="test")

    assert not was_running
    assert processes_of(process.record.id, None) == []
    await until(lambda: not process.record.children_run)


@pytest.mark.services
async def test_many_processes_need_no_threads(registry: ProcessRegistry, local: LocalShellEnvironment) -> None:
    """A hundred processes are started and ended together, and no thread is made for them."""
    before = threading.active_count()
    records = await asyncio.gather(
        *(registry.start(local, CommandRequest(command="sleep 300"), session_key="s") for _ in range(100))
    )
    running, threads = registry.count_running("s"), threading.active_count()

    ended = await registry.kill_all("s")

    assert (running, ended, registry.count_running()) == (100, 100, 0)
    assert threads == before
    assert not any(is_alive(record.identity) for record in records if record.identity is not None)
    assert all(record.identity is not None for record in records)


async def test_each_reader_polls_on_from_where_he_was(registry: ProcessRegistry, fake: FakeEnvironment) -> None:
    """New output is new for each reader by itself."""
    process, execution = await started(registry, fake)
    execution.prints("one ")
    first = process.new_output("a")
    execution.prints("two")

    assert (first, process.new_output("a"), process.new_output("a"), process.new_output("b")) == (
        "one ",
        "two",
        "",
        "one two",
    )


async def test_another_session_cannot_tell_a_process_from_none(
    registry: ProcessRegistry, fake: FakeEnvironment
) -> None:
    """The error for somebody else's process is the one for an unknown id, word by word."""
    process, _ = await started(registry, fake)

    with pytest.raises(UnknownProcess) as others:
        registry.get(process.record.id, "other")
    with pytest.raises(UnknownProcess) as unknown:
        registry.get("proc_000000000000", "s")

    assert str(others.value).replace(process.record.id, "ID") == str(unknown.value).replace("proc_000000000000", "ID")
    assert registry.list("other") == []
    assert registry.get(process.record.id, None) is process


async def test_kill_all_ends_only_the_session(registry: ProcessRegistry, fake: FakeEnvironment) -> None:
    """One session's end leaves the others alone."""
    await started(registry, fake)
    other = await registry.start(fake, CommandRequest(command="x"), session_key="other")

    assert await registry.kill_all("s") == 1

    assert not registry.has_active("s")
    assert registry.has_active("other")
    assert registry.is_used(fake.address())
    assert fake.executions[other.id].terminations == 0


async def test_a_command_that_cannot_be_started_leaves_nothing(registry: ProcessRegistry, tmp_path: Path) -> None:
    """The caller gets the reason; no record stays."""
    environment = FakeEnvironment(default=ScriptedReply(fails_with=EnvironmentFailed("no such host")))

    with pytest.raises(EnvironmentFailed, match="no such host"):
        await registry.start(environment, CommandRequest(command="x"), session_key="s")

    assert registry.list(None) == []
    assert list((tmp_path / "processes").glob("proc_*")) == []


async def test_a_start_that_is_given_up_leaves_no_process(registry: ProcessRegistry) -> None:
    """A caller that is cancelled while the command starts does not leave it running unseen."""
    slow = SlowEnvironment()
    starting = asyncio.create_task(registry.start(slow, CommandRequest(command="x"), session_key="s"))
    await slow.reached.wait()

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    slow.may_go_on.set()
    await until(lambda: registry.count_running() == 0)

    (execution,) = slow.executions.values()
    assert execution.has_ended


class SlowEnvironment(FakeEnvironment):
    """Starts a command when it is told to."""

    def __init__(self) -> None:
        super().__init__(default=ScriptedReply(exit_code=None))
        self.reached, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def start(self, request, on_output):  # type: ignore[no-untyped-def]
        self.reached.set()
        await self.may_go_on.wait()
        return await super().start(request, on_output)


async def test_killing_goes_on_when_the_caller_gives_up(registry: ProcessRegistry, fake: FakeEnvironment) -> None:
    """A cancelled wait for the end does not save the process; a cancelled wait does not end it."""
    process, execution = await started(registry, fake)
    waiting = asyncio.create_task(registry.wait(process, WAIT_SECONDS))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    alive = process.is_running

    killing = asyncio.create_task(registry.kill(process, source="test"))
    await asyncio.sleep(0)
    killing.cancel()
    await process.done.wait()

    assert alive
    assert (execution.terminations, process.record.status) == (1, "killed")


async def test_finished_processes_are_kept_for_a_while_and_bounded(
    make_registry: Callable[..., ProcessRegistry], tmp_path: Path
) -> None:
    """The oldest finished ones go first, all go after half an hour, and their files with them."""
    clock = Clock()
    registry = make_registry(clock=clock, limits=ProcessLimits(finished_kept=3))
    environment = FakeEnvironment()
    processes = [(await started(registry, environment))[0] for _ in range(5)]
    await asyncio.gather(*(process.done.wait() for process in processes))

    kept = [process.record.id for process in registry.list("s")]
    clock.now += 1_801

    assert len(kept) == 3
    assert registry.list("s") == []
    assert list((tmp_path / "processes").glob("proc_*")) == []


async def test_running_processes_are_not_bounded(make_registry: Callable[..., ProcessRegistry]) -> None:
    """The bound on finished ones refuses and forgets no running one."""
    registry = make_registry(limits=ProcessLimits(finished_kept=2))
    environment = FakeEnvironment(default=ScriptedReply(exit_code=None))

    for _ in range(70):
        await started(registry, environment)

    assert registry.count_running("s") == len(registry.list("s")) == 70


async def test_completion_and_matches_are_both_told(registry: ProcessRegistry, fake: FakeEnvironment) -> None:
    """Notify and watch work together, and the events carry what the session needs to know."""
    process, execution = await started(registry, fake, notify_on_complete=True, watch_patterns=("READY", "FAIL"))
    execution.prints("starting\nREA")
    execution.prints("DY on port 80\n")
    execution.ends(7)
    await process.done.wait()

    match, completion = registry.notifier.unread("s", "chat")

    assert match.as_json() == {
        "type": "watch_match",
        "session_id": process.record.id,
        "session_key": "s",
        "command": "serve",
        "pattern": "READY",
        "output": "READY on port 80",
        "suppressed": 0,
    }
    assert completion.type == "completion"
    assert completion.fields == {
        "session_id": process.record.id,
        "session_key": "s",
        "command": "serve",
        "exit_code": 7,
        "completion_reason": "exited",
        "termination_source": "",
        "output": "starting\nREADY on port 80\n",
        "started_at": process.record.started_at,
    }


async def test_nothing_is_told_unasked(registry: ProcessRegistry, fake: FakeEnvironment) -> None:
    """A process without notify and watch ends in silence."""
    process, execution = await started(registry, fake)
    execution.ends(0)
    await process.done.wait()

    assert registry.notifier.unread("s", "chat") == []


async def test_a_reader_can_wait_for_news(registry: ProcessRegistry, fake: FakeEnvironment) -> None:
    """Whoever waits is woken by the event, and gets nothing when the time is over."""
    _, execution = await started(registry, fake, notify_on_complete=True)

    nothing = await registry.notifier.next_unread("s", "chat", 0.01)
    waiting = asyncio.create_task(registry.notifier.next_unread("s", "chat", WAIT_SECONDS))
    await asyncio.sleep(0)
    execution.ends(0)

    assert nothing == []
    assert types(await waiting) == ["completion"]
    registry.notifier.acknowledge("s", "chat", 1)
    assert await registry.notifier.next_unread("s", "chat", 0.01) == []


async def test_matches_held_back_are_told_when_the_window_ends(
    make_registry: Callable[..., ProcessRegistry], fake: FakeEnvironment
) -> None:
    """The clock tells them, not the next line."""
    registry = make_registry(watch_limits=WatchLimits(window_seconds=0.05))
    _, execution = await started(registry, fake, watch_patterns=("x",))
    execution.prints("x 1\n")
    execution.prints("x 2\nx 3\n")

    await until(lambda: len(registry.notifier.unread("s", "chat")) == 2)

    assert [event.fields["output"] for event in registry.notifier.unread("s", "chat")] == ["x 1", "x 2\nx 3"]


async def test_a_watch_that_never_rests_is_replaced_by_the_completion(
    make_registry: Callable[..., ProcessRegistry], fake: FakeEnvironment
) -> None:
    """The session is told that it is not watched any more, and later of its end."""
    registry = make_registry(watch_limits=WatchLimits(window_seconds=0.02))
    process, execution = await started(registry, fake, watch_patterns=("x",))

    def print_until_disabled() -> bool:
        execution.prints("x\n")
        return "watch_disabled" in types(registry.notifier.unread("s", "chat"))

    await until(print_until_disabled)
    execution.prints("x\n")
    execution.ends(0)
    await process.done.wait()

    told = types(registry.notifier.unread("s", "chat"))

    assert told[-2:] == ["watch_disabled", "completion"]
    assert set(told[:-2]) == {"watch_match"}


async def test_too_many_matches_of_a_session_pause_all_its_watches(
    make_registry: Callable[..., ProcessRegistry], fake: FakeEnvironment
) -> None:
    """After fifteen events the session hears of a pause, then of its end, and then what was held back."""
    registry = make_registry(watch_limits=WatchLimits(breaker_pause_seconds=0.05))
    executions = [(await started(registry, fake, watch_patterns=("x",)))[1] for _ in range(16)]
    for execution in executions:
        execution.prints("x\n")

    await until(lambda: len(registry.notifier.unread("s", "chat")) == 18)

    told = types(registry.notifier.unread("s", "chat"))
    assert told[:16] == ["watch_match"] * 15 + ["watch_overflow_tripped"]
    assert sorted(told[16:]) == ["watch_match", "watch_overflow_released"]


async def test_a_lost_environment_is_told(registry: ProcessRegistry, fake: FakeEnvironment) -> None:
    """A process whose environment went away is neither running nor exited."""
    process, execution = await started(registry, fake, notify_on_complete=True)
    execution.ends(255, "lost", note="the connection broke")
    await process.done.wait()

    (event,) = registry.notifier.unread("s", "chat")

    assert (process.record.status, process.record.note) == ("lost", "the connection broke")
    assert event.fields["completion_reason"] == "lost"


async def test_a_folder_that_does_not_exist_is_a_failed_start(registry: ProcessRegistry, fake: FakeEnvironment) -> None:
    """The command never ran, and the completion says so."""
    process, execution = await started(registry, fake)
    execution.ends(1, "no_folder")
    await process.done.wait()

    assert process.record.completion_reason == "failed_start"


async def test_a_foreground_command_that_left_children_is_adopted(
    registry: ProcessRegistry, fake: FakeEnvironment
) -> None:
    """It counts as running until its children are gone; its later output is heard."""
    execution = await fake.start(CommandRequest(command="server &", id="cmd_1"), lambda _: None)
    children = (OrphanedProcess(pid=77, command="server"),)
    execution.ends(0, orphans=children)
    record = registry.adopt(
        AdoptedCommand(execution=execution, session_key="s", command="server &", pids=(77,), output=b"before\n")
    )
    execution.heard_by(registry.sink(record.id), 0)
    execution.prints("after\n")
    process = registry.get(record.id, "s")
    running = process.is_running

    execution.settles()
    assert await registry.wait(process, WAIT_SECONDS)

    assert running
    assert (record.pid, record.command_id) == (77, "cmd_1")
    assert process.output.last_lines(9).lines == ["before", "after"]
    assert (process.record.status, process.record.exit_code) == ("exited", None)


async def test_a_foreground_command_that_waits_for_input_is_adopted(
    registry: ProcessRegistry, fake: FakeEnvironment
) -> None:
    """A command that still runs can be typed into and ends with its own exit code."""
    execution = await fake.start(CommandRequest(command="ask", id="cmd_2"), lambda _: None)
    execution.reads_input = True
    record = registry.adopt(AdoptedCommand(execution=execution, session_key="s", command="ask", has_terminal=True))
    process = registry.get(record.id, "s")

    waits = await process.waits_for_input()
    await process.write(b"y\r", registry.limits)
    execution.ends(4)
    await process.done.wait()

    assert waits
    assert execution.written == b"y\r"
    assert process.record.exit_code == 4


async def test_a_process_that_does_not_read_refuses_input_in_time(
    make_registry: Callable[..., ProcessRegistry], local: LocalShellEnvironment
) -> None:
    """Typing more than the pipe holds does not hang."""
    registry = make_registry(limits=ProcessLimits(write_seconds=0.1))
    process = await run_local(registry, local, "sleep 300")

    with pytest.raises(InputRefused, match="has not read its input"):
        await process.write(b"x" * 1_000_000, registry.limits)


async def test_close_ends_everything_and_is_bounded(
    make_registry: Callable[..., ProcessRegistry], fake: FakeEnvironment
) -> None:
    """An orderly end takes the processes with it; one that refuses costs a bounded time and stays on record."""
    registry = make_registry(limits=ProcessLimits(close_seconds=0.1))
    tame, tame_execution = await started(registry, fake)
    wild, wild_execution = await started(registry, fake)
    wild_execution.is_stubborn = True

    await registry.close()

    assert tame_execution.has_ended
    assert (tame.record.status, tame.record.termination_source) == ("killed", "shutdown")
    assert wild.is_running
    wild_execution.ends(0)
