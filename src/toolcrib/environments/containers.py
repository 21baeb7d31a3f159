"""What the container backends share: running a command-line client, and identifying the owner of a container."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import signal
import subprocess
import termios
import tty
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from toolcrib.core.environments import OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.host_process import HostProcess, spawn_on_host

USUAL_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
PROBE_SECONDS = 0.9
ASK_SECONDS = 60.0
RESIZE_REPEAT_SECONDS = (0.1, 0.5, 2.0)
ERROR_PREFIX = re.compile(r"^(?:docker: |Error response from daemon: |Error: |FATAL: +)+")
# A session leader gets its controlling terminal, and with it size changes, by opening it.
TAKING_THE_TERMINAL = 'terminal=$1; shift; exec "$@" <>"$terminal" >&0 2>&0'
# What root in a container needs to install packages, own files, and end programs it started as another user.
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
# What an idle container runs: bash on a pipe that nobody writes to, since an image need not have `sleep`. As the first
# process it also reaps orphans and cannot be killed from inside.
WAIT_FOREVER = "exec 3<> <(:); while :; do read -r -u 3; done"


class ClientOutput(Struct, frozen=True, kw_only=True):
    """What a client printed, standard output and error together."""

    exit_code: int
    text: str

    def lines(self, marker: str) -> list[str]:
        """The rest of every line that starts with `marker`: clients mix warnings into the answer."""
        return [line.removeprefix(marker) for line in self.text.splitlines() if line.startswith(marker)]

    def last_line(self) -> str:
        """The last line of a failed client, which usually says why."""
        spoken = [line.strip() for line in self.text.splitlines() if line.strip()]
        said = [line for line in spoken if not line.startswith(("See '", "Run '"))]
        return ERROR_PREFIX.sub("", said[-1]) if said else f"exit code {self.exit_code}"


class ContainerClient:
    """A command-line client of a container engine."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self.program = program
        self._environ = environ

    @property
    def name(self) -> str:
        return Path(self.program).name

    async def ask(self, *arguments: str, limit_seconds: float = ASK_SECONDS) -> ClientOutput:
        """Run the client to its end; raises EnvironmentFailed if that takes too long."""
        said: list[bytes] = []
        process = await spawn_on_host([self.program, *arguments], on_output=said.append, environ=self._environ)
        try:
            async with asyncio.timeout(limit_seconds):
                await process.close_input()
                code = await process.wait()
        except TimeoutError as error:
            asked = f"{self.name} {arguments[0]}"
            raise EnvironmentFailed(f"`{asked}` did not answer within {limit_seconds:g} seconds") from error
        finally:
            await process.end()
        return ClientOutput(exit_code=code, text=b"".join(said).decode(errors="replace"))

    async def spawn(
        self,
        arguments: Sequence[str],
        *,
        on_output: OnOutput,
        terminal: TerminalSize | None = None,
        on_error: OnOutput | None = None,
    ) -> HostProcess:
        """Start the client for a program in a container. With `terminal` it relays between one of ours and one in the
        container; with `on_error` the client's standard error is kept apart."""
        argv = [self.program, *arguments]
        if terminal is None:
            return await spawn_on_host(argv, on_output=on_output, environ=self._environ, on_error=on_error)
        return self._on_terminal(argv, on_output, terminal, relayed=True)

    async def spawn_lending_terminal(
        self, arguments: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize
    ) -> HostProcess:
        """Start the client for a program that uses a terminal of ours directly: the client does not touch it."""
        return self._on_terminal([self.program, *arguments], on_output, terminal, relayed=False)

    def _on_terminal(
        self, argv: Sequence[str], on_output: OnOutput, size: TerminalSize, *, relayed: bool
    ) -> HostProcess:
        master, slave = os.openpty()
        try:
            termios.tcsetwinsize(slave, (size.rows, size.columns))
            if relayed:
                # The client also sets raw mode, but perhaps after the first key was typed.
                tty.setraw(slave)
                argv = ["/bin/sh", "-c", TAKING_THE_TERMINAL, "sh", os.ttyname(slave), *argv]
            child = subprocess.Popen(
                argv, stdin=slave, stdout=slave, stderr=slave, env=self._environ, start_new_session=True
            )
        except OSError as error:
            os.close(master)
            raise EnvironmentFailed(f"{self.name!r} could not be started: {error.strerror or error}") from error
        finally:
            os.close(slave)
        kind = ClientProcess if relayed else HostProcess
        return kind(child, stdin=os.dup(master), output=master, on_output=on_output, on_terminal=True)


class ClientProcess(HostProcess):
    """A client that relays a terminal. It misses a resize while it starts, so the signal is repeated."""

    async def resize(self, size: TerminalSize) -> None:
        await super().resize(size)
        loop = asyncio.get_running_loop()
        for seconds in RESIZE_REPEAT_SECONDS:
            loop.call_later(seconds, self._signal_size)

    def _signal_size(self) -> None:
        if not self.has_ended:
            self.signal_session(signal.SIGWINCH)


async def run_to_end(making: Coroutine[None, None, ClientOutput]) -> ClientOutput:
    """The answer. On cancellation the client still runs to its end, so that what it created can be removed."""
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=ASK_SECONDS)
        raise


class RunningClients:
    """Our programs inside a container. While one of them runs, so does the container, and no check is needed."""

    def __init__(self) -> None:
        self._running: list[HostProcess] = []

    def add(self, process: HostProcess) -> None:
        self._running.append(process)

    def any(self) -> bool:
        self._running = [process for process in self._running if not process.has_ended]
        return bool(self._running)

    async def release(self) -> None:
        """End the clients that still run."""
        running, self._running = self._running, []
        for process in running:
            await process.end()


def find_program(names: Iterable[str], environ: Mapping[str, str]) -> str | None:
    """The path of the first of these programs that is installed."""
    path = environ.get("PATH") or USUAL_PATH
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def this_process() -> str:
    """Our process id with its start time: unique until the machine restarts."""
    return f"{os.getpid()}:{_started(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether a process, as named by `this_process`, still runs."""
    pid, _, started = owner.partition(":")
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It runs as another user.
    return not started or _started(int(pid)) in ("", started)


def this_machine() -> str:
    """Identifies the machine, and the pid namespace: containers may share one engine."""
    try:
        numbering = Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        numbering = ""
    return f"{platform.node()}:{numbering}"


def _started(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""  # No /proc here, or the process has just ended.
    return fields[19]
