"""Tells a command's output from what its shell says about it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
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
    """Hands output on as it comes, and the fields of each message once they are there.

    A message is `NUL marker NUL field NUL … NUL`. The marker is random and belongs to one shell. Output that comes
    after the trailer is printed by processes that the command left behind.
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
        """The stream has ended: what was held back, because a message might begin there, was output."""
        held, self._held = self._held, b""
        if held and not self._in_message:
            self._on_output(held)

    def _output(self, data: bytes) -> bytes:
        """Hand on what stands before the next message; gives what stands after its beginning."""
        start = data.find(self._needle) if b"\0" in data else len(data)
        if start == len(data):
            self._on_output(data)
            return b""
        if start < 0:
            kept = self._beginning_of_needle(data)
            data, self._held = data[:kept], data[kept:]
            if data:
                self._on_output(data)
            return b""
        if start:
            self._on_output(data[:start])
        self._in_message = True
        return self._message(data[start + len(self._needle) :])

    def _beginning_of_needle(self, data: bytes) -> int:
        """Where the longest end of `data` begins that could be the start of a message."""
        start = data.find(b"\0", max(0, len(data) - len(self._needle) + 1))
        while start >= 0 and not self._needle.startswith(data[start:]):
            start = data.find(b"\0", start + 1)
        return start if start >= 0 else len(data)

    def _message(self, data: bytes) -> bytes:
        """Hand on a message that is whole; gives what stands after it."""
        fields = data.split(b"\0", SENTINEL_FIELDS)
        wanted = FIELDS_OF.get(fields[0], SENTINEL_FIELDS)
        if len(fields) <= wanted:
            self._held = data
            return b""
        self._in_message = False
        self._on_message([field.decode(errors="surrogateescape") for field in fields[:wanted]])
        return b"\0".join(fields[wanted:])


LEAVE_SECONDS = 5.0
COMING_SECONDS = 0.5
"""How long a command waits for a shell that is on its way before it starts another."""


class ServedCommand(Protocol):
    """The command that a shell works for."""

    def on_message(self, fields: list[str]) -> None: ...

    def on_shell_end(self, code: int | None, reason: str) -> None:
        """The shell has gone before the command's end was told; without a code the place itself went away."""
        ...


class Shell:
    """A shell that has loaded the session, or is about to, and serves one command at a time."""

    def __init__(self, version: int) -> None:
        self.marker = os.urandom(16).hex()
        """What it begins its messages with."""
        self.version = version
        """Of the session, when it was started."""
        self.process: EngineProcess
        self.is_gone = False
        self._served: ServedCommand | None = None
        self._reader: SentinelReader | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, engine: Engine, argv: list[str]) -> None:
        self.process = await engine.spawn(argv, on_output=self._hear)
        self._watching = asyncio.ensure_future(self._watch())

    async def serve(self, served: ServedCommand, on_output: OnOutput, blob: bytes) -> None:
        """Give it a command; raises BrokenPipeError when it has gone, and nothing has run."""
        if self.is_gone:
            raise BrokenPipeError("the shell has gone")
        self._served, self._reader = served, SentinelReader(self.marker, on_output, served.on_message)
        try:
            await self.process.write(b"%d\n%b" % (len(blob), blob))
        except BrokenPipeError:
            self._served = self._reader = None
            raise

    def rest(self) -> None:
        """Its command is done."""
        self._served = self._reader = None

    async def leave(self) -> None:
        """End it: it leaves when its input ends."""
        with contextlib.suppress(EnvironmentFailed, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.process.close_input()
                await self.process.wait()
        if not self.is_gone and isinstance(self.process, HostProcess):
            # It was stopped (`kill -STOP $$`), and hears nothing.
            self.process.signal_session(signal.SIGKILL)
        await self.process.abandon()

    def _hear(self, data: bytes) -> None:
        # What is printed before a command comes belongs to nobody.
        if self._reader is not None:
            self._reader.feed(data)

    async def _watch(self) -> None:
        code, reason = None, ""
        try:
            code = await self.process.wait()
        except EnvironmentFailed as error:
            reason = str(error)
        self.is_gone = True
        reader, served = self._reader, self._served
        # What its forks print from now on belongs to nobody.
        self.rest()
        if reader is not None:
            reader.finish()
        if served is not None:
            served.on_shell_end(code, reason)


class ShellPool:
    """Keeps as many idle ones as the engine says. One that has loaded what is no longer the session is let go."""

    def __init__(self, engine: Engine, argv: Callable[[str], list[str]]) -> None:
        self._engine = engine
        self._argv = argv
        self._version = 0
        self._idle: list[Shell] = []
        self._starting: asyncio.Task[None] | None = None
        self._expected: asyncio.Future[None] | None = None
        self._shells: set[Shell] = set()
        """All that were started and not let go."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    def prepare(self) -> None:
        """Start one ahead, unless one waits already."""
        if not self._closed and not self._idle and self._starting is None and self._engine.shell_pool_size:
            self._starting = asyncio.ensure_future(self._start_ahead())

    async def _start_ahead(self) -> None:
        try:
            self._idle.append(await self.start())
        except EnvironmentFailed:
            # It may be a passing failure; starting one for a command tells.
            return
        finally:
            self._starting = None

    def renew(self) -> None:
        """The session has changed."""
        self._version += 1
        self._empty()
        self.prepare()

    def expect(self, shell: Shell) -> None:
        """The end of its command is known, and it is free in an instant: one who asks now waits for it."""
        if shell.version == self._version and self._expected is None:
            self._expected = asyncio.get_running_loop().create_future()

    async def take(self) -> Shell:
        """A shell that has loaded the session as it is now."""
        coming = [one for one in (self._starting, self._expected) if one is not None]
        if not self._idle and coming:
            await asyncio.wait(coming, timeout=COMING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        while self._idle:
            shell = self._idle.pop()
            if shell.version == self._version and not shell.is_gone:
                return shell
            self._let_go(shell)
        return await self.start()

    def give_back(self, shell: Shell) -> None:
        """It is free for the next command."""
        shell.rest()
        expected, self._expected = self._expected, None
        if expected is not None and not expected.done():
            expected.set_result(None)
        is_wanted = shell.version == self._version and not shell.is_gone and not self._closed
        if is_wanted and len(self._idle) < self._engine.shell_pool_size:
            self._idle.append(shell)
        else:
            self._let_go(shell)

    def dismiss(self, shell: Shell) -> None:
        """It is of no use for another command; one that is takes its place."""
        shell.rest()
        self._let_go(shell)
        self.prepare()

    async def start(self) -> Shell:
        shell = Shell(self._version)
        await shell.start(self._engine, self._argv(shell.marker))
        self._shells.add(shell)
        return shell

    async def close(self) -> None:
        """End them all; returns when they have gone."""
        self._closed = True
        self._empty()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        for shell in list(self._shells):
            self._let_go(shell)
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _empty(self) -> None:
        while self._idle:
            self._let_go(self._idle.pop())

    def _let_go(self, shell: Shell) -> None:
        self._shells.discard(shell)
        leaving = asyncio.ensure_future(shell.leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
