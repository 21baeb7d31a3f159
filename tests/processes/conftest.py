"""Registries over an empty folder, and environments to run commands in."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.processes.registry import ProcessRegistry
from toolcrib.testing.environments import FakeEnvironment, ScriptedReply

MakeRegistry = Callable[..., ProcessRegistry]


@pytest.fixture
async def make_registry(tmp_path: Path) -> AsyncIterator[MakeRegistry]:
    """Registries that share one folder, closed at the end of the test."""
    made: list[ProcessRegistry] = []

    def make(**options: Any) -> ProcessRegistry:
        made.append(ProcessRegistry(options.pop("folder", tmp_path / "processes"), **options))
        return made[-1]

    yield make
    for registry in made:
        await registry.close()


@pytest.fixture
def registry(make_registry: MakeRegistry) -> ProcessRegistry:
    return make_registry()


@pytest.fixture
def fake() -> FakeEnvironment:
    """An environment whose commands run until the test ends them."""
    return FakeEnvironment(default=ScriptedReply(exit_code=None))


@pytest.fixture
async def local() -> AsyncIterator[LocalShellEnvironment]:
    environment = LocalShellEnvironment(dict(os.environ))
    await environment.open()
    yield environment
    await environment.close()
