"""An Engine over any object that can run one bash command, as backends written for Hermes Agent do.

Such an object starts a command with all of its input and returns a handle with its output. Our programs need an input
that stays open, so it is a named pipe in the environment, and every write to it is a command of its own.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import select
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from toolcrib.core.environments import BackendPath, EngineProcess, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.scripts import script

READ_BYTES = 64 * 1024
# For services that require one; commands have their own time limit.
LONGEST_RUN_SECONDS = 7 * 24 * 3600
START_SECONDS = 60.0
WRITE_SECONDS = 60.0
KILL_SECONDS = 5.0
# How long to wait for more output after a program has ended: its children may hold the output open forever.
SILENCE_SECONDS = 0.2
LOOK_SECONDS = 0.02
READY = "toolcrib-ready"
# The program may not have started yet, or may have ended.
WHEN_THERE = "for ((n = 0; n < 1000; n++)); do [[ -e $1.ready || -e $1.done ]] && break; sleep 0.01; done; "
FEED = WHEN_THERE + '[[ ! -e $1.done ]] && base64 -d >"$1"'
END_OF_INPUT = WHEN_THERE + '[[ -e $1.done ]] || echo 1<>"$1.end"'
# Processes that hold a pipe open are released first; they would wait forever.
REMOVE = 'for pipe in "$1"/*.end; do [[ ! -p $pipe ]] || echo 1<>"$pipe"; done; rm -rf -- "$1"'

T = TypeVar("T")


class BashHandle(Protocol):
    """A running command, with the interface of `subprocess.Popen`."""

    @property
    def stdout(self) -> Any: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def kill(self) -> Any: ...


class BashRunner(Protocol):
    """What a backend must provide. Every method may block."""

    def _run_bash(self, cmd_string: str, *, login: bool, timeout: int, stdin_data: str | None) -> BashHandle: ...

    def cleanup(self) -> Any: ...


class BashRunnerEngine:
    """An environment reached through an object with `_run_bash`; see Engine."""

    shell = "bash"
    # An idle shell would be a blocked command, perhaps a connection, in every environment.
    shell_pool_size = 0
    temporary = BackendPath("/tmp")

    def __init__(self, runner: BashRunner, kind: str) -> None:
        self.kind = kind
        self.isolated = bool(getattr(runner, "isolated", False))
        self._runner = runner
        self._folder = ""
        self._processes: set[BashRunnerProcess] = set()

    async def open(self) -> None:
        said: list[bytes] = []
        get_temp_dir = getattr(self._runner, "get_temp_dir", lambda: "/tmp")
        folder = f"{(await _in_thread(get_temp_dir)).rstrip('/')}/toolcrib-{secrets.token_hex(6)}"
        process = await self._start(f"umask 077; mkdir -p {shlex.quote(folder)} && echo {READY}", said.append)
        code = await process.wait_at_most(START_SECONDS)
        if READY.encode() not in b"".join(said):
            answer = b"".join(said).decode(errors="replace").strip() or f"exit code {code}"
            raise EnvironmentFailed(f"the {self.kind!r} backend cannot run bash commands: {answer}")
        self._folder = folder

    async def close(self) -> None:
        folder, self._folder = self._folder, ""
        if folder:
            for process in list(self._processes):
                await process.kill()
            removing = await self._start(shlex.join(["bash", "-c", REMOVE, "toolcrib", folder]), lambda _: None)
            await removing.wait_at_most(WRITE_SECONDS)
        await _in_thread(self._runner.cleanup)

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> EngineProcess:
        if terminal is not None:
            raise EnvironmentFailed(
                f"the {self.kind!r} backend does not support terminals; run the command without one"
            )
        if not self._folder:
            raise EnvironmentFailed(f"the {self.kind!r} environment is not open")
        fifo = f"{self._folder}/{secrets.token_hex(6)}"
        process = await self._start(
            shlex.join(["bash", "-c", script("late_input"), "toolcrib", fifo, *argv]), on_output
        )
        process.feed = partial(self._feed, fifo)
        return process

    def address(self) -> Mapping[str, str]:
        return {}

    async def _start(self, command: str, on_output: OnOutput, stdin: str | None = None) -> BashRunnerProcess:
        run = partial(self._runner._run_bash, command, login=False, timeout=LONGEST_RUN_SECONDS, stdin_data=stdin)
        process = BashRunnerProcess(await _in_thread(run), on_output, self._processes.discard)
        self._processes.add(process)
        return process

    async def _feed(self, fifo: str, data: bytes | None) -> None:
        """Write to a program's input; None ends it."""
        text = END_OF_INPUT if data is None else FEED
        command = shlex.join(["bash", "-c", text, "toolcrib", fifo])
        coded = None if data is None else base64.b64encode(data).decode() + "\n"
        writing = await self._start(command, lambda _: None, coded)
        if await writing.wait_at_most(WRITE_SECONDS) and data is not None:
            raise BrokenPipeError("it has ended")


class BashRunnerProcess:
    """A command that such an object started; see EngineProcess. One thread reads its output."""

    def __init__(self, handle: BashHandle, on_output: OnOutput, forget: Callable[[BashRunnerProcess], None]) -> None:
        self.feed: Callable[[bytes | None], Any] | None = None
        self._handle = handle
        self._on_output = on_output
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._is_abandoned = threading.Event()
        self._input_is_closed = False
        threading.Thread(target=self._follow, name="toolcrib-bash-runner", daemon=True).start()

    @property
    def pid(self) -> int | None:
        return None

    async def write(self, data: bytes) -> None:
        if self._ended.done() or self._input_is_closed or self.feed is None:
            raise BrokenPipeError("it has ended, or reads no input")
        if data:
            await self.feed(data)

    async def close_input(self) -> None:
        if self.feed is not None and not self._input_is_closed and not self._ended.done():
            self._input_is_closed = True
            await self.feed(None)

    async def resize(self, size: TerminalSize) -> None:
        return None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def wait_at_most(self, seconds: float) -> int:
        """Like `wait`, but kills what takes longer and raises EnvironmentFailed."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait()
        except TimeoutError as error:
            await self.kill()
            raise EnvironmentFailed(f"an internal command did not end within {seconds:g} seconds") from error

    async def abandon(self) -> None:
        self._on_output = lambda _: None
        self._is_abandoned.set()

    async def kill(self) -> None:
        """End what runs on this side; processes it started in the environment may continue."""
        await self.abandon()
        if not self._ended.done():
            await _in_thread(self._handle.kill)
            await asyncio.wait([self._ended], timeout=KILL_SECONDS)

    # In the thread

    def _follow(self) -> None:
        output = _Output(self._handle.stdout)
        try:
            self._read_all(output)
        finally:
            output.close()
            while self._handle.poll() is None and not self._loop.is_closed():
                time.sleep(LOOK_SECONDS)
            self._on_loop(self._finish)

    def _read_all(self, output: _Output) -> None:
        silent = 0.0
        while not self._is_abandoned.is_set():
            # First the exit, then the output: that way all output before the exit is seen.
            has_ended = self._handle.poll() is not None
            data = output.read(LOOK_SECONDS)
            if data == b"":
                return
            if data:
                self._on_loop(self._deliver, data)
            silent = 0.0 if data else silent + LOOK_SECONDS
            if has_ended and silent >= SILENCE_SECONDS:
                return

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self._is_abandoned.set()  # The loop is closed.

    # On the loop

    def _deliver(self, data: bytes) -> None:
        self._on_output(data)

    def _finish(self) -> None:
        if not self._ended.done():
            self._ended.set_result(_exit_code(self._handle))
        self._forget(self)


class _Output:
    """The output of a handle: a pipe, a binary or text file, or any iterable of lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lines = iter(stream if stream is not None else ())
        try:
            self._descriptor = stream.fileno() if stream is not None else -1
        except (AttributeError, OSError):
            self._descriptor = -1

    def read(self, limit_seconds: float) -> bytes | None:
        """The next bytes; None when nothing arrived in that time, `b""` at the end."""
        if self._descriptor >= 0:
            ready, _, _ = select.select([self._descriptor], [], [], limit_seconds)
            return os.read(self._descriptor, READ_BYTES) if ready else None
        for line in self._lines:
            data = line if isinstance(line, bytes) else str(line).encode(errors="surrogateescape")
            if data:
                return data
        return b""

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()


def _exit_code(handle: BashHandle) -> int:
    code = handle.returncode if handle.returncode is not None else handle.poll()
    if code is None:
        return 137  # It was just killed and has not been reaped yet.
    return 128 - code if code < 0 else code


async def _in_thread(function: Callable[[], T]) -> T:
    """Call foreign code that may block; whatever it raises becomes EnvironmentFailed."""
    try:
        return await asyncio.to_thread(function)
    except EnvironmentFailed:
        raise
    except Exception as error:  # foreign code may raise anything
        raise EnvironmentFailed(f"the backend failed: {type(error).__name__}: {error}") from error
