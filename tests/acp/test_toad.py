"""Toad, an editor for agents that others wrote, in a real terminal, with the real program behind it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest

from tests.acp.editors import LIMIT_SECONDS, SOURCE, is_running, write_home
from toolcrib.sessions.store import SessionStore

# Its Python comes from a Debian that still changes.
pytestmark = [pytest.mark.services, pytest.mark.may_skip]
STATE_FILE = Path(__file__).parents[2] / ".services" / "env"
COLUMNS, ROWS = 150, 50
STEPS: list[dict[str, Any]] = [
    {
        "say": "Let me see.",
        "call": "todo",
        "arguments": {"todos": [{"id": "1", "content": "tidy", "status": "pending"}]},
    },
    {"call": "write_file", "arguments": {"path": "a.txt", "content": "one\n"}},
    {"call": "terminal", "arguments": {"command": "rm -rf build"}},
    {"say": "All is done."},
]


class Toad:
    """The program on a screen; every wait is for what stands there."""

    def __init__(self, program: str, folder: Path, home: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        agent = f"env PYTHONPATH={SOURCE} {shlex.join([sys.executable, '-m', 'toolcrib', 'acp'])}"
        self.process = subprocess.Popen(
            [program, "acp", agent, "--title", "toolcrib", "--project-dir", str(folder), "."],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home.parent / "user"),
                "TOOLCRIB_HOME": str(home),
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
            },
            start_new_session=True,
        )
        os.close(slave)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def wait_for(self, *texts: str) -> None:
        self.wait_until(lambda: all(text in self.text for text in texts), f"waited for {texts}")

    def wait_until(self, is_so: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not is_so():
            ready, _, _ = select.select([self._master], [], [], 0.1)
            assert time.monotonic() < deadline, f"{what}; the screen shows:\n{self.text}"
            if ready:
                self._stream.feed(os.read(self._master, 65536))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def ask(self, text: str) -> None:
        self.type(text)
        self.wait_for(f"❯ {text}")
        self.type("\r")

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "build").mkdir(parents=True)
    return folder


@pytest.fixture
def toad(work: Path, home: Path) -> Iterator[Toad]:
    lines = STATE_FILE.read_text().splitlines() if STATE_FILE.exists() else []
    found = [shlex.split(line.partition("=")[2])[0] for line in lines if line.startswith("TOOLCRIB_TEST_TOAD=")]
    if not found:
        pytest.skip("no Toad: run scripts/test-services up")
    write_home(home, STEPS)
    (home.parent / "user").mkdir(exist_ok=True)
    started = Toad(found[0], work, home)
    try:
        # The mode is shown once the session is open.
        started.wait_for("auto-edit")
        yield started
    finally:
        started.close()


def agents_of(pid: int) -> list[int]:
    """The processes of ours below it."""
    found = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        is_ours = b"toolcrib\0acp" in Path(f"/proc/{child}/cmdline").read_bytes()
        found += [child] if is_ours else agents_of(child)
    return found


@pytest.mark.parametrize(("key", "remains"), [("a", False), ("r", True)])
def test_a_turn_with_a_permission(toad: Toad, work: Path, key: str, remains: bool) -> None:
    """Text, plan, calls and the question stand on the screen; the key for yes or no decides."""
    toad.ask("Please tidy up")
    toad.wait_for("Let me see.", "Write a.txt", '"recursive delete" (inside the workspace)', "Allow once")
    toad.wait_for(str(work)[-20:])
    assert (work / "a.txt").read_text() == "one\n"
    assert (work / "build").exists()
    toad.type(key)
    toad.wait_for("All is done.")
    assert (work / "build").exists() == remains


def test_killing_it_during_a_question_ends_the_agent_and_keeps_the_session(toad: Toad, home: Path, work: Path) -> None:
    toad.ask("Please tidy up")
    toad.wait_for("Allow once")
    (agent,) = agents_of(toad.process.pid)
    os.kill(toad.process.pid, signal.SIGKILL)
    toad.process.wait()
    deadline = time.monotonic() + LIMIT_SECONDS
    while is_running(agent):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (work / "build").exists()
    store = SessionStore(home / "sessions.db")
    (session,) = store.list()
    messages = [one.message for one in store.messages(session.id)]
    store.close()
    assert [one.role for one in messages] == ["user", *["assistant", "tool"] * 3]
