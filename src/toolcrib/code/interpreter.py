"""Interpreters that wait for a script: one that was just started, or one that was started ahead of the next script."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from toolcrib.code.channel import ChannelBroken, Frame, FrameReader, HelloFrame
from toolcrib.core.environments import BackendPath, CommandRequest, Ended, Environment, Execution
from toolcrib.core.errors import EnvironmentFailed

BEGINNING = b"\0%b\0"
"""Around the word that an interpreter begins with: what only repeats its arguments does not write these."""
WAIT_SECONDS = 60.0
"""How long an interpreter waits for the next script; then its memory is given back."""


@dataclass(frozen=True, kw_only=True)
class Shim:
    """A program that looks for an interpreter each time and starts it, as version managers have them: slow."""

    path: str
    executable: str


@dataclass(frozen=True, kw_only=True)
class InterpreterOrder:
    """Which interpreter is wanted; one that was started for an equal order will do."""

    command: Callable[[str, Shim | None], str]
    """The command line, by the word that the interpreter begins with, and what is known of the one that is found."""
    folder: BackendPath | None
    looks_like: tuple[object, ...]
    """What the choice of the interpreter depends on."""


class Interpreter:
    """One that is about to wait for its script, or runs it."""

    def __init__(self) -> None:
        self._nonce = os.urandom(16).hex()
        self._on_frame: Callable[[Frame], None] = lambda _: None
        self._on_broken: Callable[[], None] = lambda: None
        self._reader = FrameReader(BEGINNING % self._nonce.encode(), self._take)
        self._is_ready = False
        self.shim: Shim | None = None
        """What was found on the way to it; known once it is ready."""
        self.execution: Execution
        self.ended: asyncio.Future[Ended]

    async def start(self, environment: Environment, order: InterpreterOrder, shim: Shim | None) -> None:
        self.shim = shim
        request = CommandRequest(command=order.command(self._nonce, shim), cwd=order.folder, open_input=True)
        self.execution = await environment.start(request, self._hear)
        self.ended = asyncio.ensure_future(self.execution.wait())

    def serve(self, on_frame: Callable[[Frame], None], on_broken: Callable[[], None]) -> None:
        """From now on it works for this script."""
        self._on_frame, self._on_broken = on_frame, on_broken

    @property
    def noise(self) -> str:
        """What was printed instead of a beginning."""
        return self._reader.noise

    async def write(self, data: bytes) -> None:
        """Give it a frame; one that has ended does not get it."""
        with contextlib.suppress(OSError, EnvironmentFailed):
            await self.execution.write(data)

    async def leave(self) -> None:
        """Let go of it: one that waits ends when its input does."""
        self.ended.cancel()
        with contextlib.suppress(OSError, EnvironmentFailed):
            await self.execution.close_input()

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, HelloFrame):
            # Its first word: a later one could only be the script's.
            if self._is_ready:
                return
            self._is_ready = True
            if frame.called != frame.executable:
                self.shim = Shim(path=frame.called, executable=frame.executable)
        else:
            self._on_frame(frame)

    def _hear(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except ChannelBroken:
            self._on_broken()


class _Waiting:
    """An interpreter that was started ahead, or is about to be."""

    def __init__(self, environment: Environment, order: InterpreterOrder, shim: Shim | None) -> None:
        self.order = order
        self.starting = asyncio.ensure_future(self._start(environment, shim))
        self.timer: asyncio.TimerHandle

    async def _start(self, environment: Environment, shim: Shim | None) -> Interpreter | None:
        interpreter = Interpreter()
        try:
            await interpreter.start(environment, self.order, shim)
        except EnvironmentFailed:
            return None  # The next script finds out why.
        return interpreter

    def fits(self, order: InterpreterOrder) -> bool:
        return (self.order.folder, self.order.looks_like) == (order.folder, order.looks_like)

    async def leave(self) -> None:
        interpreter = await self.starting
        if interpreter is not None:
            await interpreter.leave()


class WaitingInterpreters:
    """At most one for each environment. Used on the loop where the environments live; they end it when they close."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def take(self, environment: Environment, order: InterpreterOrder) -> Interpreter:
        """One for this order: the one that waits, if it fits and still lives, else a new one."""
        waiting = self._waiting.pop(id(environment), None)
        if waiting is not None:
            waiting.timer.cancel()
            if not waiting.fits(order):
                self._let_go(waiting)
            elif (ready := await waiting.starting) is not None and not ready.ended.done():
                return ready
        interpreter = Interpreter()
        await interpreter.start(environment, order, None)
        return interpreter

    def prepare(self, environment: Environment, order: InterpreterOrder, shim: Shim | None) -> None:
        """Start one for the next script, in the background."""
        key = id(environment)
        self._forget(key)
        waiting = self._waiting[key] = _Waiting(environment, order, shim)
        waiting.timer = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._forget, key)

    def _forget(self, key: int) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._let_go(waiting)

    def _let_go(self, waiting: _Waiting) -> None:
        task = asyncio.ensure_future(waiting.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
