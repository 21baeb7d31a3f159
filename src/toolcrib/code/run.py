"""One script on its way, on the loop where its place lives: started, heard, and ended with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from toolcrib.code.channel import (
    CallFrame,
    DoneFrame,
    ExceptionFrame,
    Frame,
    OutputFrame,
    start_frame,
)
from toolcrib.code.interpreter import Interpreter, InterpreterOrder, WaitingInterpreters
from toolcrib.core.environments import Ended, Environment, Execution
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.environments.backends.sandbox import SandboxEngine
from toolcrib.environments.output import BoundedOutput
from toolcrib.environments.shell import ShellEnvironment

GRACE_SECONDS = 0.3
END_SECONDS = 20.0
ANSWER_BEFORE_DEADLINE_SECONDS = 0.5

Stop = Literal["ended", "timeout", "interrupt", "broken", "flood"]


class Listener(Protocol):
    """Whoever called; told on the loop of the script."""

    def called(self, call: CallFrame) -> None: ...

    def printed(self, data: bytes) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ScriptOrder:
    """What to run, and within which bounds."""

    interpreter: InterpreterOrder
    start: dict[str, Any]
    alone: bool
    isolated: bool
    timeout_seconds: float
    deadline: float | None
    """When its caller gives it up, by the clock that only goes on."""
    max_error_bytes: int

    def seconds_left(self) -> float:
        """How long it may take from now on: it ends before the deadline, so that what it printed is not lost."""
        if self.deadline is None:
            return self.timeout_seconds
        left = self.deadline - time.monotonic()
        return min(self.timeout_seconds, max(left - ANSWER_BEFORE_DEADLINE_SECONDS, left / 2, 0.0))


@dataclass(kw_only=True)
class ScriptOutcome:
    """What became of a script."""

    output: BoundedOutput
    errors: BoundedOutput
    stopped: Stop = "ended"
    allowed_seconds: float = 0.0
    done: DoneFrame | None = None
    exception: ExceptionFrame | None = None
    ended: Ended | None = None
    noise: str = ""
    """What was printed instead of a beginning."""
    left: list[str] = field(default_factory=list)


class NotIsolated(EnvironmentFailed):
    """The sandbox is weaker than what was agreed to; nothing has run."""


class ScriptLost(ToolcribError):
    """The place went away when the script was on its way in it; it may have begun."""


class ScriptRun:
    """Runs one script. Made and used on one loop, but for `interrupt` and `send`, which any thread may call."""

    def __init__(
        self, order: ScriptOrder, output: BoundedOutput, listener: Listener, waiting: WaitingInterpreters
    ) -> None:
        self._order = order
        self._waiting = waiting
        self._listener = listener
        self._outcome = ScriptOutcome(output=output, errors=BoundedOutput(order.max_error_bytes))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[Stop] | None = None
        self._interpreter: Interpreter | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._is_interrupted = False

    # From any thread

    @property
    def has_begun(self) -> bool:
        """Its place is open."""
        return self._loop is not None

    def interrupt(self) -> None:
        """End the script, also one that is only about to start."""
        self._is_interrupted = True
        self._on_loop(self._stop, "interrupt")

    def give_up(self) -> None:
        """End a script that does nothing but call tools that it may not call."""
        self._on_loop(self._stop, "flood")

    def send(self, data: bytes) -> None:
        """Give the script a frame; one that has ended does not get it."""
        self._on_loop(self._begin_to_send, data)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop may be closed by now.
                self._loop.call_soon_threadsafe(function, *arguments)

    # On the loop

    async def in_place(self, environment: Environment) -> ScriptOutcome:
        """Run it; when this returns or is cancelled, nothing of it runs any more."""
        order, outcome = self._order, self._outcome
        if order.isolated and order.alone and not environment.isolated:
            raise NotIsolated("the sandbox here is weaker than usual")
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        if self._is_interrupted:
            outcome.stopped = "interrupt"
            return outcome
        try:
            self._interpreter = interpreter = await self._waiting.take(environment, order.interpreter)
        except EnvironmentFailed as error:
            raise ScriptLost(str(error)) from error
        interpreter.serve(self._take, lambda: self._stop("broken"))
        interpreter.ended.add_done_callback(lambda _: self._stop("ended"))
        outcome.allowed_seconds = order.seconds_left()
        timer = self._loop.call_later(outcome.allowed_seconds, self._stop, "timeout")
        try:
            engine = _sandbox_of(environment) if order.alone else None
            is_alone = engine is not None and engine.has_own_processes
            self._begin_to_send(start_frame({**order.start, "alone": is_alone}))
            why = await self._stopped
            outcome.stopped = "ended" if outcome.done is not None else why
        finally:
            timer.cancel()
            try:
                await self._end(environment, interpreter)
            except EnvironmentFailed as error:
                raise ScriptLost(str(error)) from error
            finally:
                outcome.output.close()
                outcome.errors.close()
        outcome.noise = interpreter.noise
        if order.alone and outcome.done is not None:
            self._waiting.prepare(environment, order.interpreter, interpreter.shim)
        return outcome

    def _take(self, frame: Frame) -> None:
        outcome = self._outcome
        if self._stopped is None or self._stopped.done() or outcome.done is not None:
            return  # What comes after the end is not the script's any more.
        if isinstance(frame, OutputFrame):
            (outcome.output if frame.stream == "output" else outcome.errors).feed(frame.data)
            if frame.stream == "output":
                self._listener.printed(frame.data)
        elif isinstance(frame, CallFrame):
            self._listener.called(frame)
        elif isinstance(frame, ExceptionFrame):
            outcome.exception = frame
        elif isinstance(frame, DoneFrame):
            outcome.done = frame
            if not frame.certain:
                self._stop("ended")

    def _stop(self, why: Stop) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(why)

    def _begin_to_send(self, data: bytes) -> None:
        if self._interpreter is not None and self._stopped is not None and not self._stopped.done():
            task = asyncio.ensure_future(self._interpreter.write(data))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _end(self, environment: Environment, interpreter: Interpreter) -> None:
        """See to it that nothing of the script runs any more, whatever ended it."""
        outcome, ended = self._outcome, interpreter.ended
        try:
            if ended.done():
                outcome.ended = ended.result()
                outcome.left = [one.command for one in outcome.ended.left_behind]
            if outcome.ended is None or outcome.done is None or not outcome.done.certain or outcome.left:
                await self._end_for_certain(environment, interpreter.execution)
        finally:
            for task in self._sending:
                task.cancel()
            await interpreter.leave()

    async def _end_for_certain(self, environment: Environment, execution: Execution) -> None:
        engine = _sandbox_of(environment) if self._order.alone else None
        if engine is not None:
            # Whatever the script did to hide its processes, they cannot outlive their sandbox.
            await engine.end_programs()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await execution.terminate(GRACE_SECONDS)


def _sandbox_of(environment: Environment) -> SandboxEngine | None:
    engine = environment.engine if isinstance(environment, ShellEnvironment) else None
    return engine if isinstance(engine, SandboxEngine) else None
