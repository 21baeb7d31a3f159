"""The `execute_code` tool as the registry, the gate and the model see it."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolcrib.core.types import Effect
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime

CODE = "print('it works')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def runtime(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> Iterator[Runtime]:
    """A runtime with the built-in tools and the settings that the test names."""
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": folder}
    config = json.dumps({"terminal": {"login_shell": False}, **getattr(request, "param", {})})
    with isolated_runtime(tmp_path / "code-home", config, **options) as made:
        yield made.load()


def effects_of(runtime: Runtime) -> tuple[Effect, ...]:
    entry = runtime.registry.get_entry("execute_code")
    assert entry is not None
    assert callable(entry.effects)
    return entry.effects({"code": CODE}, runtime.context())


def test_it_takes_code_and_nothing_else(runtime: Runtime) -> None:
    """The parameter that the contract names."""
    entry = runtime.registry.get_entry("execute_code")

    assert entry is not None
    assert (entry.toolset, list(entry.parameters["properties"]), entry.parameters["required"]) == (
        "code_execution",
        ["code"],
        ["code"],
    )


@pytest.mark.parametrize("runtime", [{"code_execution": {"sandbox": "off"}}], indirect=True)
def test_without_a_sandbox_it_is_a_command_on_this_machine(runtime: Runtime, folder: Path) -> None:
    """The gate reads the script as it reads `python3 -c` in the terminal."""
    assert effects_of(runtime) == (Effect("exec", f"python3 -c {shlex.quote(CODE)}", str(folder)),)


@pytest.mark.parametrize(
    "runtime", [{"terminal": {"backend": "docker", "docker": {"image": "any"}, "login_shell": False}}], indirect=True
)
def test_in_another_backend_it_is_a_command_there(runtime: Runtime) -> None:
    """A container keeps it inside."""
    (effect,) = effects_of(runtime)

    assert (effect.kind, effect.backend, effect.isolated) == ("exec", "docker", True)


def test_it_runs_for_synchronous_callers(runtime: Runtime) -> None:
    """The old edges reach it, too."""
    answer = json.loads(str(runtime.call_sync("execute_code", {"code": CODE}).content))

    assert answer["output"] == "it works\n"


@pytest.mark.services
async def test_it_runs_beside_itself(runtime: Runtime) -> None:
    """Two sessions do not wait for each other, nor see each other's folders."""
    code = "import os\nopen('/tmp/mine', 'x').close()\nprint(os.path.exists('/tmp/mine'))"
    contexts = [runtime.context(session_id=name) for name in ("one", "two")]

    results = await asyncio.gather(*(runtime.call("execute_code", {"code": code}, ctx=ctx) for ctx in contexts))

    assert [json.loads(str(result.content))["output"] for result in results] == ["True\n", "True\n"]
