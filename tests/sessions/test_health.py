"""Checking the session database changes nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from toolcrib.core.messages import user_message
from toolcrib.sessions.health import examine_database
from toolcrib.sessions.store import SessionStore


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with one session of one message; its name needs quoting in an address."""
    path = tmp_path / "my sessions?#%.db"
    store = SessionStore(path)
    store.append(store.create().id, user_message("hello"))
    store.close()
    return path


def test_a_database_that_is_not_there_stays_so(tmp_path: Path) -> None:
    """A check creates nothing."""
    found = examine_database(tmp_path / "none.db")

    assert (found.exists, found.problem, list(tmp_path.iterdir())) == (False, "", [])


def test_what_is_there_is_counted_and_left_alone(database: Path) -> None:
    """The check reads counts and size; neither the file nor its folder changes."""
    before = database.read_bytes()

    found = examine_database(database)

    assert (found.sessions, found.messages, found.is_checked, found.problem) == (1, 1, True, "")
    assert found.size_bytes == len(before)
    assert (database.read_bytes(), list(database.parent.iterdir())) == (before, [database])


def test_a_database_in_use_is_seen_as_it_is_now(database: Path) -> None:
    """The check sees what another connection has in the write-ahead log."""
    store = SessionStore(database)
    store.create()

    found = examine_database(database)

    store.close()
    assert found.sessions == 2


def test_a_check_that_takes_too_long_is_left(database: Path) -> None:
    """The check gives up on a very large database and reports that it is incomplete."""
    connection = sqlite3.connect(database)
    connection.executemany("INSERT INTO side_usage VALUES (?, 1, 'x', 0, 'y')", ((at,) for at in range(100_000)))
    connection.commit()
    connection.close()

    found = examine_database(database, check_seconds=0)

    assert (found.is_checked, found.problem, found.sessions) == (False, "", 1)


@pytest.mark.parametrize("damage", ["not a database", "damaged pages", "newer", "foreign", "a folder"])
def test_what_is_wrong_is_a_sentence(database: Path, damage: str) -> None:
    """Whatever the file contains, the check reports what is wrong and raises nothing."""
    if damage == "not a database":
        database.write_text("this is no database\n" * 400)
    elif damage == "damaged pages":
        content = database.read_bytes()
        database.write_bytes(content[:8192] + b"\xff" * 12288 + content[20480:])
    elif damage == "a folder":
        database.unlink()
        database.mkdir()
    else:
        if damage == "foreign":
            database.unlink()
        connection = sqlite3.connect(database)
        connection.executescript("PRAGMA user_version = 999" if damage == "newer" else "CREATE TABLE other (x)")
        connection.close()

    found = examine_database(database)

    assert str(database) in found.problem
    assert "\n" not in found.problem
