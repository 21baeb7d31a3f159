"""Every test of this folder runs a process of its own, because the names under test belong to a whole process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import fork_server
from tests.fork_server import INTERPRETER, Start, without_interpreter_settings

DATA = Path(__file__).parent.parent / "data"

Completed = subprocess.CompletedProcess[str]
RunPython = Callable[..., Completed]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home."""
    folder = tmp_path / "home"
    (folder / "tools").mkdir(parents=True)
    return folder


@pytest.fixture
def python(home: Path, tmp_path: Path) -> RunPython:
    """Runs `python ARGUMENT …` in an empty folder, with an empty home."""
    return run_python(home, tmp_path)


@pytest.fixture
def fresh_python(home: Path, tmp_path: Path) -> RunPython:
    """The same with a new interpreter, for tests of how Python itself starts and ends."""
    return run_python(home, tmp_path, PYTHONSAFEPATH="")


def run_python(home: Path, tmp_path: Path, **interpreter: str) -> RunPython:
    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments: str, cwd: Path = work, stdin: str = "", **variables: str) -> Completed:
        ours = ("TOOLCRIB_", "HERMES_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environ = without_interpreter_settings(inherited) | INTERPRETER | interpreter | {"TOOLCRIB_HOME": str(home)}
        wanted = Start(arguments=arguments, environ=environ | variables, cwd=cwd)
        done = fork_server.run(wanted, stdin=stdin.encode(), timeout=120)
        return Completed(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def compat(python: RunPython) -> RunPython:
    """Runs `python -m toolcrib.compat ARGUMENT …`."""

    def run(*arguments: str, **options: object) -> Completed:
        return python("-m", "toolcrib.compat", *arguments, **options)

    return run
