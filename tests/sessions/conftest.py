"""A store in its own file for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolcrib.sessions.store import SessionStore


@pytest.fixture
def open_store(home: Path) -> Iterator[Callable[[], SessionStore]]:
    """Opens the session database of the test's home, as each process would; closes it at the end."""
    opened: list[SessionStore] = []

    def open_one() -> SessionStore:
        opened.append(SessionStore(home / "sessions.db"))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], SessionStore]) -> SessionStore:
    return open_store()
