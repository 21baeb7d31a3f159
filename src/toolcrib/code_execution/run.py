"""Runs one script: on the loop of its environment, with its output and tool calls served on the caller's loop."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct, field
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
from toolcrib.core.cancel import CancelToken
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import CommandExit, Environment, Execution
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.environments.backends.sandbox import SandboxEngine
from toolcrib.environments.output import BoundedOutput
from toolcrib.environments.shell import ShellEnvironment
from toolcrib.registry.results import tool_error

MOST_WAITING_BYTES = 64 * 1024
"""How much output a watcher sees at once; the result has all of it."""
LONGEST_LINE = 64 * 1024
"""How much of a line a watcher sees."""


class CallerBridge:
    """Passes tool calls to the caller and lines to a watcher, in order, from one loop to another."""

    def __init__(self, ctx: ToolContext, mask: Callable[[str], str]) -> None:
        self._ctx = ctx
        self._mask = mask
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
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
            is_first = not self._printed
            self._printed += data[: MOST_WAITING_BYTES - len(self._printed)]
        if is_first:
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # The caller's loop may be closed.
            self._loop.call_soon_threadsafe(self._changed.set)

    # On the caller's loop

    def finish(self) -> None:
        """Nothing more will arrive."""
        self._finished = True
        self._changed.set()

    async def calls(self) -> AsyncIterator[CallFrame]:
        """The calls as they arrive, until the script has ended; passes output to the watcher meanwhile."""
        while True:
            await self._changed.wait()
            self._changed.clear()
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
    """The caller of a script; its methods are called on the script's loop."""

    def called(self, call: CallFrame) -> None: ...

    def printed(self, data: bytes) -> None: ...


class ScriptRequest(Struct, frozen=True, kw_only=True):
    """What to run, and its limits."""

    interpreter: InterpreterRequest
    start: dict[str, Any]
    alone: bool
    isolated: bool
    timeout_seconds: float
    deadline: float | None
    """When its caller gives up, in monotonic time."""
    max_error_bytes: int

    def seconds_left(self) -> float:
        """How long it may still run: it ends before the deadline, so that its output is not lost."""
        if self.deadline is None:
            return self.timeout_seconds
        left = self.deadline - time.monotonic()
        return min(self.timeout_seconds, max(left - ANSWER_BEFORE_DEADLINE_SECONDS, left / 2, 0.0))


class ScriptOutcome(Struct, kw_only=True):
    """The outcome of a script."""

    output: BoundedOutput
    errors: BoundedOutput
    stopped: Stop = "ended"
    allowed_seconds: float = 0.0
    done: DoneFrame | None = None
    exception: ExceptionFrame | None = None
    ended: CommandExit | None = None
    noise: str = ""
    """What was printed before the first frame."""
    orphans: list[str] = field(default_factory=list)


class NotIsolated(EnvironmentFailed):
    """The sandbox is weaker than what was approved; nothing has run."""


class ScriptLost(ToolcribError):
    """The environment was lost while the script was starting or running in it."""


class ScriptRun:
    """Runs one script. Used on one loop, except `interrupt`, `give_up` and `send`, which any thread may call."""

    def __init__(
        self, request: ScriptRequest, output: BoundedOutput, listener: ScriptListener, interpreters: InterpreterPool
    ) -> None:
        self._request = request
        self._interpreters = interpreters
        self._listener = listener
        self._outcome = ScriptOutcome(output=output, errors=BoundedOutput(request.max_error_bytes))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[Stop] | None = None
        self._interpreter: Interpreter | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._is_interrupted = False

    # From any thread

    @property
    def has_begun(self) -> bool:
        """Its environment is open."""
        return self._loop is not None

    def interrupt(self) -> None:
        """End the script, even if it is only about to start."""
        self._is_interrupted = True
        self._on_loop(self._stop, "interrupt")

    def give_up(self) -> None:
        """End a script that keeps calling tools it may not call."""
        self._on_loop(self._stop, "flood")

    def send(self, data: bytes) -> None:
        """Send a frame to the script; ignored if it has ended."""
        self._on_loop(self._begin_to_send, data)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop may be closed.
                self._loop.call_soon_threadsafe(function, *arguments)

    # On the loop

    async def run_in(self, environment: Environment) -> ScriptOutcome:
        """Run it; when this returns or is cancelled, none of its processes run any more."""
        request, outcome = self._request, self._outcome
        if request.isolated and request.alone and not environment.isolated:
            raise NotIsolated("the sandbox here is weaker than expected")
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        if self._is_interrupted:
            outcome.stopped = "interrupt"
            return outcome
        try:
            self._interpreter = interpreter = await self._interpreters.take(environment, request.interpreter)
        except EnvironmentFailed as error:
            raise ScriptLost(str(error)) from error
        interpreter.serve(self._take, lambda: self._stop("broken"))
        interpreter.ended.add_done_callback(lambda _: self._stop("ended"))
        outcome.allowed_seconds = request.seconds_left()
        timer = self._loop.call_later(outcome.allowed_seconds, self._stop, "timeout")
        try:
            engine = _sandbox_of(environment) if request.alone else None
            is_alone = engine is not None and engine.has_own_processes
            self._begin_to_send(start_frame({**request.start, "alone": is_alone}))
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
        if request.alone and outcome.done is not None:
            self._interpreters.prepare(environment, request.interpreter, interpreter.shim)
        return outcome

    def _take(self, frame: Frame) -> None:
        outcome = self._outcome
        if self._stopped is None or self._stopped.done() or outcome.done is not None:
            return  # Frames after the end do not belong to the script.
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
        """Make sure that none of the script's processes run any more."""
        outcome, ended = self._outcome, interpreter.ended
        try:
            if ended.done():
                outcome.ended = ended.result()
                outcome.orphans = [one.command for one in outcome.ended.orphans]
            if outcome.ended is None or outcome.done is None or not outcome.done.certain or outcome.orphans:
                await self._force_end(environment, interpreter.execution)
        finally:
            for task in self._sending:
                task.cancel()
            await interpreter.close()

    async def _force_end(self, environment: Environment, execution: Execution) -> None:
        engine = _sandbox_of(environment) if self._request.alone else None
        if engine is not None:
            # Hidden or not, its processes cannot outlive their sandbox.
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
"""A script that keeps calling after this many refusals is ended."""


class ScriptCalls:
    """Runs the tool calls of one script through the pipeline, as concurrently as their effects allow."""

    def __init__(self, ctx: ToolContext, tools: frozenset[str], limit: int, answer: Callable[[bytes], None]) -> None:
        self._cancel = CancelToken(ctx.cancel)
        self._ctx = replace(ctx, cancel=self._cancel, handler_kwargs=None, effects=None, memo=None)
        self._tools = tools
        self._limit = limit
        self._answer = answer
        self._turns = ctx.services.call_queue()
        self._running: set[asyncio.Task[None]] = set()
        self.asked = 0
        self.made = 0

    @property
    def is_flood(self) -> bool:
        return self.asked > self._limit + CALLS_BEYOND_THE_LIMIT

    def begin(self, call: CallFrame) -> None:
        """Start a call; its result is sent when it is done."""
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
        """Cancel the calls that still run; the script has ended."""
        self._cancel.cancel("the script has ended")
        if self._running:
            await asyncio.wait(self._running)

    def _refusal(self, call: CallFrame) -> str:
        if call.name not in self._tools:
            offered = ", ".join(sorted(self._tools)) or "no tools"
            return f"scripts of this session cannot call {call.name[:LONGEST_NAME]!r}; they can call: {offered}"
        if self.made >= self._limit:
            return f"a script may make {self._limit} tool calls; print what you have and continue in a new script"
        return ""

    async def _run(self, call: CallFrame, call_id: str) -> None:
        ctx = replace(self._ctx, call_id=call_id, tool_name=call.name)
        async with self._turns.turn(call.name, call.arguments, ctx):
            result: ToolResult = await ctx.services.call(ctx, call.name, call.arguments)
        self._answer(result_frame(call.id, _whole(result)))


def _whole(result: ToolResult) -> str | JsonObject:
    """The complete result: a script can process what is too long for a model."""
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
