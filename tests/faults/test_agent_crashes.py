"""An agent that is killed at any point of a run with effects: nothing finished is lost, nothing happens twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.agent_run import NOTES, is_written, read
from toolcrib.sessions.recovery import check_transcript, repair
from toolcrib.sessions.store import SessionStore

# Processes are killed again and again, which takes time.
pytestmark = pytest.mark.services

PROGRAM = Path(__file__).with_name("agent_run.py")
QUICK_POINTS, ALL_POINTS = 12, 200
SEED = 20_260


class AgentForkServer:
    """The program that runs agents in forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, kill_at: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{folder} {kill_at}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture
def fork_server() -> Iterator[AgentForkServer]:
    opened = AgentForkServer()
    yield opened
    opened.close()


def kill_everywhere(fork_server: AgentForkServer, folder: Path, points: int) -> None:
    whole = folder / "whole"
    whole.mkdir()
    calls = fork_server.run(whole, 0)["calls"]
    generator = random.Random(SEED)
    killed = 0
    for number in range(points):
        place = folder / str(number)
        place.mkdir()
        killed += fork_server.run(place, generator.randrange(1, calls))["exit"] == -9
        check_what_is_left(place)
        check_second_run(fork_server, place)
    # Threads do not run the same way twice, so a late point may lie behind the end.
    assert killed >= points * 0.8


def check_what_is_left(place: Path) -> None:
    """After the kill: every finished result is in a conversation that a strict provider accepts."""
    written = {number for number in NOTES if is_written(place, number)}
    if not (place / "home" / "sessions.db").exists():
        assert written == set()
        return
    store = SessionStore(place / "home" / "sessions.db")
    for session in store.list():
        repair(store, session.id)
        messages = [one.message for one in store.messages(session.id)]
        assert check_transcript(messages) == []
        results = {message.call_id: message for message in messages if message.role == "tool"}
        for call in store.calls(session.id):
            if call.finished_at is not None:
                assert "noted" in results[call.call_id].text
        done, doubtful = read(messages)
        assert done <= written <= done | doubtful
    store.close()


def check_second_run(fork_server: AgentForkServer, place: Path) -> None:
    """Going on with the session brings the work to its end, each effect exactly once."""
    answer = fork_server.run(place, 0)

    assert answer["answer"] == "All notes are written."
    assert {number: (place / f"note-{number}").read_text() for number in NOTES} == dict.fromkeys(NOTES, "noted\n")


def test_a_killed_agent_loses_and_repeats_nothing(fork_server: AgentForkServer, tmp_path: Path) -> None:
    """At each of a few random points, what was finished is kept and what was done is not done again."""
    kill_everywhere(fork_server, tmp_path, QUICK_POINTS)


@pytest.mark.services
def test_an_agent_killed_at_two_hundred_points_loses_and_repeats_nothing(
    fork_server: AgentForkServer, tmp_path: Path
) -> None:
    """At each of two hundred random points, what was finished is kept and what was done is not done again."""
    kill_everywhere(fork_server, tmp_path, ALL_POINTS)
