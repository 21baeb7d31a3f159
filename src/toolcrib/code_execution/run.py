"""What a script says, brought from the loop where it lives to the loop of whoever called it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from toolcrib.code_execution.channel import (
    CallFrame,
    DoneFrame,
    ExceptionFrame,
    Frame,
    OutputFrame,
    result_frame,
    start_frame,
)
from toolcrib.code_execution.interpreter import Interpreter, InterpreterPool, InterpreterRequest
from toolcrib.core.context import CancelToken, ToolContext
from toolcrib.core.environments import CommandExit, Environment, Execution
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.environments.backends.sandbox import SandboxEngine
from toolcrib.environments.output import BoundedOutput
from toolcrib.environments.shell import ShellEnvironment
from toolcrib.registry.results import tool_error

MOST_WAITING_BYTES = 64 * 1024
"""Who watches sees this much of what a script prints at once; the result has the rest."""
LONGEST_LINE = 64 * 1024
"""Who watches sees this much of a line."""


class CallerBridge:
    """Hands calls of tools to the caller, and lines to whoever watches, in the order in which they come."""

    def __init__(self, ctx: ToolContext, mask: Callable[[str], str]) -> None:
        self._ctx = ctx
        self._mask = mask
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._lock = threading.Lock()
        self._calls: deque[CallFrame] = deque()
        self._printed = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        self._finished = False

    # From the script's loop

    def called(self, call: CallFrame) -> None:
        with self._lock:
            self._calls.append(call)
        self._wake()

    def printed(self, data: bytes) -> None:
        if self._ctx.on_progress is None:
            return
        with self._lock:
            is_news = not self._printed
            self._printed += data[: MOST_WAITING_BYTES - len(self._printed)]
        if is_news:
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # The caller's loop may be closed by now.
            self._loop.call_soon_threadsafe(self._news.set)

    # On the caller's loop

    def finish(self) -> None:
        """Nothing more will come."""
        self._finished = True
        self._news.set()

    async def calls(self) -> AsyncIterator[CallFrame]:
        """The calls as they come, until the script has ended; what it prints goes to whoever watches meanwhile."""
        while True:
            await self._news.wait()
            self._news.clear()
            was_finished = self._finished
            with self._lock:
                calls, self._calls = self._calls, deque()
                printed, self._printed = bytes(self._printed), bytearray()
            self._show(printed, last=was_finished)
            if was_finished:
                return
            for call in calls:
                yield call

    def _show(self, data: bytes, *, last: bool) -> None:
        first, *lines = self._decoder.decode(data, last).split("\n")
        lines.insert(0, self._line + first[: LONGEST_LINE - len(self._line)])
        self._line = "" if last else lines.pop()
        shown = [line for line in lines if line.strip()]
        if shown:
            self._ctx.progress(self._mask("\n".join(shown)))


GRACE_SECONDS = 0.3
END_SECONDS = 20.0
ANSWER_BEFORE_DEADLINE_SECONDS = 0.5

Stop = Literal["ended", "timeout", "interrupt", "broken", "flood"]


class ScriptListener(Protocol):
    """Whoever called; told on the loop of the script."""

    def called(self, call: CallFrame) -> None: ...

    def printed(self, data: bytes) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ScriptRequest:
    """What to run, and within which bounds."""

    interpreter: InterpreterRequest
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
    ended: CommandExit | None = None
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
        self, order: ScriptRequest, output: BoundedOutput, listener: ScriptListener, waiting: InterpreterPool
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
                outcome.left = [one.command for one in outcome.ended.orphans]
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


LONGEST_RESULT_BYTES = 16 * 1024 * 1024
LONGEST_NAME = 100
CALLS_BEYOND_THE_LIMIT = 1_000
"""A script that goes on calling after that many refusals does nothing else."""


class ScriptCalls:
    """Runs calls of one script, as many at a time as their effects allow, and answers each."""

    def __init__(self, ctx: ToolContext, tools: frozenset[str], limit: int, answer: Callable[[bytes], None]) -> None:
        self._cancel = CancelToken(ctx.cancel)
        self._ctx = replace(ctx, cancel=self._cancel, handler_kwargs=None, effects=None)
        self._tools = tools
        self._limit = limit
        self._answer = answer
        self._turns: Any = ctx.services.get("call_turns")()
        self._running: set[asyncio.Task[None]] = set()
        self.asked = 0
        self.made = 0

    @property
    def is_flood(self) -> bool:
        return self.asked > self._limit + CALLS_BEYOND_THE_LIMIT

    def begin(self, call: CallFrame) -> None:
        """Run a call; its answer is sent when it is there."""
        self.asked += 1
        refusal = self._refusal(call)
        if refusal:
            self._answer(result_frame(call.id, tool_error(refusal)))
            return
        self.made += 1
        task = asyncio.ensure_future(self._run(call, f"{self._ctx.call_id or 'script'}/{self.made}"))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Stop what still runs; the script is not there any more to hear of it."""
        self._cancel.cancel("the script has ended")
        if self._running:
            await asyncio.wait(self._running)

    def _refusal(self, call: CallFrame) -> str:
        if call.name not in self._tools:
            offered = ", ".join(sorted(self._tools)) or "no tool"
            return f"a script of this session cannot call {call.name[:LONGEST_NAME]!r}; it can call: {offered}"
        if self.made >= self._limit:
            return (
                f"a script may call {self._limit} tools and has done so; print what you have and go on in a new script"
            )
        return ""

    async def _run(self, call: CallFrame, call_id: str) -> None:
        ctx = replace(self._ctx, call_id=call_id, tool_name=call.name)
        async with self._turns.turn(call.name, call.arguments, ctx):
            result: ToolResult = await ctx.services.call(ctx, call.name, call.arguments)
        self._answer(result_frame(call.id, _whole(result)))


def _whole(result: ToolResult) -> str | JsonObject:
    """The result as the tool gave it: a script can work with what is too long for a model."""
    if not result.handle:
        return result.content
    try:
        kept = Path(result.handle)
        return (
            kept.read_text(encoding="utf-8", errors="replace")
            if kept.stat().st_size <= LONGEST_RESULT_BYTES
            else result.content
        )
    except OSError:
        return result.content
