"""Runtimes whose services are on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.media.services import Asking, OpenMedia
from tests.web.sites import Site, serve
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as one:
        yield one


@pytest.fixture
def asking() -> Asking:
    return Asking()


@pytest.fixture
def open_runtime(make_runtime: Callable[..., Runtime], tmp_path: Path, asking: Asking) -> OpenMedia:
    """Makes runtimes with the built-in tools and these sections of the config."""

    def make(**sections: Any) -> Runtime:
        workspace = tmp_path / "work"
        workspace.mkdir(exist_ok=True)
        registry = ToolRegistry(parent=default_registry)
        return make_runtime(json.dumps(sections), registry=registry, workspace=workspace, approver=asking)

    return make
