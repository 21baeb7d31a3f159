"""Runs one command to its end: within a time limit, interruptible, with bounded output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.core.environments import (
    INTERRUPTED,
    TIMED_OUT,
    CommandRequest,
    Ended,
    Environment,
    Execution,
)
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.output import BoundedOutput

LIMIT_BYTES = 50_000
GRACE_SECONDS = 1.0
IDLE_SECONDS = 0.7
"""How long a command on a terminal must be silent before we look whether it waits for somebody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForegroundResult:
    """What a command gave."""

    output: BoundedOutput
    exit_code: int
    ended: Ended | None
    """None while it waits for input and still runs."""
    execution: Execution
    timed_out: bool = False
    interrupted: bool = False
    waits_for_input: bool = False
    """It was waiting for somebody to type something, when it was stopped or right now."""

    @property
    def text(self) -> str:
        return self.output.text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a command in the foreground."""

    timeout_seconds: float
    limit_bytes: int = LIMIT_BYTES
    save_to: Path | None = None
    max_saved: int = 64 * 1024 * 1024
    return_when_waiting: bool = False
    """Give back a command on a terminal that waits for input, instead of waiting with it."""


async def run_foreground(
    environment: Environment,
    request: CommandRequest,
    limits: Limits,
    *,
    interrupt: asyncio.Event | None = None,
    on_output: Callable[[bytes], None] | None = None,
) -> ForegroundResult:
    """Start the command and wait for its end, for the time limit or for the interrupt, whichever is first.

    On time-out and interrupt its whole process tree has ended when this returns; when this is cancelled, too.
    """
    output = BoundedOutput(limits.limit_bytes, save_to=limits.save_to, max_saved=limits.max_saved)

    def take(data: bytes) -> None:
        output.feed(data)
        if on_output is not None:
            on_output(data)

    execution = await environment.start(request, take)
    run = _Run(execution, output, limits)
    try:
        return await run.result(interrupt, look_for_prompt=request.terminal is not None)
    except asyncio.CancelledError:
        await _end(execution)
        raise
    finally:
        output.close()


class _Run:
    def __init__(self, execution: Execution, output: BoundedOutput, limits: Limits) -> None:
        self._execution = execution
        self._output = output
        self._limits = limits

    async def result(self, interrupt: asyncio.Event | None, *, look_for_prompt: bool) -> ForegroundResult:
        ended = asyncio.ensure_future(self._execution.wait())
        waited_for: list[asyncio.Future[Any]] = [ended]
        if interrupt is not None:
            waited_for.append(asyncio.ensure_future(interrupt.wait()))
        if look_for_prompt and self._limits.return_when_waiting:
            waited_for.append(asyncio.ensure_future(self._prompt()))
        try:
            done, _ = await asyncio.wait(
                waited_for, timeout=self._limits.timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for one in waited_for[1:]:
                one.cancel()
        if ended in done:
            return self._given(ended.result().exit_code, ended.result())
        # What the shell says about being ended is not the command's output.
        self._output.close()
        if not done:
            waiting = await self._execution.waits_for_input()
            return self._given(TIMED_OUT, await _end(self._execution), timed_out=True, waits_for_input=waiting)
        if interrupt is not None and interrupt.is_set():
            return self._given(INTERRUPTED, await _end(self._execution), interrupted=True)
        ended.cancel()
        return self._given(0, None, waits_for_input=True)

    def _given(self, exit_code: int, ended: Ended | None, **marks: bool) -> ForegroundResult:
        return ForegroundResult(
            output=self._output, exit_code=exit_code, ended=ended, execution=self._execution, **marks
        )

    async def _prompt(self) -> None:
        """Returns when the command is silent and reads from its terminal."""
        seen = -1
        while True:
            await asyncio.sleep(IDLE_SECONDS)
            silent = seen == self._output.total_bytes
            seen = self._output.total_bytes
            if silent and await self._execution.waits_for_input():
                return


async def _end(execution: Execution) -> Ended | None:
    """End the tree of a command; None when it could not be ended, which the caller tells."""
    try:
        await execution.terminate(GRACE_SECONDS)
    except EnvironmentFailed as error:
        return Ended(exit_code=255, reason="lost", note=str(error))
    return await execution.wait()
