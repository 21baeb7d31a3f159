"""After a crash of ours nothing runs on unseen, and nothing that was finished is lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from toolcrib.core.environments import CommandRequest, Environment
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.environments.shell import SessionOptions
from toolcrib.process_identity import Identity, identity_of, is_alive, own_identity
from toolcrib.processes.orphan_cleanup import end_tree, processes_of
from toolcrib.processes.recovery import recover
from toolcrib.processes.registry import ProcessRegistry
from toolcrib.testing.environments import FakeEnvironment, ScriptedReply

WAIT_SECONDS = 20.0
MakeRegistry = Callable[..., ProcessRegistry]


def crash(folder: Path, *commands: str) -> list[str]:
    """The ids of processes that were started by a process of ours that is dead now."""
    program = Path(__file__).with_name("crashing_owner.py")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(program), str(folder), *commands],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    ) as child:
        assert child.stdout is not None
        ids = []
        for line in child.stdout:
            if line.strip() == "ready":
                break
            ids.append(line.strip())
        child.communicate("go\n")
    assert child.returncode == -9
    return ids


async def open_local(address: Mapping[str, str]) -> Environment | None:
    if not os.path.isdir(address["folder"]):  # noqa: PTH112, ASYNC240 - one look at a folder of this machine
        return None
    environment = LocalShellEnvironment(dict(os.environ), SessionOptions(folder=address["folder"]))
    await environment.open()
    return environment


async def open_nothing(_: Mapping[str, str]) -> Environment | None:
    return None


async def dead() -> Identity:
    """Somebody who has lived once."""
    child = await asyncio.create_subprocess_exec("true")
    await child.wait()
    return Identity(child.pid, "gone")


async def left_by_the_dead(folder: Path, fake: FakeEnvironment, **options: bool) -> str:
    """A running process whose owner is dead."""
    earlier = ProcessRegistry(folder, owner=await dead())
    record = await earlier.start(fake, CommandRequest(command="serve"), session_key="s", **options)  # type: ignore[arg-type]
    watching = earlier.get(record.id, "s").waiter
    assert watching is not None
    watching.cancel()
    return record.id


async def test_orphans_are_ended_and_nothing_finished_is_lost(make_registry: MakeRegistry, tmp_path: Path) -> None:
    """Running ones are ended with their trees; what ended before or after the crash can be read, each told once."""
    folder = tmp_path / "processes"
    before, after, runs = crash(
        folder,
        "echo finished before; exit 5 # finishes",
        "while [ -d /proc/$PPID ] && kill -0 $PPID 2>/dev/null; do sleep 0.02; done; echo finished after; exit 6",
        "echo begun; setsid sleep 300 & sleep 300",
    )
    registry = make_registry(folder=folder)

    recovered = await recover(registry, open_local, "end")

    assert recovered.ended == (runs,)
    assert recovered.finished == (after,)
    assert processes_of(runs, None) == []
    for process_id, status, code, text in (
        (before, "exited", 5, ["finished before"]),
        (after, "exited", 6, ["finished after"]),
        (runs, "killed", None, ["begun"]),
    ):
        process = registry.get(process_id, "s")
        assert process.record.status == status
        assert code in (None, process.record.exit_code)
        # The shell may say that its program was ended.
        assert process.output.last_lines(10).lines[:1] == text
    told = [event.fields["session_id"] for event in registry.notifier.unread("s", "chat")]
    assert sorted(told) == sorted([before, after, runs])
    assert list((folder / "environments").iterdir()) == []


@pytest.mark.services
async def test_orphans_go_on_when_the_user_wants_that(make_registry: MakeRegistry, tmp_path: Path) -> None:
    """An adopted process is heard from its first line on, can be waited for and ended."""
    folder = tmp_path / "processes"
    (runs,) = crash(folder, "echo begun; sleep 300")
    registry = make_registry(folder=folder)

    recovered = await recover(registry, open_local, "adopt")
    process = registry.get(runs, "s")
    running = process.is_running and processes_of(runs, None) != []
    await registry.kill(process, source="test")

    assert recovered.adopted == (runs,)
    assert running
    assert process.output.last_lines(10).lines[:1] == ["begun"]
    assert processes_of(runs, None) == []


async def test_orphans_are_ended_even_if_their_environment_is_gone(make_registry: MakeRegistry, tmp_path: Path) -> None:
    """On this machine the ledger alone is enough to end them."""
    folder = tmp_path / "processes"
    (runs,) = crash(folder, "setsid sleep 300 & sleep 300")
    registry = make_registry(folder=folder)

    recovered = await recover(registry, open_nothing, "adopt")

    assert recovered.lost == (runs,)
    assert processes_of(runs, None) == []


async def test_what_a_living_owner_has_is_not_touched(make_registry: MakeRegistry, tmp_path: Path) -> None:
    """Several processes of ours share the folder."""
    earlier, later = make_registry(), make_registry(owner=Identity(os.getppid(), ""))
    environment = FakeEnvironment(default=ScriptedReply(exit_code=None))
    record = await earlier.start(environment, CommandRequest(command="serve"), session_key="s")

    recovered = await recover(later, open_nothing, "end")

    assert recovered.ended == recovered.lost == ()
    assert later.list(None) == []
    assert earlier.get(record.id, "s").is_running


async def test_two_that_recover_at_once_never_get_the_same_orphan(make_registry: MakeRegistry, tmp_path: Path) -> None:
    """Whoever comes first has it; to the other it belongs to a living owner."""
    await left_by_the_dead(tmp_path / "processes", FakeEnvironment(default=ScriptedReply(exit_code=None)))
    one, other = make_registry(), make_registry(owner=Identity(os.getppid(), ""))

    first, second = one.ledger.take_orphans(), other.ledger.take_orphans()

    assert (len(first.running), len(second.running)) == (1, 0)


async def test_an_environment_that_cannot_be_reached_is_tried_again_next_time(
    make_registry: MakeRegistry, fake: FakeEnvironment, tmp_path: Path
) -> None:
    """Its processes count as lost, but the environment stays on record with us as its owner."""
    process_id = await left_by_the_dead(tmp_path / "processes", fake)
    registry = make_registry()

    async def unreachable(_: Mapping[str, str]) -> Environment | None:
        raise EnvironmentFailed("the host does not answer")

    recovered = await recover(registry, unreachable, "end")

    assert recovered.lost == (process_id,)
    (entry,) = (tmp_path / "processes" / "environments").iterdir()
    environment = json.loads(entry.read_text())
    assert environment["address"] == dict(fake.address())
    assert environment["owner"]["pid"] == os.getpid()


async def test_a_completion_that_was_told_before_the_crash_is_not_told_again(
    make_registry: MakeRegistry, fake: FakeEnvironment, tmp_path: Path
) -> None:
    """Dying between telling of an end and recording it doubles nothing."""
    process_id = await left_by_the_dead(tmp_path / "processes", fake, notify_on_complete=True)
    registry = make_registry()
    registry.notifier.publish("s", "completion", {"session_id": process_id})

    async def open_fake(_: Mapping[str, str]) -> Environment | None:
        return fake

    await recover(registry, open_fake, "end")

    assert len(registry.notifier.unread("s", "chat")) == 1
    assert fake.closings == 1


async def test_environments_without_processes_are_given_back(
    make_registry: MakeRegistry, fake: FakeEnvironment
) -> None:
    """An environment that a dead process of ours had open is opened once more and closed."""
    make_registry(owner=await dead()).ledger.environment_opened(fake.address())
    registry = make_registry()
    opened = []

    async def open_fake(address: Mapping[str, str]) -> Environment | None:
        opened.append(dict(address))
        return fake

    await recover(registry, open_fake, "end")

    assert opened == [dict(fake.address())]
    assert fake.closings == 1
    assert registry.ledger.take_orphans().environments == ()


async def test_an_adopted_environment_is_given_back_with_its_last_process(
    make_registry: MakeRegistry, fake: FakeEnvironment, tmp_path: Path
) -> None:
    """The environment stays open for what goes on in it, and no longer."""
    process_id = await left_by_the_dead(tmp_path / "processes", fake)
    registry = make_registry()

    async def open_fake(_: Mapping[str, str]) -> Environment | None:
        return fake

    await recover(registry, open_fake, "adopt")
    before = fake.closings
    fake.executions[process_id].ends(0)
    async with asyncio.timeout(WAIT_SECONDS):
        while not fake.closings:  # noqa: ASYNC110 - closed by a task of the registry
            await asyncio.sleep(0.01)

    assert before == 0
    assert registry.get(process_id, "s").record.exit_code == 0


async def test_an_empty_home_has_nothing_to_recover(make_registry: MakeRegistry, tmp_path: Path) -> None:
    """The first start finds nothing and makes no folder."""
    recovered = await recover(make_registry(), open_nothing, "end")

    assert recovered.ended == recovered.adopted == recovered.finished == recovered.lost == ()
    assert not (tmp_path / "processes").exists()


async def test_a_number_that_was_given_away_again_is_nobody_we_know() -> None:
    """A process is known by its id and its start together."""
    ours = own_identity()

    assert is_alive(ours)
    assert not is_alive(Identity(ours.pid, "another start"))
    assert not is_alive(await dead())
    assert identity_of(2**22 + 1) is None


@pytest.mark.parametrize("command", ["exec sleep 300", "trap '' TERM; sleep 300; sleep 300"])
async def test_a_tree_is_ended_by_the_name_in_its_environment(command: str) -> None:
    """TERM first, KILL for those that do not listen; true when none is left."""
    child = await asyncio.create_subprocess_exec(
        "bash", "-c", f"echo up; {command}", env={**os.environ, "TOOLCRIB_COMMAND_ID": "proc_test"}, stdout=-1
    )
    assert child.stdout is not None
    await child.stdout.readline()

    assert await end_tree("proc_test", None, 0.2)

    assert await child.wait() < 0
    assert processes_of("proc_test", None) == []


async def test_a_process_that_is_being_recovered_is_known_at_once(
    make_registry: MakeRegistry, fake: FakeEnvironment, tmp_path: Path
) -> None:
    """Whoever asks while its environment is being opened can see it and wait for it."""
    process_id = await left_by_the_dead(tmp_path / "processes", fake)
    registry = make_registry()
    asked, may_open = asyncio.Event(), asyncio.Event()

    async def open_slowly(_: Mapping[str, str]) -> Environment | None:
        asked.set()
        await may_open.wait()
        return fake

    recovering = asyncio.create_task(recover(registry, open_slowly, "end"))
    await asked.wait()
    process = registry.get(process_id, "s")
    running = process.is_running
    may_open.set()
    await recovering

    assert running
    assert await registry.wait(process, WAIT_SECONDS)
    assert (process.record.status, process.record.termination_source) == ("killed", "recovery")
