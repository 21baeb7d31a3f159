"""Our process is killed while it runs commands: the next start ends what was left, and loses nothing that ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import places
from tests.faults.crashes import Crash, CrashCommand, Owner, log_of
from tests.faults.places import Place

# Processes are killed again and again, which takes time.
pytestmark = pytest.mark.services

LINES = tuple(f"line {number}" for number in range(1, 3001))
PRINT_LINES = "for ((n = 1; n <= 3000; n++)); do echo line $n; done"


IN_FRONT = tuple(
    CrashCommand(name=f"front-{number}", command=command, background=False)
    for number, command in enumerate(
        [
            "touch {here}; sleep 600",
            "sleep 600 & touch {here}; wait",
            "touch {here}; while :; do sleep 0.1; done",
            "trap '' TERM HUP PIPE; touch {here}; while :; do sleep 0.1; done",
            "setsid sleep 600 & touch {here}; wait",
            "setsid sleep 600 >/dev/null 2>&1 </dev/null & touch {here}; sleep 600",
            "nohup sleep 600 >/dev/null 2>&1 & touch {here}; sleep 600",
            "touch {here}; exec sleep 600",
            "(trap '' TERM; sleep 600; sleep 600) & touch {here}; wait",
            "cd /; export A=1; touch {here}; bash -c 'sleep 600; true' | cat",
        ]
    )
)
BEHIND = (
    CrashCommand(name="before", command=f"{PRINT_LINES}; exit 5", ends="before", exit_code=5, prints=LINES),
    CrashCommand(
        name="left-a-child",
        command="setsid sleep 600 & echo mine; exit 3",
        ends="before",
        exit_code=3,
        prints=("mine",),
    ),
    CrashCommand(
        name="after",
        command=f"touch {{here}}; {{wait}}; {PRINT_LINES}; exit 6",
        ends="after",
        exit_code=6,
        prints=LINES,
    ),
    CrashCommand(
        name="both",
        command="echo one; touch {here}; {wait}; printf 'zw\\303\\266lf'",
        ends="after",
        prints=("one", "zwölf"),
    ),
    CrashCommand(
        name="after-with-child",
        command="(trap '' TERM; setsid sleep 600) & touch {here}; {wait}; echo done; exit 9",
        ends="after",
        exit_code=9,
        prints=("done",),
    ),
    CrashCommand(name="runs", command="echo begun; touch {here}; sleep 600", prints=("begun",)),
    CrashCommand(name="apart", command="setsid sleep 600 & touch {here}; sleep 600"),
    CrashCommand(name="nohup", command="nohup sleep 600 >/dev/null 2>&1 & touch {here}; wait"),
    CrashCommand(
        name="deaf",
        command="trap '' TERM; echo deaf; touch {here}; while :; do sleep 0.1; done",
        prints=("deaf",),
    ),
    CrashCommand(name="reads", command="touch {here}; while read -r -t 600 line || [ $? -lt 128 ]; do sleep 0.1; done"),
)
COMMANDS = (*BEHIND, *IN_FRONT)


def named(*ends: str) -> list[str]:
    """The commands in the background that end so."""
    return sorted(one.name for one in BEHIND if one.ends in ends)


@pytest.fixture(
    params=[
        "local",
        pytest.param("docker", marks=pytest.mark.services),
        pytest.param("ssh", marks=pytest.mark.services),
    ]
)
def place(request: pytest.FixtureRequest, shared: Path, tmp_path: Path) -> Place:
    if request.param == "docker":
        return places.docker(shared, request.getfixturevalue("docker_host"))
    if request.param == "ssh":
        pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install 'toolcrib[ssh]'")
        return places.ssh(shared, request.getfixturevalue("ssh_server"), tmp_path)
    return places.local(shared)


def test_after_a_kill_nothing_runs_on_and_nothing_finished_is_lost(
    place: Place, tmp_path: Path, owners: Callable[[Crash], Owner]
) -> None:
    """Of twenty commands those that ended before or after the kill can be read; the next start ends all others."""
    crash = Crash(place, tmp_path, COMMANDS, sessions=10 if place.settings["backend"] == "local" else 3)
    crash.happen()
    assert place.marked([crash.mark])
    crash.let_some_finish()

    owner = owners(crash)
    owner.say("go")
    recovered = owner.hear()

    assert crash.names_in(recovered) == {"ended": named("never"), "finished": named("after")}
    assert place.marked(crash.marks) == []
    assert place.there(crash.addresses) == []
    assert list((crash.home / "processes" / "environments").iterdir()) == []
    for one in BEHIND:
        answer = log_of(owner, crash, one)
        assert answer["output"][: len(one.prints)] == list(one.prints), one.name
        if one.ends == "never":
            assert (answer["status"], answer["termination_source"]) == ("killed", "recovery"), one.name
        else:
            assert (answer["status"], answer["exit_code"]) == ("exited", one.exit_code), one.name
            assert len(answer["output"]) == len(one.prints), one.name


def fronts(crash: Crash) -> set[str]:
    """The processes of the commands in the foreground."""
    return set(crash.place.marked([crash.mark])) & set(crash.place.marked(["TOOLCRIB_COMMAND_ID=cmd_"]))


def test_after_a_kill_background_commands_go_on_if_the_user_wants_that(
    shared: Path, tmp_path: Path, owners: Callable[[Crash], Owner]
) -> None:
    """With `orphans: adopt` they are heard and can be ended; commands in the foreground, whom nobody hears, are not."""
    crash = Crash(places.local(shared), tmp_path, COMMANDS, sessions=3, orphans="adopt")
    crash.happen()
    fronts_before = fronts(crash)

    owner = owners(crash)
    owner.say("go")
    recovered = owner.hear()
    adopted = {one.name: log_of(owner, crash, one) for one in BEHIND if one.ends != "before"}
    fronts_after = fronts(crash)
    crash.let_some_finish()
    waited = owner.ask(crash.session_of["after"], "process", action="wait", session_id=crash.ids["after"])
    killed = owner.ask(crash.session_of["deaf"], "process", action="kill", session_id=crash.ids["deaf"])
    owner.end()

    assert crash.names_in(recovered) == {"adopted": named("never", "after")}
    assert {answer["status"] for answer in adopted.values()} == {"running"}
    assert len(fronts_before) >= len(IN_FRONT)
    assert fronts_after == set()
    assert (waited["status"], waited["exit_code"]) == ("exited", 6)
    assert killed["status"] == "killed"
    assert crash.place.marked(crash.marks) == []
    assert crash.place.there(crash.addresses) == []


def test_two_that_start_at_once_after_a_kill_share_the_work(
    shared: Path, tmp_path: Path, owners: Callable[[Crash], Owner]
) -> None:
    """Every process is recovered once, by one of the two."""
    crash = Crash(places.local(shared), tmp_path, COMMANDS, sessions=3)
    crash.happen()
    crash.let_some_finish()

    both = [owners(crash), owners(crash)]
    for owner in both:
        owner.say("go")
    found = [owner.hear() for owner in both]

    assert crash.names_in(*found) == {"ended": named("never"), "finished": named("after")}
    assert crash.place.marked(crash.marks) == []
    assert crash.place.there(crash.addresses) == []
