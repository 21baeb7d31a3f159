"""A program that is killed while it patches leaves every file old or new, never in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

NAMES = ("a.txt", "b.txt", "sub/c.txt")
LINES = 4_000
LIMIT_SECONDS = 60.0

PROGRAM = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from tests.builtin_tools.edit_calls import edit_calls

NAMES = {names!r}
with edit_calls(Path(sys.argv[1])) as calls:
    for version in range(1_000_000):
        lines = []
        for name in NAMES:
            lines += [f"*** Update File: {{name}}", "@@"]
            lines += [f"-{{name}} {{version}} {{number}}" for number in range({lines})]
            lines += [f"+{{name}} {{version + 1}} {{number}}" for number in range({lines})]
        answer = calls.patch(*lines)
        assert "error" not in answer, answer
"""


def content(name: str, version: int) -> bytes:
    return "".join(f"{name} {version} {number}\n" for number in range(LINES)).encode()


def version_of(path: Path, name: str) -> int:
    """The version that a file is, which must be all of it."""
    data = path.read_bytes()
    version = int(data.split(b" ", 2)[1])
    assert data == content(name, version)
    return version


@pytest.mark.parametrize(
    ("waits_for", "version"),
    [(1, 2), *(pytest.param(*more, marks=pytest.mark.services) for more in ((0, 1), (2, 3), (0, 5), (1, 4)))],
)
@pytest.mark.services
def test_a_kill_leaves_every_file_old_or_new(tmp_path: Path, waits_for: int, version: int) -> None:
    """The patch of three files is killed as soon as one of them is new; the others are then whole, too."""
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    for name in NAMES:
        (folder / name).write_bytes(content(name, 0))
    script = PROGRAM.format(names=NAMES, lines=LINES)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parents[2])], stderr=subprocess.PIPE
    ) as process:
        watched = folder / NAMES[waits_for]
        end = time.monotonic() + LIMIT_SECONDS
        while version_of(watched, NAMES[waits_for]) < version:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < end
        process.send_signal(signal.SIGKILL)
        process.wait()

    versions = [version_of(folder / name, name) for name in NAMES]
    assert max(versions) - min(versions) <= 1
    assert versions == sorted(versions, reverse=True)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - set(NAMES)
    assert all(Path(name).name.startswith(".toolcrib-") for name in left)
