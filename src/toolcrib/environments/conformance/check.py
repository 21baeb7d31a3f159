"""What a check is, and its context: an open environment, and helpers to run commands and inspect the result."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolcrib.core.environments import BackendPath, CommandExit, CommandRequest, Environment, Execution, OnOutput
from toolcrib.core.errors import ToolcribError
from toolcrib.environments.foreground import ForegroundResult

Capability = Literal["pty", "secrets"]
COMMAND_SECONDS = 60.0
"""A command of a check that takes longer hangs. No check depends on how fast the machine is."""
GONE_SECONDS = 30.0
_LOOK_SECONDS = 0.1

# The pattern comes on standard input, so that the search does not find itself.
_FIND_PROCESSES = r"""
if [ -r /proc/self/cmdline ]; then
    command grep -laF -f - /proc/[0-9]*/cmdline 2>/dev/null
else
    command ps -A -o args= | command grep -F -f -
fi
:
"""


class ConformanceFailure(ToolcribError):
    """An environment violates the rule of a check; the message says what was expected and what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendUnderTest:
    """The backend under test, and what is known about it."""

    name: str
    make: Callable[[], Environment]
    """Creates an environment that is not open yet."""
    can: frozenset[Capability] = frozenset({"pty"})
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables of this process that must not be visible inside, by name."""
    leftovers: Callable[[], Awaitable[Sequence[str]]] | None = None
    """Lists what environments of this backend occupy outside: containers, connections, files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule for environments, and how to check it."""

    name: str
    rule: str
    run: Callable[[CheckContext], Awaitable[None]]
    needs: frozenset[Capability] = frozenset()
    alone: bool = False
    """It needs an environment that no other check uses."""
    seconds: float = 240.0


def check(
    name: str, *needs: Capability, alone: bool = False, seconds: float = 240.0
) -> Callable[[Callable[[CheckContext], Awaitable[None]]], Check]:
    """Turn a coroutine function into a check; its docstring is the rule."""

    def make(run: Callable[[CheckContext], Awaitable[None]]) -> Check:
        rule = " ".join((run.__doc__ or "").split())
        return Check(name=name, rule=rule, run=run, needs=frozenset(needs), alone=alone, seconds=seconds)

    return make


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """An ended command: all of its output, and its exit."""

    output: bytes
    ended: CommandExit
    seconds: float

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace")


class OutputRecorder:
    """Records the output of a command, and lets a check wait for a part of it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._changed = asyncio.Event()

    def __call__(self, data: bytes) -> None:
        self.data += data
        self._changed.set()

    async def wait_for(self, part: bytes, seconds: float = COMMAND_SECONDS) -> None:
        """Return once `part` has been printed."""
        try:
            async with asyncio.timeout(seconds):
                while part not in self.data:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ConformanceFailure(
                f"expected {part!r} to be printed within {seconds:.0f} s; seen {_short(bytes(self.data))}"
            ) from None


class CheckContext:
    """What a check gets: one environment, and helpers to use it."""

    def __init__(self, subject: BackendUnderTest, environment: Environment) -> None:
        self.subject = subject
        self.environment = environment
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Tell the reader of the report something that breaks no rule."""
        self.notes.append(text)

    async def run(
        self, command: str, *, stdin: bytes | None = None, cwd: str | None = None, seconds: float = COMMAND_SECONDS
    ) -> CommandOutcome:
        """Run a command in the foreground to its end."""
        request = CommandRequest(command=command, stdin=stdin, cwd=None if cwd is None else BackendPath(cwd))
        printed = OutputRecorder()
        started = time.monotonic()
        execution = await self.environment.start(request, printed)
        ended = await self.ended(execution, seconds=seconds, what=command)
        return CommandOutcome(output=bytes(printed.data), ended=ended, seconds=time.monotonic() - started)

    async def expect_output(
        self, command: str, expected: str | bytes, *, exit_code: int = 0, stdin: bytes | None = None
    ) -> None:
        """Expect a command to print exactly this and to exit with this code."""
        outcome = await self.run(command, stdin=stdin)
        wanted = expected.encode() if isinstance(expected, str) else expected
        equal(f"output of {_short(command)}", outcome.output, wanted)
        equal(f"exit code of {_short(command)}", outcome.ended.exit_code, exit_code)

    async def run_ok(self, command: str) -> None:
        """Run a command that prepares something; it must succeed."""
        outcome = await self.run(command)
        if outcome.ended.exit_code != 0:
            raise ConformanceFailure(f"{_short(command)} ended with {outcome.ended.exit_code}: {_short(outcome.text)}")

    async def ended(
        self, execution: Execution, *, seconds: float = COMMAND_SECONDS, what: str = "a command"
    ) -> CommandExit:
        """The exit of a command; fails if it does not end in time."""
        try:
            async with asyncio.timeout(seconds):
                return await execution.wait()
        except TimeoutError:
            raise ConformanceFailure(f"expected {_short(what)} to end within {seconds:.0f} s; it did not") from None

    @contextlib.asynccontextmanager
    async def started(self, request: CommandRequest, on_output: OnOutput) -> AsyncIterator[Execution]:
        """A command that is ended when the block is left."""
        execution = await self.environment.start(request, on_output)
        try:
            yield execution
        finally:
            await execution.terminate(0.1)

    async def running(self, mark: str) -> int:
        """How many processes with `mark` in their arguments run inside."""
        outcome = await self.run(_FIND_PROCESSES, stdin=mark.encode() + b"\n")
        return len(outcome.output.splitlines())

    async def becomes_running(self, mark: str, count: int) -> None:
        """Wait until at least this many processes with `mark` run inside."""
        seen = await self._settled(mark, lambda found: found >= count)
        if seen < count:
            raise ConformanceFailure(f"expected {count} processes to run inside; seen {seen}")

    async def stands_before(self, running: asyncio.Task[ForegroundResult], mark: str, count: int) -> bool:
        """Whether at least this many processes with `mark` run inside before that command ends."""
        while not running.done():
            if await self.running(mark) >= count:
                return not running.done()
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def none_left(self, mark: str, *, at_once: bool = False) -> None:
        """Expect that no process with `mark` runs inside any more."""
        seen = await self.running(mark) if at_once else await self._settled(mark, lambda found: found == 0)
        if seen:
            raise ConformanceFailure(f"expected the whole tree to be gone inside; {seen} of its processes still run")

    async def _settled(self, mark: str, enough: Callable[[int], bool]) -> int:
        deadline = time.monotonic() + GONE_SECONDS
        while True:
            seen = await self.running(mark)
            if enough(seen) or time.monotonic() > deadline:
                return seen
            await asyncio.sleep(_LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def folder(self) -> AsyncIterator[str]:
        """A new folder inside, not the session's; removed afterwards."""
        above = (await self.run('(builtin cd -P "${TMPDIR:-/tmp}" && builtin pwd)')).text.strip()
        name = f"{above}/toolcrib-check-{secrets.token_hex(6)}"
        await self.run_ok(f"mkdir -m 700 {name}")
        try:
            yield name
        finally:
            await self.run(f"command cd / ; command chmod -R u+rwx {name}; command rm -rf {name}", cwd="/")


def new_marker() -> str:
    """A unique number of seconds to sleep, by which processes are found."""
    return f"{7_000_000 + secrets.randbelow(1_000_000)}.{secrets.randbelow(1_000_000):06}"


def equal(what: str, seen: object, expected: object) -> None:
    """Expect two values to be equal."""
    if seen != expected:
        raise ConformanceFailure(f"{what}: expected {_short(expected)}, seen {_short(seen)}")


def expect(condition: bool, what: str, seen: object) -> None:
    """Expect a condition to hold; `what` describes it."""
    if not condition:
        raise ConformanceFailure(f"expected {what}; seen {_short(seen)}")


async def raises(kind: type[Exception], awaitable: Awaitable[object]) -> None:
    """Expect an awaitable to raise that error."""
    try:
        seen = await awaitable
    except kind:
        return
    except (OSError, ToolcribError) as error:
        raise ConformanceFailure(f"expected {kind.__name__}; seen {error!r}") from error
    raise ConformanceFailure(f"expected {kind.__name__}; seen {seen!r}")


def _short(value: object, limit: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"
