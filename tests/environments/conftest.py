"""The engines that the tests of the backends run against, looked for once in a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.environments import engines
from tests.environments.factories import Factory
from toolcrib.environments.conformance import Check


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a backend does not promise is no test of it."""
    idle = [item for item in items if _asks_for_too_much(item)]
    if idle:
        config.hook.pytest_deselected(items=idle)
        items[:] = [item for item in items if item not in set(idle)]


def _asks_for_too_much(item: pytest.Item) -> bool:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    backend, check = params.get("subject"), params.get("check")
    return isinstance(backend, Factory) and isinstance(check, Check) and bool(check.needs & backend.lacks)
