"""The shells of a session: started before a command needs one, reused after it.

A shell mixes its own messages into the output of its command; a random sentinel tells the two apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Protocol

from toolcrib.core.environments import Engine, EngineProcess, OnOutput
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.host_process import HostProcess

NO_FOLDER, DONE = b"no_folder", b"done"
FIELDS_OF = {NO_FOLDER: 2, DONE: 2}
SENTINEL_FIELDS = 6

OnMessage = Callable[[list[str]], None]


class SentinelReader:
    """Splits a shell's stream into output, passed on as it arrives, and messages, passed on once complete.

    A message is `NUL sentinel NUL field NUL … NUL`. The sentinel is random and belongs to one shell. Output after the
    final message comes from processes that the command left running.
    """

    def __init__(self, marker: str, on_output: OnOutput, on_message: OnMessage) -> None:
        self._needle = b"\0%b\0" % marker.encode()
        self._on_output = on_output
        self._on_message = on_message
        self._held = b""
        self._in_message = False

    def feed(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        while data:
            data = self._message(data) if self._in_message else self._output(data)

    def finish(self) -> None:
        """The stream has ended: bytes held back as the possible start of a message were output."""
        held, self._held = self._held, b""
        if held and not self._in_message:
            self._on_output(held)

    def _output(self, data: bytes) -> bytes:
        """Pass on the output before the next message; returns the rest of the data."""
        start = data.find(self._needle) if b"\0" in data else len(data)
        if start == len(data):
            self._on_output(data)
            return b""
        if start < 0:
            kept = self._start_of_needle(data)
            data, self._held = data[:kept], data[kept:]
            if data:
                self._on_output(data)
            return b""
        if start:
            self._on_output(data[:start])
        self._in_message = True
        return self._message(data[start + len(self._needle) :])

    def _start_of_needle(self, data: bytes) -> int:
        """The offset of the longest suffix of `data` that could start a message."""
        start = data.find(b"\0", max(0, len(data) - len(self._needle) + 1))
        while start >= 0 and not self._needle.startswith(data[start:]):
            start = data.find(b"\0", start + 1)
        return start if start >= 0 else len(data)

    def _message(self, data: bytes) -> bytes:
        """Pass on a complete message; returns the rest of the data."""
        fields = data.split(b"\0", SENTINEL_FIELDS)
        wanted = FIELDS_OF.get(fields[0], SENTINEL_FIELDS)
        if len(fields) <= wanted:
            self._held = data
            return b""
        self._in_message = False
        self._on_message([field.decode(errors="surrogateescape") for field in fields[:wanted]])
        return b"\0".join(fields[wanted:])


STOP_SECONDS = 5.0
ACQUIRE_SECONDS = 0.5
"""How long a command waits for a shell that is starting before it starts one itself."""


class ServedCommand(Protocol):
    """The command that a shell is running."""

    def on_message(self, fields: list[str]) -> None: ...

    def on_shell_end(self, code: int | None, reason: str) -> None:
        """The shell ended before it reported the command's end; without a code, the environment itself was lost."""
        ...


class Shell:
    """A shell that loads the session and runs one command at a time."""

    def __init__(self, version: int) -> None:
        self.marker = os.urandom(16).hex()
        """The sentinel at the start of its messages, and of the commands that it accepts."""
        self.version = version
        """The version of the session that it loaded."""
        self.process: EngineProcess
        self.has_ended = False
        self._command: ServedCommand | None = None
        self._reader: SentinelReader | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, engine: Engine, argv: list[str]) -> None:
        self.process = await engine.spawn(argv, on_output=self._on_output)
        self._watching = asyncio.ensure_future(self._watch())

    async def run(self, command: ServedCommand, on_output: OnOutput, blob: bytes) -> None:
        """Send it a command; raises BrokenPipeError if the shell has ended, in which case nothing has run."""
        if self.has_ended:
            raise BrokenPipeError("the shell has ended")
        self._command, self._reader = command, SentinelReader(self.marker, on_output, command.on_message)
        try:
            await self.process.write(b"%b %d\n%b" % (self.marker.encode(), len(blob), blob))
        except BrokenPipeError:
            self._command = self._reader = None
            raise

    def release(self) -> None:
        """Its command is done."""
        self._command = self._reader = None

    async def stop(self) -> None:
        """End it: it exits when its input ends."""
        with contextlib.suppress(EnvironmentFailed, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.process.close_input()
                await self.process.wait()
        if isinstance(self.process, HostProcess):
            # One that was suspended (`kill -STOP $$`) reacts to nothing else.
            await self.process.end()
        else:
            await self.process.abandon()

    def _on_output(self, data: bytes) -> None:
        # Output before the first command belongs to no command.
        if self._reader is not None:
            self._reader.feed(data)

    async def _watch(self) -> None:
        code, reason = None, ""
        try:
            code = await self.process.wait()
        except EnvironmentFailed as error:
            reason = str(error)
        self.has_ended = True
        reader, command = self._reader, self._command
        # What its forks print from now on belongs to no command.
        self.release()
        if reader is not None:
            reader.finish()
        if command is not None:
            command.on_shell_end(code, reason)


class ShellPool:
    """Keeps as many idle shells as the engine asks for. A shell that loaded an outdated session is stopped."""

    def __init__(self, engine: Engine, argv: Callable[[str], list[str]]) -> None:
        self._engine = engine
        self._argv = argv
        self._version = 0
        self._idle: list[Shell] = []
        self._starting: asyncio.Task[None] | None = None
        self._expected: asyncio.Future[None] | None = None
        self._shells: set[Shell] = set()
        """All shells that were started and not stopped."""
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    def prepare(self) -> None:
        """Start a shell ahead of the next command, unless one is idle."""
        if not self._closed and not self._idle and self._starting is None and self._engine.shell_pool_size:
            self._starting = asyncio.ensure_future(self._start_ahead())

    async def _start_ahead(self) -> None:
        try:
            self._idle.append(await self.start())
        except EnvironmentFailed:
            # It may be temporary; starting one for a command will tell.
            return
        finally:
            self._starting = None

    def invalidate(self) -> None:
        """The session has changed: idle shells are outdated."""
        self._version += 1
        self._stop_idle()
        self.prepare()

    def expect(self, shell: Shell) -> None:
        """Its command has ended and it will be idle in an instant: whoever acquires a shell now waits for it."""
        if shell.version == self._version and self._expected is None:
            self._expected = asyncio.get_running_loop().create_future()

    async def acquire(self) -> Shell:
        """A shell that has loaded the current session."""
        pending = [one for one in (self._starting, self._expected) if one is not None]
        if not self._idle and pending:
            await asyncio.wait(pending, timeout=ACQUIRE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        while self._idle:
            shell = self._idle.pop()
            if shell.version == self._version and not shell.has_ended:
                return shell
            self._stop(shell)
        return await self.start()

    def release(self, shell: Shell) -> None:
        """Return a shell for the next command."""
        shell.release()
        expected, self._expected = self._expected, None
        if expected is not None and not expected.done():
            expected.set_result(None)
        is_wanted = shell.version == self._version and not shell.has_ended and not self._closed
        if is_wanted and len(self._idle) < self._engine.shell_pool_size:
            self._idle.append(shell)
        else:
            self._stop(shell)

    def discard(self, shell: Shell) -> None:
        """Stop a shell that cannot run another command, and start a replacement."""
        shell.release()
        self._stop(shell)
        self.prepare()

    async def start(self) -> Shell:
        shell = Shell(self._version)
        await shell.start(self._engine, self._argv(shell.marker))
        self._shells.add(shell)
        return shell

    async def close(self) -> None:
        """Stop all shells; returns when they have ended."""
        self._closed = True
        self._stop_idle()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        for shell in list(self._shells):
            self._stop(shell)
        if self._stopping:
            await asyncio.wait(self._stopping)

    def _stop_idle(self) -> None:
        while self._idle:
            self._stop(self._idle.pop())

    def _stop(self, shell: Shell) -> None:
        self._shells.discard(shell)
        stopping = asyncio.ensure_future(shell.stop())
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
