"""What tests of undo share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.undo.undo_work import Work, working_in


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with working_in(tmp_path) as made:
        yield made
