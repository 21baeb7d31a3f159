"""The program with an empty home, for every test of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Program


@pytest.fixture
def toolcrib(tmp_path: Path) -> Program:
    return Program(tmp_path)
