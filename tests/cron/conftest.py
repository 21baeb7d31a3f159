"""A store of jobs in the home of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.cron.store import JobStore


@pytest.fixture
def jobs(home: Path) -> Iterator[JobStore]:
    home.mkdir()
    store = JobStore(home / "cron.db")
    yield store
    store.close()
