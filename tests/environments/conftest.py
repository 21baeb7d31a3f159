"""The engines that the tests of the backends run against, looked for once in a run."""

from __future__ import annotations

from pathlib import Path

import engines
import pytest


@pytest.fixture(scope="session")
def docker_host() -> str:
    return engines.docker_host()


@pytest.fixture(scope="session")
def podman() -> engines.Podman:
    return engines.podman()


@pytest.fixture(scope="session")
def ssh_server() -> engines.SshServer:
    return engines.ssh_server()


@pytest.fixture(scope="session")
def apptainer() -> engines.Apptainer:
    return engines.apptainer()


@pytest.fixture(scope="session")
def bubblewrap() -> Path:
    return engines.bubblewrap()
