"""The program with an empty home, for every test of the command line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_program import Program


@pytest.fixture
def toolcrib(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> Iterator[None]:
    """Programs started from here can be interrupted, also where the tests run in the background of a shell."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        # A child inherits an ignored signal, but not a handled one.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
