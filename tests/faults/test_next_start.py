"""What the next start makes of places that cannot be reached, are gone, or were left with more than was asked for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.environments.own_sshd import own_sshd
from tests.faults import places
from tests.faults.crashes import Crash, CrashCommand, Owner, log_of, wait_for
from tests.faults.places import Place
from toolcrib.process_identity import Identity
from toolcrib.processes.ledger import Ledger
from toolcrib.processes.process import ProcessRecord
from toolcrib.runtime import Runtime

# Processes are killed again and again, which takes time.
pytestmark = pytest.mark.services

SOME = (
    CrashCommand(
        name="after",
        command="touch {here}; {wait}; echo much; exit 4",
        ends="after",
        exit_code=4,
        prints=("much",),
    ),
    CrashCommand(name="runs", command="touch {here}; sleep 600"),
    CrashCommand(name="front", command="touch {here}; sleep 600", background=False),
)
SSH_NEEDED = "asyncssh is not installed: pip install 'toolcrib[ssh]'"
Owners = Callable[[Crash], Owner]


def recovered_by(owner: Owner) -> dict[str, list[str]]:
    owner.say("go")
    found: dict[str, list[str]] = owner.hear()
    return found


@pytest.mark.services
def test_a_host_that_is_down_is_tried_again_at_the_next_start(shared: Path, tmp_path: Path, owners: Owners) -> None:
    """Until then its processes count as lost; then they are ended, and what they had printed can be read."""
    pytest.importorskip("asyncssh", reason=SSH_NEEDED)
    sshd = own_sshd(tmp_path / "sshd")
    options = {"host": "127.0.0.1", "port": sshd.port, "user": sshd.user, "key": str(sshd.key)}
    place = Place(
        settings={"backend": "ssh", "ssh": {**options, "known_hosts": str(tmp_path / "known_hosts")}},
        shared=shared,
        shared_inside=str(shared),
    )
    crash = Crash(place, tmp_path, SOME)
    sshd.start()
    try:
        crash.happen()
        sshd.stop()
        crash.let_some_finish()
        first = owners(crash)
        unreachable = recovered_by(first)
        told = log_of(first, crash, SOME[0])
        first.end()
        left = place.marked([crash.mark])
        sshd.start()
        second = owners(crash)
        reached = recovered_by(second)
        log = log_of(second, crash, SOME[0])

        assert crash.names_in(unreachable) == {"lost": ["after", "runs"]}
        assert "next start" in told["note"]
        assert left != []
        assert crash.names_in(reached) == {"finished": ["after"], "ended": ["runs"]}
        assert (log["output"], log["exit_code"]) == (["much"], 4)
        assert place.marked(crash.marks) == []
        assert place.there(crash.addresses) == []
    finally:
        sshd.stop()


def test_a_command_does_not_wait_for_a_host_that_is_silent(home: Path) -> None:
    """What an earlier run left is looked after beside the first command, and stays on record."""
    pytest.importorskip("asyncssh", reason=SSH_NEEDED)
    with subprocess.Popen(["true"]) as dead:
        pass
    ledger = Ledger(home / "processes", Identity(dead.pid, "gone"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = {"kind": "ssh", "folder": "/tmp/toolcrib-x", "host": "127.0.0.1", "user": "nobody", "config": "none"}
        address["port"] = str(silent.getsockname()[1])
        record = ProcessRecord(
            id="proc_0123456789ab",
            session_key="s",
            command="serve",
            kind="ssh",
            address=address,
            owner=ledger.owner,
            started_at=1.0,
        )
        ledger.save(record, first=True)
        ledger.environment_opened(address)
        runtime = Runtime(home=home, yolo=True)
        try:
            answer = ask(runtime, "terminal", command="echo here")
            meanwhile = ask(runtime, "process", action="poll", session_id=record.id)
            silent.close()
            # A connection that waits in the queue of a closed socket is refused.
            recovered = runtime.terminal.recover()
            afterwards = ask(runtime, "process", action="poll", session_id=record.id)
        finally:
            runtime.close()

    assert (answer["output"].strip(), answer["exit_code"]) == ("here", 0)
    assert meanwhile["status"] == "running"
    assert recovered.lost == (record.id,)
    assert afterwards["status"] == "lost"
    on_disk = json.loads((home / "processes" / record.id / "meta.json").read_text())
    (entry,) = (home / "processes" / "environments").iterdir()
    assert on_disk["status"] == "running"
    assert json.loads(entry.read_text())["address"] == address


def ask(runtime: Runtime, tool: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        runtime.call_sync(tool, arguments, runtime.context(session_id="s", tool_name=tool)).content
    )
    return answer


@pytest.mark.services
def test_a_container_that_is_gone_is_forgotten(shared: Path, tmp_path: Path, docker_host: str, owners: Owners) -> None:
    """Nobody can tell what became of its processes, and nobody asks for it again."""
    place = places.docker(shared, docker_host)
    crash = Crash(place, tmp_path, SOME)
    crash.happen()
    remove = ["docker", "rm", "-f", *place.there(crash.addresses)]
    subprocess.run(remove, env={**os.environ, **place.environ}, check=True, capture_output=True)

    recovered = recovered_by(owners(crash))

    assert crash.names_in(recovered) == {"lost": ["after", "runs"]}
    assert list((crash.home / "processes" / "environments").iterdir()) == []


@pytest.mark.services
def test_a_container_that_is_kept_is_found_again_by_its_session(
    shared: Path, tmp_path: Path, docker_host: str, owners: Owners
) -> None:
    """What ran in it has ended, and it waits, with its files, for the session to go on."""
    place = places.docker(shared, docker_host, persistent=True)
    writes = CrashCommand(name="writes", command="echo mine >/root/kept; touch {here}; sleep 600")
    crash = Crash(place, tmp_path, (writes, SOME[2]))
    crash.happen()
    before = place.there(crash.addresses)
    try:
        owner = owners(crash)
        recovered = recovered_by(owner)
        ended = place.marked(crash.marks) == []
        kept = owner.ask("session-0", "terminal", command="cat /root/kept")
        after = place.there(crash.addresses)
    finally:
        remove = ["docker", "rm", "-f", *place.there(crash.addresses)]
        subprocess.run(remove, env={**os.environ, **place.environ}, check=False, capture_output=True)

    assert crash.names_in(recovered) == {"ended": ["writes"]}
    assert ended
    assert kept["output"].strip() == "mine"
    assert len(before) == 1
    assert after == before


def test_a_sandbox_ends_with_its_owner_and_its_folder_is_removed(shared: Path, tmp_path: Path, owners: Owners) -> None:
    """Nothing of it runs on, and the next start leaves no file of it."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    place = Place(
        settings={"backend": "sandbox", "cwd": str(workspace)}, shared=workspace, shared_inside=str(workspace)
    )
    crash = Crash(place, tmp_path, SOME)
    crash.happen()
    scratch = [Path(address["scratch"]) for address in crash.addresses]
    wait_for(lambda: place.marked([crash.mark]))

    recovered = recovered_by(owners(crash))

    assert crash.names_in(recovered) == {"lost": ["after", "runs"]}
    assert len(scratch) == 1
    assert not scratch[0].exists()
    assert list((crash.home / "processes" / "environments").iterdir()) == []


def test_what_a_command_had_left_running_goes_on_if_the_user_wants_that(
    shared: Path, tmp_path: Path, owners: Owners
) -> None:
    """A server that was started with `&` in the foreground is adopted, and can be ended."""
    left = CrashCommand(
        name="server",
        command="nohup bash -c 'touch {here}; exec sleep 600' >/dev/null 2>&1 </dev/null &",
        background=False,
    )
    crash = Crash(places.local(shared), tmp_path, (left, SOME[2]), orphans="adopt")
    records = crash.home / "processes"
    crash.happen(lambda: not [1 for one in records.glob("*/meta.json") if '"adopted":true' in one.read_text()])

    owner = owners(crash)
    (adopted,) = recovered_by(owner)["adopted"]
    running = crash.place.marked([crash.mark])
    killed = owner.ask("session-0", "process", action="kill", session_id=adopted)
    owner.end()

    assert len(running) == 1
    assert "sleep 600" in running[0]
    assert killed["status"] == "killed"
    assert crash.place.marked(crash.marks) == []
    assert crash.place.there(crash.addresses) == []
