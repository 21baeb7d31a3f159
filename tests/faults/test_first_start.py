"""Processes that start at the same moment on a new home, or on one that an older version left, do not fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import SOURCE
from tests.sessions.test_session_schema import VERSION_1_ROWS, make_file, version
from toolcrib.sessions.database import STEPS, TABLES
from toolcrib.sessions.store import SessionStore

PROCESSES = 8
rounds = pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.services)], ids=["quick", "full"])
"""How often processes race; each round is a new chance for what must not happen."""


class Racers:
    """The program that lets processes race."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.first_start"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=SOURCE.parent,
            text=True,
        )

    def race(self, store: str, home: Path) -> list[str]:
        """What went wrong, in any of the processes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wanted: dict[str, Any] = {"store": store, "home": str(home), "processes": PROCESSES}
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return [problem for problem in json.loads(self._process.stdout.readline()) if problem]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def racers() -> Iterator[Racers]:
    racing = Racers()
    yield racing
    racing.close()


@rounds
@pytest.mark.parametrize(
    "store", ["sessions", "doctor", "jobs", "board", "approvals", "processes", "undo", "memory", "config"]
)
def test_processes_that_start_at_once_on_a_new_home_all_work(
    racers: Racers, tmp_path: Path, store: str, rounds: int
) -> None:
    """Whoever comes first creates a store; the others use it, and nobody takes a half-made one for foreign."""
    for number in range(rounds):
        assert racers.race(store, tmp_path / f"home-{number}") == []


@rounds
def test_processes_that_start_at_once_migrate_an_old_database_once(racers: Racers, tmp_path: Path, rounds: int) -> None:
    """One process migrates, the others wait for it, and the old sessions are there for all."""
    for number in range(rounds):
        home = tmp_path / f"home-{number}"
        make_file(home / "sessions.db", (TABLES,), VERSION_1_ROWS)

        assert racers.race("sessions", home) == []

        assert version(home / "sessions.db") == len(STEPS)
        store = SessionStore(home / "sessions.db")
        assert len(store.list()) == PROCESSES + 1
        assert len(store.messages("old")) == 2
        store.close()
