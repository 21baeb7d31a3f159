"""What the tests of the chat share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that the slow tool waits for."""
    return tmp_path / "gate"
