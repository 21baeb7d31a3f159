"""Scripts in every kind of environment: what holds on this machine holds there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.code_execution.running_scripts import PYTHON, Run
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime

STATE_FILE = Path(__file__).parents[2] / ".services" / "env"
DAEMON = (
    "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        os.execve('/bin/sleep', ['sleep', '654321'], {})\n    os._exit(0)\nos.wait()\nprint('left')"
)
# Looked for in /proc, since an environment need not have `ps`.
LEFT = "grep -lz '^654321$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"

Settings = dict[str, Any]


def service(name: str) -> str:
    """How a service is reached that was started for tests; skips where it was not."""
    lines = STATE_FILE.read_text().splitlines() if STATE_FILE.exists() else []
    found = [shlex.split(line.partition("=")[2])[0] for line in lines if line.startswith(f"TOOLCRIB_TEST_{name}=")]
    if not found:
        pytest.skip("not started: run scripts/test-services up")
    return found[0]


def docker(monkeypatch: pytest.MonkeyPatch, *, python: bool = True) -> Settings:
    monkeypatch.setenv("DOCKER_HOST", service("DOCKER_HOST"))
    # The image has no Python; that of this machine fits it.
    volumes = ["/usr:/usr:ro"] if python else []
    return {"backend": "docker", "docker": {"image": service("IMAGE"), "network": False, "volumes": volumes}}


def ssh(_: pytest.MonkeyPatch) -> Settings:
    names = {"host": "SSH_HOST", "user": "SSH_USER", "key": "SSH_KEY", "known_hosts": "SSH_KNOWN_HOSTS"}
    reached: Settings = {name: service(variable) for name, variable in names.items()}
    return {"backend": "ssh", "ssh": {**reached, "port": int(service("SSH_PORT"))}}


def sandbox(_: pytest.MonkeyPatch) -> Settings:
    return {"backend": "sandbox"}


def landlock(_: pytest.MonkeyPatch) -> Settings:
    return {"backend": "local", "sandbox": {"use": "landlock"}}


ENVIRONMENTS = [
    pytest.param(sandbox, id="sandbox"),
    pytest.param(landlock, id="landlock"),
    pytest.param(docker, id="docker", marks=pytest.mark.services),
    pytest.param(ssh, id="ssh", marks=pytest.mark.services),
]


@pytest.fixture
def environment(
    request: pytest.FixtureRequest, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    """A runtime whose commands and scripts run in the environment that the test names."""
    kind: Callable[[pytest.MonkeyPatch], Settings] = request.param
    terminal = {"login_shell": False, **kind(monkeypatch)}
    code = {"timeout": 20, "python": PYTHON if terminal["backend"] in ("local", "sandbox") else ""}
    config = json.dumps({"terminal": terminal, "code_execution": code, "approvals": {"mode": "off"}})
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": project}
    with isolated_runtime(tmp_path / "environment-home", config, **options) as runtime:
        yield runtime


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("environment", ENVIRONMENTS, indirect=True)
def test_a_script_works_where_commands_work(environment: Runtime, run_script: Run) -> None:
    """Same folder, same files, tools called from there and from threads."""
    code = (
        "import os\nopen('made.txt', 'w').write('by the script')\n"
        "one, two = parallel(lambda: terminal('pwd'), lambda: terminal('cat made.txt'))\n"
        "print(one['output'] == os.getcwd(), two['output'])\nos.remove('made.txt')"
    )

    answer = run_script(environment, code)

    assert (answer["status"], answer["output"]) == ("success", "True by the script\n")
    assert answer["tool_calls_made"] == 2


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("environment", ENVIRONMENTS, indirect=True)
def test_an_exception_there_is_told_as_here(environment: Runtime, run_script: Run) -> None:
    """With the lines of the script."""
    answer = run_script(environment, "def half(n):\n    return n / 0\nhalf(3)")

    assert answer["error"] == "ZeroDivisionError: division by zero"
    assert 'File "script.py", line 2, in half\n    return n / 0' in answer["traceback"]


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("environment", ENVIRONMENTS, indirect=True)
def test_nothing_is_left_running_there(environment: Runtime, run_script: Run) -> None:
    """Neither what hides nor what runs into the time limit."""
    left = run_script(environment, DAEMON)

    found = json.loads(str(environment.call_sync("terminal", {"command": LEFT}).content))

    assert left["output"] == "left\n"
    assert found["output"].strip() == "0"


@pytest.mark.services
@pytest.mark.parametrize(
    "environment", [pytest.param(lambda patch: docker(patch, python=False), id="docker")], indirect=True
)
def test_an_environment_without_python_says_so(environment: Runtime, run_script: Run) -> None:
    """And what to do about it."""
    assert run_script(environment, "print(1)")["error"].startswith("no Python was found in the environment")
