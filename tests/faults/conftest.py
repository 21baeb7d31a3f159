"""The engines of the tests of the backends, for tests that let our own process die while it uses them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.environments import engines
from tests.faults.crashes import Crash, Owner


@pytest.fixture(scope="session")
def docker_host() -> str:
    return engines.docker_host()


@pytest.fixture(scope="session")
def ssh_server() -> engines.SshServer:
    return engines.ssh_server()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody on this machine can write to."""
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture
def owners() -> Iterator[Callable[[Crash], Owner]]:
    """Starts the next processes of ours after a crash; they end with the test."""
    with ExitStack() as stack:

        def start(crash: Crash) -> Owner:
            owner = Owner("recover", str(crash.home), environ=crash.place.environ)
            stack.callback(owner.end)
            assert owner.hear() == "ready"
            return owner

        yield start
