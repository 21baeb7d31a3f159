"""The chat in a real pseudo-terminal with a real screen, a home of its own and a model that says what it is told."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyte

from tests import fork_server
from tests.fork_server import SOURCE, Start
from toolcrib.sessions.store import SessionStore

CHILD = Path(__file__).with_name("chat_child.py")
PATIENCE_SECONDS = 30.0
SCROLLED_LINES = 2000

PASTE_BEGIN, PASTE_END = "\x1b[200~", "\x1b[201~"
ENTER, CTRL_C, CTRL_D, CTRL_O, CTRL_R, CTRL_Z, TAB = "\r", "\x03", "\x04", "\x0f", "\x12", "\x1a", "\t"
UP, DOWN, SHIFT_TAB = "\x1b[A", "\x1b[B", "\x1b[Z"
ESC, ALT_ENTER, ALT_B = "\x1b", "\x1b\r", "\x1bb"

# `slow` waits until somebody makes the file; so the test decides when it ends.
DEMO_TOOLS = """
import asyncio, json, os
from toolcrib.core.types import Effect
from toolcrib.registry import registry

async def slow(args, **kw):
    open(args["file"] + ".running", "w").close()
    while not os.path.exists(args["file"]):
        await asyncio.sleep(0.02)
    return json.dumps({"output": "slow is done"})

async def edit(args, **kw):
    return json.dumps({"diff": "--- a/x\\n+++ b/x\\n@@ -1 +1 @@\\n-old line\\n+new line\\n"})

async def broken(args, **kw):
    raise ValueError("no such planet \\x1b[31m")

async def chatty(args, **kw):
    print("printed by a tool")
    os.system("echo printed by a child")
    return json.dumps({"output": "fine"})

SCHEMA = {"description": "For tests.", "parameters": {"type": "object", "properties": {
    "file": {"type": "string"}, "path": {"type": "string"}}}}

async def write_text(args, **kw):
    with open(args["path"], "w") as stream:
        stream.write("written by the tool")
    return json.dumps({"ok": True})

def writes(args, ctx):
    return (Effect("write", args["path"]),)

registry.register(name="write_text", toolset="demo", schema=SCHEMA, handler=write_text, is_async=True, effects=writes)
registry.register(name="slow", toolset="demo", schema=SCHEMA, handler=slow, is_async=True, emoji="🐌", effects=())
registry.register(name="edit", toolset="demo", schema=SCHEMA, handler=edit, is_async=True, emoji="📝", effects=())
registry.register(name="broken", toolset="demo", schema=SCHEMA, handler=broken, is_async=True, emoji="💥", effects=())
registry.register(name="chatty", toolset="demo", schema=SCHEMA, handler=chatty, is_async=True, emoji="📢", effects=())
"""


def make_home(folder: Path, steps: Sequence[dict[str, Any]], *, config: str = "") -> Path:
    """A home whose model plays the steps, with a few tools for tests."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.json"
    script.write_text(json.dumps(list(steps)))
    (folder / "config.yaml").write_text(
        f"model:\n  provider: scripted\nproviders:\n  scripted:\n    base_url: {script}\n{config}"
    )
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "demo_tools.py").write_text(DEMO_TOOLS)
    return folder


def slow_call(gate: Path) -> dict[str, Any]:
    """A step in which the model calls the slow tool, which waits for a file."""
    return {"call": "slow", "arguments": {"file": str(gate)}}


def session_text(home: Path) -> str:
    """All that the sessions of a home hold, as text."""
    store = SessionStore(home / "sessions.db")
    try:
        return repr([one.message for session in store.list() for one in store.messages(session.id)])
    finally:
        store.close()


class ChatProgram:
    """Starts the program at once. Every wait is for what stands on the screen, or for the end of the program."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        columns: int = 80,
        rows: int = 30,
        cwd: Path | None = None,
        bare: bool = False,
        **environ: str,
    ) -> None:
        self._master, slave = pty.openpty()
        self._set_size(slave, columns, rows)
        self._screen = pyte.HistoryScreen(columns, rows, history=SCROLLED_LINES, ratio=0.1)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        work = cwd or home.parent / "work"
        work.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home.parent),
            "TOOLCRIB_HOME": str(home),
            "PYTHONPATH": str(SOURCE),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            **environ,
        }
        arguments = (str(CHILD), *(() if bare else arguments or ("chat",)))
        wanted = Start(arguments=arguments, environ=environment, cwd=work, new_session=True)
        self.process = fork_server.start(wanted, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def __enter__(self) -> ChatProgram:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.hang_up()

    # What is seen

    @property
    def visible(self) -> str:
        """What stands on the screen now."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def text(self) -> str:
        """All that was printed and is still there, what has scrolled away included."""
        scrolled = ["".join(line[at].data for at in range(self._screen.columns)) for line in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*scrolled, *self._screen.display])

    def wait_until(self, fits: Callable[[str], bool], what: str, seconds: float = PATIENCE_SECONDS) -> str:
        deadline = time.monotonic() + seconds
        while not fits(self.text):
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{what}; the screen shows:\n{self.text}")
        return self.text

    def wait_for(self, *texts: str, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until all of the texts are there."""
        return self.wait_until(lambda shown: all(text in shown for text in texts), f"waited for {texts}", seconds)

    def wait_for_answer(self, line: str, *texts: str) -> str:
        """Wait until all of the texts stand below the line that was entered last."""

        def is_answered(shown: str) -> bool:
            _, entered, answer = shown.rpartition(f"\n❯ {line}\n")
            return bool(entered) and all(text in answer for text in texts)

        return self.wait_until(is_answered, f"waited for {texts} below {line!r}")

    def wait_gone(self, text: str) -> str:
        return self.wait_until(lambda shown: text not in shown, f"waited for {text!r} to go away")

    def wait_idle(self) -> str:
        """Wait until the input line stands there and nothing is worked on."""
        return self.wait_until(lambda _: self.is_idle, "waited for the input line")

    def wait_for_question(self) -> str:
        """Wait until the approval prompt takes keys; what is typed before is thrown away."""
        return self.wait_until(lambda shown: "[n] No" in shown and shown.rstrip().endswith("\n>"), "the question")

    @property
    def is_idle(self) -> bool:
        lines = [line for line in self.visible.splitlines() if line.strip()]
        return len(lines) >= 2 and " tokens (" in lines[-1] and lines[-2].startswith(("❯", ">"))

    # What is done

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def enter(self, text: str) -> None:
        self.type(text + ENTER)

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        self._set_size(self._master, columns, rows)

    def hang_up(self) -> None:
        """The window is closed."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def leave(self) -> int:
        """Ctrl-D; returns the exit code."""
        self.type(CTRL_D)
        return self.exit_code()

    def exit_code(self) -> int:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._master >= 0 and self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end has been closed
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    @staticmethod
    def _set_size(descriptor: int, columns: int, rows: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
