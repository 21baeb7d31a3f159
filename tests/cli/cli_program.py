"""The real program in a process of its own, with a home of its own, in a pipe or on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests import fork_server
from tests.fork_server import SOURCE, Start

DEADLINE_SECONDS = 30

KEYED_TOOL = """
import json, os
from toolcrib.registry import registry

def tides(args, **kw):
    return json.dumps({"port": args["port"]})

registry.register(
    name="tides", toolset="tides", handler=tides, emoji="🌊",
    schema={"description": "High and low water at a port.", "parameters": {
        "type": "object", "required": ["port"],
        "properties": {"port": {"type": "string", "description": "Name of the port, e.g. Brest."}}}},
    check_fn=lambda: bool(os.getenv("TIDES_API_KEY")), requires_env=["TIDES_API_KEY"],
)
"""


@dataclass(frozen=True)
class Outcome:
    stdout: str
    stderr: str
    code: int


@dataclass
class Program:
    """`toolcrib` with everything of its user under one folder."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    deadline_seconds: float = DEADLINE_SECONDS

    @property
    def home(self) -> Path:
        return self.root / "home"

    def write(self, name: str, text: str) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "TOOLCRIB_HOME": str(self.home),
            "PYTHONPATH": str(SOURCE),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            **self.environ,
            **more,
        }

    def __call__(self, *arguments: str, stdin: str = "", cwd: Path | None = None, **environ: str) -> Outcome:
        self.root.mkdir(parents=True, exist_ok=True)
        wanted = Start(
            arguments=("-m", "toolcrib", *arguments), environ=self.environment(**environ), cwd=cwd or self.root
        )
        done = fork_server.run(wanted, stdin=stdin.encode(), timeout=self.deadline_seconds)
        return Outcome(done.stdout.decode(), done.stderr.decode(), done.returncode)

    def on_terminal(
        self, *arguments: str, answers: tuple[tuple[str, str], ...] = (), columns: int = 100, **environ: str
    ) -> Outcome:
        """What a person sees on a terminal who answers each prompt; `^C` as an answer interrupts."""
        self.root.mkdir(parents=True, exist_ok=True)
        master, slave = pty.openpty()
        _set_columns(slave, columns)
        environment = self.environment(**environ)
        wanted = Start(arguments=("-m", "toolcrib", *arguments), environ=environment, cwd=self.root, new_session=True)
        process = fork_server.start(wanted, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        try:
            seen = ""
            for prompt, answer in answers:
                seen += _read_until(master, prompt)
                if answer == "^C":
                    _wait_until_idle(process.pid)
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(master, answer.encode() + b"\n")
            seen += _read_until(master, None)
            return Outcome(seen.replace("\r\n", "\n"), "", process.wait(DEADLINE_SECONDS))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(master)


def _wait_until_idle(pid: int) -> None:
    """Wait until the program waits for what is typed: a signal right before that is seen only after the next key."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline, "the program does not come to rest"


def _set_columns(descriptor: int, columns: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def _read_until(master: int, text: str | None) -> str:
    """What the terminal shows up to and with `text`; up to the end of the program for None."""
    seen = b""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while text is None or text.encode() not in seen:
        ready, _, _ = select.select([master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"waited for {text!r}, saw {seen.decode(errors='replace')!r}"
        try:
            piece = os.read(master, 65536)
        except OSError:
            piece = b""  # Linux says so when the last process on the terminal has ended
        if not piece:
            assert text is None, f"the program ended before {text!r}: {seen.decode(errors='replace')!r}"
            break
        seen += piece
    return seen.decode(errors="replace")
