"""What a newcomer does: a fresh clone in an odd place, a new home, the README's commands; and the wheel on its own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED_BY_PROCESSES = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")

pytestmark = pytest.mark.services


def clean_environment(home: Path) -> dict[str, str]:
    """The environment of a new user: nothing of ours, but the way to the package index."""
    kept = {name: os.environ[name] for name in SHARED_BY_PROCESSES if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**kept, "HOME": str(home)}


def run(command: list[str], folder: Path, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(home) | environ
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that are, or are about to be, under version control, in a path with spaces."""
    folder = tmp_path / "a path with spaces" / "tool crib"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, target)
    return folder


def test_make_test_and_make_chat_work_in_a_fresh_clone_twice(clone: Path, tmp_path: Path, model_dir: str) -> None:
    """Two commands do everything, from a path with spaces, and again at once the second time."""
    home = tmp_path / "newcomer"
    home.mkdir()

    first = run(["make", "test", "ARGS=tests/cli tests/toolsets -p no:cacheprovider"], clone, home)
    second = run(["make", "test", "ARGS=tests/toolsets -p no:cacheprovider"], clone, home)
    chat = run(["make", "chat"], clone, home, TOOLCRIB_MODEL_DIR=model_dir)

    assert first.returncode == 0, first.stdout + first.stderr
    assert "Making a local environment" in first.stdout
    assert second.returncode == 0
    assert "Installing" not in second.stdout
    assert chat.returncode == 0, chat.stdout + chat.stderr
    assert "terminal" in chat.stderr, "the model used a tool"
    assert platform.release() in chat.stdout
    assert not (home / ".local").exists(), "nothing is installed outside the clone"


def test_the_wheel_works_in_an_empty_environment(clone: Path, tmp_path: Path) -> None:
    """A wheel built from the repo and installed alone finds, explains and runs tools as the checkout does."""
    home = tmp_path / "newcomer"
    tools = home / ".toolcrib" / "tools"
    tools.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "data" / "weather_tool.py", tools)
    wheels = tmp_path / "wheels"
    built = run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), "."], clone, home)
    assert built.returncode == 0, built.stderr
    environment = tmp_path / "empty"
    run([sys.executable, "-m", "venv", str(environment)], tmp_path, home)
    wheel = next(wheels.glob("*.whl"))
    installed = run([str(environment / "bin" / "pip"), "install", "--quiet", str(wheel)], tmp_path, home)
    assert installed.returncode == 0, installed.stderr
    toolcrib = str(environment / "bin" / "toolcrib")

    version = run([toolcrib, "--version"], tmp_path, home)
    listed = run([toolcrib, "tools", "list"], tmp_path, home)
    (home / ".toolcrib" / ".env").write_text("WEATHER_API_KEY=k\n")
    answered = run([toolcrib, "tools", "run", "weather", '{"location": "London"}'], tmp_path, home)

    assert version.returncode == 0
    assert "weather" in listed.stdout
    assert answered.stdout == '{"location": "London", "temp": 22, "units": "metric"}\n', answered.stderr
