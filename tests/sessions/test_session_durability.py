"""Whatever the store has confirmed survives a killed process, and processes share one file without losing anything."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sessions.conversations import EFFECTS, context, entry, says
from toolcrib.core.errors import SessionError
from toolcrib.core.messages import Message
from toolcrib.sessions.recovery import check_transcript, repair
from toolcrib.sessions.search import search_messages
from toolcrib.sessions.store import SessionStore

WRITER = Path(__file__).parent / "session_writer.py"


def start_writer(home: Path, session_id: str, name: str, exchanges: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), str(home / "sessions.db"), session_id, name, str(home / "world")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([*command, str(exchanges)], stdout=subprocess.PIPE, text=True, env=environ)


def kill_after(writer: subprocess.Popen[str], lines: int, more: int) -> list[str]:
    """Kill a writer some instructions after a line, and return everything it had reported by then."""
    assert writer.stdout is not None
    said = [writer.stdout.readline().strip() for _ in range(lines)]
    for _ in range(more):
        pass
    os.kill(writer.pid, signal.SIGKILL)
    said += [line.strip() for line in writer.stdout]
    writer.stdout.close()
    writer.wait(10)
    return [line for line in said if line]


def live(store: SessionStore, session_id: str) -> list[Message]:
    return [one.message for one in store.messages(session_id)]


def check_after_kill(store: SessionStore, session_id: str, said: list[str], world: list[str]) -> None:
    repair(store, session_id)
    messages = live(store, session_id)
    assert check_transcript(messages) == []
    texts = {one.call_id: one.text for one in messages if one.role == "tool"}
    for line in said:
        word, _, what = line.partition(" ")
        if word == "finished":
            assert texts[what] == f"result of {what}"
        elif word == "asked":
            assert any(one.text.endswith(f"asks {what}") for one in messages)
        elif word == "answered":
            assert any(one.text.endswith(f"answers {what}") for one in messages)
    for call_id, text in texts.items():
        happened = call_id in world
        status = "" if text == f"result of {call_id}" else json.loads(text)["status"]
        assert status in (["", "unknown"] if happened else ["unknown", "never_run"])


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("seed", range(12))
def test_a_killed_process_loses_nothing_that_it_was_told_is_safe(home: Path, store: SessionStore, seed: int) -> None:
    """Wherever the process is killed, no recorded result is lost and no effect is denied."""
    choice = random.Random(seed)
    session = store.create()
    writer = start_writer(home, session.id, "w", 200)

    said = kill_after(writer, choice.randrange(1, 60), choice.randrange(0, 30_000))

    check_after_kill(store, session.id, said, (home / "world").read_text().split())
    assert store.database.path is not None
    with store.database.read() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.services
@pytest.mark.parametrize("seed", range(100, 300))
def test_two_hundred_kills(home: Path, store: SessionStore, seed: int) -> None:
    """The same at two hundred random points."""
    test_a_killed_process_loses_nothing_that_it_was_told_is_safe(home, store, seed)


@pytest.mark.services
def test_a_session_goes_on_after_each_of_many_kills(home: Path, store: SessionStore) -> None:
    """A session that is killed, repaired and resumed many times stays whole."""
    session = store.create()
    said: list[str] = []
    for run in range(5):
        writer = start_writer(home, session.id, f"run{run}", 50)
        said += [line for line in kill_after(writer, 7 + run, run * 5_000) if "run" in line]
        repair(store, session.id)

    check_after_kill(store, session.id, said, (home / "world").read_text().split())


@pytest.mark.services
def test_processes_append_to_one_session_side_by_side(home: Path, store: SessionStore) -> None:
    """Appends of several processes are all stored, each in its order, and calls find their results."""
    session = store.create()
    writers = [start_writer(home, session.id, f"w{number}", 15) for number in range(3)]
    for writer in writers:
        out, _ = writer.communicate(timeout=60)
        assert out.endswith("done\n")

    repair(store, session.id)
    messages = live(store, session.id)
    problems = [one for one in check_transcript(messages) if "follows an assistant" not in one]

    assert problems == []
    assert Counter(one.role for one in messages) == {"user": 45, "assistant": 90, "tool": 90}
    for number in range(3):
        asked = [one.text for one in messages if one.text.startswith(f"w{number} asks")]
        assert asked == [f"w{number} asks {exchange}" for exchange in range(15)]
    assert store.get(session.id).message_count == 225
    assert len(search_messages(store, "asks", limit=100)) == 45


OPENER = """
import sys
from toolcrib.core.messages import Message
from toolcrib.sessions.store import SessionStore
store = SessionStore(sys.argv[1])
store.append(store.create().id, Message(role="user", content="hello"))
"""


@pytest.mark.services
def test_processes_may_be_first_at_the_same_time(home: Path) -> None:
    """Several processes that find no database create one together."""
    path = home / "sessions.db"
    openers = [subprocess.Popen([sys.executable, "-c", OPENER, str(path)]) for _ in range(5)]

    assert [opener.wait(60) for opener in openers] == [0] * 5

    store = SessionStore(path)
    assert store.stats()["messages"] == 5
    store.close()


FULL_DISK = """
import resource, signal, sys
from toolcrib.core.errors import SessionError
from toolcrib.core.messages import Message
from toolcrib.sessions.store import SessionStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SessionStore(sys.argv[1])
session = store.create(session_id="s")
kept = 0
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
try:
    while True:
        store.append("s", Message(role="user", content=f"{kept} " + "x" * 5_000))
        kept += 1
except SessionError as error:
    print(kept, error)
    print(len(store.messages("s")))
"""


def test_a_full_disk_is_said_and_loses_nothing(home: Path) -> None:
    """If the disk is full, the append fails with a message, and earlier appends are intact."""
    path = home / "sessions.db"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=60, check=True
    )

    said, counted = done.stdout.splitlines()
    kept = int(said.split()[0])
    assert kept > 5
    assert int(counted) == kept
    assert str(path) in said
    assert re.search("disk", said)
    store = SessionStore(path)
    assert [one.message.text.split()[0] for one in store.messages("s")] == [str(number) for number in range(kept)]
    store.append("s", says("room again"))
    store.close()


def test_an_effect_does_not_begin_when_its_start_cannot_be_recorded(home: Path, store: SessionStore) -> None:
    """`started` raises if the database is gone, so that the pipeline refuses the call."""
    session = store.create()
    with store.database.read() as connection:
        connection.execute("PRAGMA query_only = ON")

    with pytest.raises(SessionError, match="cannot write"):
        store.recorder().started(entry(), {}, EFFECTS, context(session.id, "c1"))


FORK = """
import os, sys
from toolcrib.core.messages import Message
from toolcrib.sessions.store import SessionStore
store = SessionStore(sys.argv[1])
store.create(session_id="s")
store.append("s", Message(role="user", content="before"))
child = os.fork()
store.append("s", Message(role="user", content="child" if child == 0 else "parent"))
if child:
    assert os.waitpid(child, 0)[1] == 0
    store.append("s", Message(role="user", content="after"))
"""


def test_a_forked_child_opens_a_connection_of_its_own(home: Path, store: SessionStore) -> None:
    """A store that was used before a fork works in the parent and in the child."""
    subprocess.run([sys.executable, "-c", FORK, str(home / "sessions.db")], timeout=60, check=True)

    texts = [one.text for one in live(store, "s")]
    assert (texts[0], {*texts[1:3]}, texts[3:]) == ("before", {"child", "parent"}, ["after"])
