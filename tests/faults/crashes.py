"""A process of ours that is killed while it runs commands, and those that start after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.places import Place

OWNER = Path(__file__).with_name("owner.py")
WAIT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class CrashCommand:
    """One of the commands; `{here}` in it is its marker file, `{wait}` waits for the kill."""

    name: str
    command: str
    ends: str = "never"
    exit_code: int = 0
    prints: tuple[str, ...] = ()
    background: bool = True

    @property
    def marks(self) -> bool:
        """Whether it puts down a file that tells that it runs."""
        return "{here}" in self.command


class Owner:
    """A process of ours that speaks JSON lines; see owner.py."""

    def __init__(self, *arguments: str, environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(OWNER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "our process ended too early"
        return json.loads(line)

    def say(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def ask(self, session: str, tool: str, **arguments: Any) -> dict[str, Any]:
        self.say([session, tool, arguments])
        answer: dict[str, Any] = self.hear()
        return answer

    def end(self) -> None:
        """Let it end in good order, if it still runs."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(WAIT_SECONDS)


class Crash:
    """Our process was killed while all of the commands ran."""

    def __init__(
        self, place: Place, folder: Path, commands: Sequence[CrashCommand], *, sessions: int = 1, **settings: Any
    ) -> None:
        self.place = place
        self.commands = commands
        self.home = folder / "crashed-home"
        self.mark = f"FAULT_RUN={os.urandom(8).hex()}"
        self.session_of = {one.name: f"session-{number % sessions}" for number, one in enumerate(commands)}
        name, _, value = self.mark.partition("=")
        terminal = {**place.settings, "env": {name: value}, "login_shell": False, **settings}
        self.home.mkdir()
        (self.home / "config.yaml").write_text(json.dumps({"terminal": terminal}))

    def happen(self, also: Callable[[], Any] = lambda: None) -> None:
        """Run the commands, and kill their owner when all have begun and `also` misses nothing any more."""
        plan = [
            {"name": one.name, "session": self.session_of[one.name], "command": self._text(one)}
            | {"background": one.background, "ends": one.ends}
            for one in self.commands
        ]
        owner = Owner("run", str(self.home), json.dumps(plan), environ=self.place.environ)
        try:
            self.ids: dict[str, str] = owner.hear()
            wait_for(lambda: [one.name for one in self.commands if one.marks and not self._marker(one).exists()])
            wait_for(also)
        finally:
            owner.process.send_signal(signal.SIGKILL)
            owner.end()
        assert owner.process.returncode == -signal.SIGKILL
        entries = (self.home / "processes" / "environments").glob("*.json")
        self.addresses: list[dict[str, str]] = [json.loads(entry.read_text())["address"] for entry in entries]

    def let_some_finish(self) -> None:
        """Some of the commands end by themselves while nobody of us is there."""
        (self.place.shared / "gate").touch()
        ids = [self.ids[one.name] for one in self.commands if one.ends == "after"]
        wait_for(lambda: len(ids) - self.place.exit_files(self.addresses, ids))

    @property
    def marks(self) -> list[str]:
        return [self.mark, *(address["folder"] for address in self.addresses)]

    def names_in(self, *recovered: dict[str, list[str]]) -> dict[str, list[str]]:
        """What was found, with the names of the commands instead of their ids, without empty lists."""
        names = {process_id: name for name, process_id in self.ids.items()}
        kinds = {kind for found in recovered for kind in found if found[kind]}
        return {kind: sorted(names[one] for found in recovered for one in found[kind]) for kind in kinds}

    def _marker(self, one: CrashCommand) -> Path:
        return self.place.shared / one.name

    def _text(self, one: CrashCommand) -> str:
        inside = self.place.shared_inside
        waiting = f"until [ -e {inside}/gate ]; do sleep 0.02; done"
        return one.command.replace("{here}", f"{inside}/{one.name}").replace("{wait}", waiting)


def wait_for(missing: Callable[[], Any]) -> None:
    """Returns when nothing is missing any more."""
    deadline = time.monotonic() + WAIT_SECONDS
    while still := missing():
        assert time.monotonic() < deadline, f"still missing: {still}"
        time.sleep(0.05)


def log_of(owner: Owner, crash: Crash, one: CrashCommand) -> dict[str, Any]:
    """The answer of `log`, with the output of all its pages."""
    session, lines = crash.session_of[one.name], list[str]()
    while True:
        answer = owner.ask(
            session, "process", action="log", session_id=crash.ids[one.name], offset=len(lines), limit=1000
        )
        page = answer["output"].split("\n") if answer["output"] else []
        lines += page
        if not page or len(lines) >= answer["total_lines"]:
            return {**answer, "output": lines}
