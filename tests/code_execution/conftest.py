"""Runtimes with the built-in tools, in a project of their own, for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.code_execution.running_scripts import PYTHON, MakeRuntime, Run
from toolcrib.core.context import ToolContext
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def make_script_runtime(tmp_path: Path, project: Path) -> Iterator[MakeRuntime]:
    """Runtimes that work in the project; keywords that start with `code_` are settings of code_execution."""
    with ExitStack() as opened:
        numbers = iter(range(100))

        def make(*, backend: str = "local", **options: Any) -> Runtime:
            config = _config(backend, **_code_settings(options))
            others: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": project}
            home = tmp_path / f"script-home-{next(numbers)}"
            return opened.enter_context(isolated_runtime(home, config, **{**others, **options}))

        yield make


def _config(backend: str = "local", **code: Any) -> str:
    settings = {"python": PYTHON, "timeout": 30, **code}
    return json.dumps({"terminal": {"backend": backend, "login_shell": False}, "code_execution": settings})


def _code_settings(options: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("code_"): options.pop(name) for name in list(options) if name.startswith("code_")}


@pytest.fixture
def script_runtime(make_script_runtime: MakeRuntime) -> Runtime:
    return make_script_runtime()


@pytest.fixture(scope="module")
def module_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    home, project = tmp_path_factory.mktemp("script-home"), tmp_path_factory.mktemp("project")
    with isolated_runtime(home, _config(), registry=ToolRegistry(parent=default_registry), workspace=project) as one:
        yield one


@pytest.fixture
def shared_runtime(module_runtime: Runtime) -> Iterator[Runtime]:
    """One runtime for many scripts, whose sandbox is open already; what a test registers is taken back."""
    yield module_runtime
    for name in module_runtime.registry.get_tool_names_for_toolset("test"):
        module_runtime.registry.deregister(name)


@pytest.fixture
def run_script() -> Run:
    """Runs a script in a runtime and gives the answer of the tool."""

    def run(runtime: Runtime, code: str, ctx: ToolContext | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(str(runtime.call_sync("execute_code", {"code": code}, ctx).content))
        return answer

    return run
