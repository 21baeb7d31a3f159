"""Runtimes for tests: each with a home and a registry of its own, closed at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime

SCHEMA = {
    "description": "A tool for tests",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}, "text": {"type": "string"}}},
}


@pytest.fixture
def make_runtime(tmp_path: Path) -> Iterator[Callable[..., Runtime]]:
    """Runtimes over empty registries; `config` is the text of config.yaml."""
    made: list[Runtime] = []

    def make(config: str = "", **options: Any) -> Runtime:
        home = tmp_path / f"home-{len(made)}"
        home.mkdir()
        (home / "config.yaml").write_text(config)
        runtime = Runtime(home=home, **{"registry": ToolRegistry(), **options})
        made.append(runtime)
        return runtime

    yield make
    for runtime in made:
        runtime.close()


@pytest.fixture
def runtime(make_runtime: Callable[..., Runtime]) -> Runtime:
    return make_runtime()


@pytest.fixture
def add_tool() -> Callable[..., None]:
    """Registers a handler in a runtime's registry, with a small schema unless told otherwise."""

    def add(runtime: Runtime, name: str, handler: Callable[..., Any], **options: Any) -> None:
        options.setdefault("schema", SCHEMA)
        runtime.registry.register(name=name, toolset=options.pop("toolset", "test"), handler=handler, **options)

    return add
