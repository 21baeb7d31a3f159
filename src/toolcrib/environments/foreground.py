"""Runs one command to its end: with a time limit, interruptible, with bounded output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct

from toolcrib.core.environments import (
    INTERRUPTED,
    TIMED_OUT,
    CommandExit,
    CommandRequest,
    Environment,
    Execution,
)
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.output import BoundedOutput

LIMIT_BYTES = 50_000
GRACE_SECONDS = 1.0
IDLE_SECONDS = 0.7
"""How long a command on a terminal must be silent before we check whether it waits for input."""


class ForegroundResult(Struct, frozen=True, kw_only=True):
    """The outcome of a foreground command."""

    output: BoundedOutput
    exit_code: int
    ended: CommandExit | None
    """None while it still runs because it waits for input."""
    execution: Execution
    timed_out: bool = False
    interrupted: bool = False
    waits_for_input: bool = False
    """It was waiting for input when it was stopped, or is waiting right now."""

    @property
    def text(self) -> str:
        return self.output.text()


class CommandLimits(Struct, frozen=True, kw_only=True):
    """The limits of a foreground command."""

    timeout_seconds: float
    limit_bytes: int = LIMIT_BYTES
    save_to: Path | None = None
    max_saved: int = 64 * 1024 * 1024
    return_when_waiting: bool = False
    """Return when a command on a terminal waits for input, instead of waiting with it."""


async def run_foreground(
    environment: Environment,
    request: CommandRequest,
    limits: CommandLimits,
    *,
    interrupt: asyncio.Event | None = None,
    on_output: Callable[[bytes], None] | None = None,
) -> ForegroundResult:
    """Start the command and wait for its end, its time limit or the interrupt, whichever comes first.

    After a time-out, an interrupt or cancellation, its whole process tree has ended when this returns.
    """
    run = ForegroundCommand(limits, on_output)
    listening = asyncio.ensure_future(_interrupt_when_set(run, interrupt)) if interrupt is not None else None
    try:
        return await run.result(environment, request)
    finally:
        if listening is not None:
            listening.cancel()


async def _interrupt_when_set(run: ForegroundCommand, interrupt: asyncio.Event) -> None:
    await interrupt.wait()
    run.interrupt()


Stop = Literal["ended", "timeout", "interrupt", "waiting"]


class ForegroundCommand:
    """One command that runs to its end."""

    def __init__(self, limits: CommandLimits, on_output: Callable[[bytes], None] | None = None) -> None:
        self._limits = limits
        self._on_output = on_output
        self._output = BoundedOutput(limits.limit_bytes, save_to=limits.save_to, max_saved=limits.max_saved)
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[Stop] = self._loop.create_future()

    def interrupt(self) -> None:
        """Stop the command, even if it is only about to start."""
        self._stop("interrupt")

    async def result(self, environment: Environment, request: CommandRequest) -> ForegroundResult:
        execution = await environment.start(request, self._take)
        ended = asyncio.ensure_future(execution.wait())
        ended.add_done_callback(lambda _: self._stop("ended"))
        timer = self._loop.call_later(self._limits.timeout_seconds, self._stop, "timeout")
        looking = request.terminal is not None and self._limits.return_when_waiting
        prompt = asyncio.ensure_future(self._look_for_prompt(execution)) if looking else None
        try:
            return await self._result(await self._stopped, execution, ended)
        except asyncio.CancelledError:
            await _end(execution)
            raise
        finally:
            timer.cancel()
            ended.cancel()
            if prompt is not None:
                prompt.cancel()
            self._output.close()

    async def _result(self, why: Stop, execution: Execution, ended: asyncio.Future[CommandExit]) -> ForegroundResult:
        given = partial(ForegroundResult, output=self._output, execution=execution)
        if why == "ended":
            return given(exit_code=ended.result().exit_code, ended=ended.result())
        # What the shell prints about being killed is not the command's output.
        self._output.close()
        if why == "waiting":
            return given(exit_code=0, ended=None, waits_for_input=True)
        if why == "interrupt":
            return given(exit_code=INTERRUPTED, ended=await _end(execution), interrupted=True)
        waiting = await execution.waits_for_input()
        return given(exit_code=TIMED_OUT, ended=await _end(execution), timed_out=True, waits_for_input=waiting)

    def _stop(self, why: Stop) -> None:
        if not self._stopped.done():
            self._stopped.set_result(why)

    def _take(self, data: bytes) -> None:
        self._output.feed(data)
        if self._on_output is not None:
            self._on_output(data)

    async def _look_for_prompt(self, execution: Execution) -> None:
        """Stop when the command is silent and reads from its terminal."""
        seen = -1
        while True:
            await asyncio.sleep(IDLE_SECONDS)
            silent = seen == self._output.total_bytes
            seen = self._output.total_bytes
            if silent and await execution.waits_for_input():
                self._stop("waiting")


async def _end(execution: Execution) -> CommandExit | None:
    """End the process tree of a command; `lost` when it could not be ended."""
    try:
        await execution.terminate(GRACE_SECONDS)
    except EnvironmentFailed as error:
        return CommandExit(exit_code=255, reason="lost", note=str(error))
    return await execution.wait()
