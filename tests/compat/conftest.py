"""Every test of this folder runs a fresh interpreter, because the names under test belong to a whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import toolcrib

SOURCES = Path(toolcrib.__file__).parent.parent
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
    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments: str, cwd: Path = work, stdin: str = "", **variables: str) -> Completed:
        ours = ("TOOLCRIB_", "HERMES_", "PYTHON")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environ = inherited | {"PYTHONPATH": str(SOURCES), "TOOLCRIB_HOME": str(home)} | variables
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=cwd, env=environ, input=stdin, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.fixture
def compat(python: RunPython) -> RunPython:
    """Runs `python -m toolcrib.compat ARGUMENT …`."""

    def run(*arguments: str, **options: object) -> Completed:
        return python("-m", "toolcrib.compat", *arguments, **options)

    return run
