"""A pseudo-terminal with a child process that asks a question: its screen, and keys for it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path
from typing import Any

from tests import fork_server
from tests.fork_server import INTERPRETER, Start, without_interpreter_settings

CHILD = Path(__file__).with_name("approver_child.py")
PATIENCE_SECONDS = 30.0
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

RM = {
    "rule": "recursive_delete",
    "description": "recursive delete",
    "reason": "deletes directories and everything in them",
    "scope": "inside the workspace",
}


class Terminal:
    """Starts the child at once; every wait is for output or for its end."""

    def __init__(self, folder: Path, told: dict[str, Any], *, columns: int = 80, typed_ahead: str = "") -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.type(typed_ahead)
        self._result = folder / "result.json"
        (folder / "told.json").write_text(json.dumps({"dangers": [RM], **told}))
        self._errors = (folder / "stderr").open("w+")
        wanted = Start(
            arguments=(str(CHILD), str(folder / "told.json"), str(self._result)),
            environ={**without_interpreter_settings(os.environ), **INTERPRETER},
            cwd=Path.cwd(),
            new_session=True,
        )
        self._child = fork_server.start(wanted, stdin=slave, stdout=slave, stderr=self._errors.fileno())
        os.close(slave)
        self._raw = b""
        self._read_up_to = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()
        self._errors.close()
        self.hang_up()

    @property
    def screen(self) -> str:
        """Everything written so far, with Python line ends."""
        return self._raw.decode("utf-8", "replace").replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def hang_up(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def expect(self, text: str) -> str:
        """Wait until the text appears after what was expected before; returns what was written up to it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := self._raw.find(text.encode(), self._read_up_to)) < 0:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"no {text!r} in {self.screen[-2000:]!r}; stderr: {self._stderr()}")
        between = self._raw[self._read_up_to : found]
        self._read_up_to = found + len(text.encode())
        return between.decode("utf-8", "replace").replace("\r\n", "\n")

    def result(self) -> dict[str, Any]:
        """How it ended, once the child has exited."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._master >= 0 and self._read(deadline - time.monotonic()):
            pass
        self._child.wait(timeout=PATIENCE_SECONDS)
        assert self._child.returncode == 0, self._stderr()
        loaded: dict[str, Any] = json.loads(self._result.read_text())
        return loaded

    def answer(self) -> dict[str, Any]:
        first: dict[str, Any] = self.result()["answers"][0]
        return first

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # The other end has been closed.
            return False
        self._raw += data
        return bool(data)

    def _stderr(self) -> str:
        self._errors.flush()
        return Path(self._errors.name).read_text()
