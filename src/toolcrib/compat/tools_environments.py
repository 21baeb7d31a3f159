"""`tools.environments` and `tools.environments.base`: the class that backends for the reference system are made from.

A subclass says how one bash command is started (`_run_bash`); everything else is here. Such a backend also serves our
own `terminal` tool: see the entry point group `toolcrib.environments`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import select
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from toolcrib.compat.tools_interrupt import is_interrupted
from toolcrib.config.load import load_settings
from toolcrib.core.environments import INTERRUPTED, TIMED_OUT

__all__ = [
    "BaseEnvironment",
    "ProcessHandle",
    "get_sandbox_dir",
    "set_activity_callback",
    "touch_activity_if_due",
]

# A package without a folder: every `tools.environments.X` is answered by the finder.
__path__: list[str] = []

BACKEND_MODULES = ("base", "local", "docker", "ssh", "singularity", "modal", "daytona", "vercel_sandbox")
KEPT_CHARS = 50_000
HEAD_SHARE = 0.4
LOOK_SECONDS = 0.005
SILENCE_SECONDS = 0.2
KILL_SECONDS = 2.0
STOP_SECONDS = 10
ACTIVITY_SECONDS = 10.0
READ_BYTES = 64 * 1024

# The session is loaded, the command run, and the session written back however the command ends; then the folder is
# told between two markers. `exec` alone skips that: the session stays as it was.
WRAPPED = """\
[ ! -r {state} ] || . {state} >/dev/null 2>&1
shopt -s expand_aliases
builtin cd -- {cwd} || exit 126
__toolcrib_end() {{
    local code=$?
    trap - EXIT
    unset -f __toolcrib_end
    (umask 077 && {{ export -p; declare -f; alias -p; }} >{state}.new) 2>/dev/null && mv -f {state}.new {state}
    printf '\\n%s%s%s\\n' {marker} "$PWD" {marker}
    exit "$code"
}}
trap __toolcrib_end EXIT
eval {command}
"""
BOOTSTRAP = """\
(umask 077; {{ export -p; declare -f; alias -p; }} >{state}) 2>/dev/null
printf '\\n%s%s%s\\n' {marker} "$PWD" {marker}
"""


class ProcessHandle(Protocol):
    """A running command, with the interface of `subprocess.Popen`."""

    @property
    def stdout(self) -> Any: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def kill(self) -> Any: ...

    def wait(self, timeout: float | None = None) -> int: ...


class BaseEnvironment(ABC):
    """An environment with one shell session, over whatever starts a bash command there."""

    def __init__(self, cwd: str, timeout: int, env: dict[str, str] | None = None) -> None:
        self.cwd = cwd
        self.timeout = timeout
        self.env = dict(env or {})
        self._session_id = secrets.token_hex(6)
        self._marker = f"__TOOLCRIB_CWD_{self._session_id}__"
        self._has_session = False

    @abstractmethod
    def _run_bash(
        self, cmd_string: str, *, login: bool = False, timeout: int = 120, stdin_data: str | None = None
    ) -> ProcessHandle:
        """Start one bash command; its output, standard error included, is the handle's `stdout`."""

    @abstractmethod
    def cleanup(self) -> None:
        """Release the environment."""

    def stop(self) -> None:
        """Delete the session's state, and release the environment."""
        if self._has_session:
            self._has_session = False
            self._finished(
                self._run_bash(f"rm -f {self._state_file()}", login=False, timeout=STOP_SECONDS), STOP_SECONDS
            )
        self.cleanup()

    def get_temp_dir(self) -> str:
        """A folder in the environment for temporary files."""
        return "/tmp"

    def init_session(self) -> None:
        """Read the profile once, and keep what it exports and defines for all commands."""
        self._has_session = True
        command = BOOTSTRAP.format(state=self._state_file(), marker=self._marker)
        where = f"builtin cd -- {shlex.quote(self.cwd)} 2>/dev/null; " if self.cwd else ""
        output, _ = self._finished(self._run_bash(where + command, login=True, timeout=self.timeout), self.timeout)
        self._without_folder(output)

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: int | None = None,
        stdin_data: str | None = None,
        rewrite_compound_background: bool = True,
        bounded_capture: bool = False,
    ) -> dict[str, Any]:
        """Run a command in the session: `{"output", "returncode"}`; 124 on timeout, 130 on an interrupt.

        `rewrite_compound_background` changes nothing: what `&` leaves running is never waited for here.
        """
        if not self._has_session:
            self.init_session()
        limit = timeout or self.timeout
        wrapped = WRAPPED.format(
            state=self._state_file(),
            cwd=shlex.quote(cwd or self.cwd or "."),
            marker=self._marker,
            command=shlex.quote(command),
        )
        handle = self._run_bash(wrapped, login=False, timeout=limit, stdin_data=stdin_data)
        output, code = self._finished(handle, limit)
        output = self._without_folder(output)
        if code == TIMED_OUT:
            output += f"\n[Command timed out after {limit}s]"
        elif code == INTERRUPTED:
            output += "\n[Command interrupted]"
        return {"output": _bounded(output) if bounded_capture else output, "returncode": code}

    def _state_file(self) -> str:
        return shlex.quote(f"{self.get_temp_dir().rstrip('/')}/toolcrib-session-{self._session_id}.sh")

    def _finished(self, handle: ProcessHandle, limit_seconds: float) -> tuple[str, int]:
        """What a command printed, and how it ended; it is killed when its time is over or it is not wanted any more."""
        reading = _Reading(handle)
        deadline = time.monotonic() + limit_seconds
        activity: dict[str, float] = {}
        while not reading.finished.wait(LOOK_SECONDS):
            touch_activity_if_due(activity, "a command is running")
            late, interrupted = time.monotonic() >= deadline, is_interrupted()
            if late or interrupted:
                handle.kill()
                reading.finished.wait(KILL_SECONDS)
                return reading.text(), TIMED_OUT if late else INTERRUPTED
        code = handle.returncode if handle.returncode is not None else handle.poll()
        return reading.text(), 1 if code is None else code

    def _without_folder(self, output: str) -> str:
        """The output without the marked folder at its end, which is kept as the session's."""
        end = output.rfind(f"{self._marker}\n")
        start = output.rfind(f"\n{self._marker}", 0, max(end, 0))
        if start < 0:
            return output
        self.cwd = output[start + len(self._marker) + 1 : end] or self.cwd
        return output[:start] + output[end + len(self._marker) + 1 :]


class _Reading:
    """Reads what a command prints in a thread, until it has ended and is silent."""

    def __init__(self, handle: ProcessHandle) -> None:
        self.finished = threading.Event()
        self._handle = handle
        self._chunks: list[bytes] = []
        threading.Thread(target=self._read, name="toolcrib-reading", daemon=True).start()

    def text(self) -> str:
        return b"".join(self._chunks).decode(errors="replace")

    def _read(self) -> None:
        try:
            try:
                descriptor = self._handle.stdout.fileno()
            except (AttributeError, OSError):
                self._read_lines()
            else:
                self._read_pipe(descriptor)
            while self._handle.poll() is None:
                time.sleep(LOOK_SECONDS)
        finally:
            with contextlib.suppress(AttributeError, OSError):
                self._handle.stdout.close()
            self.finished.set()

    def _read_lines(self) -> None:
        for line in self._handle.stdout or ():
            self._chunks.append(line if isinstance(line, bytes) else str(line).encode(errors="surrogateescape"))

    def _read_pipe(self, descriptor: int) -> None:
        """Until its end or, because children may hold it open forever, until it is silent after the command's end."""
        while True:
            has_ended = self._handle.poll() is not None
            ready, _, _ = select.select([descriptor], [], [], SILENCE_SECONDS)
            data = os.read(descriptor, READ_BYTES) if ready else b""
            if data:
                self._chunks.append(data)
            elif ready or has_ended:
                return


def _bounded(text: str) -> str:
    if len(text) <= KEPT_CHARS:
        return text
    head, tail = int(KEPT_CHARS * HEAD_SHARE), KEPT_CHARS - int(KEPT_CHARS * HEAD_SHARE)
    left_out = len(text) - KEPT_CHARS
    note = f"\n\n... [OUTPUT TRUNCATED - {left_out} chars omitted out of {len(text)} total] ...\n\n"
    return text[:head] + note + text[-tail:]


class _Activity(threading.local):
    """The callback for progress of this thread's commands."""

    callback: Callable[[str], None] | None = None


_activity = _Activity()


def set_activity_callback(callback: Callable[[str], None] | None) -> None:
    """Set a callback that runs every ten seconds while a command of this thread is running."""
    _activity.callback = callback


def touch_activity_if_due(state: MutableMapping[str, float], label: str) -> None:
    """Call the callback if it is due; `state` holds the time of the last call."""
    now = time.monotonic()
    last = state.setdefault("last_touch", now)
    if _activity.callback is not None and now - last >= ACTIVITY_SECONDS:
        state["last_touch"] = now
        _activity.callback(f"{label} ({now - state.setdefault('start', last):.0f}s)")


def get_sandbox_dir() -> Path:
    """Where backends keep what belongs to their sandboxes on this machine."""
    folder = load_settings().home.root / "sandboxes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def __getattr__(name: str) -> ModuleType:
    # `from tools.environments import docker` asks for an attribute before it asks for a module.
    if name in BACKEND_MODULES:
        return importlib.import_module(f"tools.environments.{name}")
    raise AttributeError(f"module 'tools.environments' has no attribute {name!r}")
