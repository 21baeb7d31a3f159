"""An environment that runs nothing: it answers from a script, and keeps what it was asked for."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.core.environments import (
    BackendPath,
    CommandExit,
    CommandRequest,
    EndReason,
    Execution,
    OnOutput,
    OrphanedProcess,
    TerminalSize,
)
from toolcrib.testing.fake_files import FakeFiles

__all__ = ["FakeEnvironment", "FakeExecution", "FakeProcess", "Reply"]

TERMINATED = 143


class Reply(Struct, frozen=True, kw_only=True):
    """What a scripted command does."""

    output: str = ""
    exit_code: int | None = 0
    """None: it runs until the test ends it, or somebody terminates it."""
    orphans: tuple[OrphanedProcess, ...] = ()
    note: str = ""
    fails_with: BaseException | None = None
    """Raised instead of starting anything."""


class FakeExecution:
    """A scripted command; see Execution. The test plays its part with `prints`, `ends` and `settles`."""

    def __init__(self, request: CommandRequest, on_output: OnOutput, *, pid: int) -> None:
        self.request = request
        self.id = request.id
        self.pid: int | None = pid
        self.written = b""
        """All that was typed into it."""
        self.input_is_closed = False
        self.reads_input = False
        """What `waits_for_input` answers."""
        self.is_stubborn = False
        """It takes no notice of `terminate`."""
        self.terminations = 0
        self.size: TerminalSize | None = request.terminal
        self._on_output = on_output
        self._printed = b""
        self._ended: asyncio.Future[CommandExit] = asyncio.get_running_loop().create_future()
        self._children_gone = asyncio.Event()
        self._children_gone.set()

    def prints(self, data: bytes | str) -> None:
        """Make it print something."""
        data = data.encode() if isinstance(data, str) else data
        self._printed += data
        self._on_output(data)

    def ends(
        self,
        exit_code: int = 0,
        reason: EndReason = "exited",
        *,
        orphans: tuple[OrphanedProcess, ...] = (),
        note: str = "",
    ) -> None:
        """Make it end; what it left behind runs until `settles` or `terminate`."""
        if self._ended.done():
            return
        if orphans:
            self._children_gone.clear()
        self._ended.set_result(CommandExit(exit_code=exit_code, reason=reason, orphans=orphans, note=note))

    def settles(self) -> None:
        """Make what it left behind end."""
        self._children_gone.set()

    def heard_by(self, on_output: OnOutput, offset: int) -> None:
        """Send its output to somebody else from now on, and what it printed from `offset` on."""
        self._on_output = on_output
        if self._printed[offset:]:
            on_output(self._printed[offset:])

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def wait(self) -> CommandExit:
        return await asyncio.shield(self._ended)

    async def write(self, data: bytes) -> None:
        if self._ended.done() or self.input_is_closed:
            raise BrokenPipeError("its input is closed")
        self.written += data

    async def close_input(self) -> None:
        self.input_is_closed = True

    async def resize(self, size: TerminalSize) -> None:
        if self.size is not None:
            self.size = size

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        self.terminations += 1
        if not self.is_stubborn:
            self.ends(TERMINATED, "killed")
            self.settles()

    async def settled(self) -> None:
        await self.wait()
        await self._children_gone.wait()

    async def waits_for_input(self) -> bool:
        return self.reads_input and not self._ended.done()

    async def abandon(self) -> None:
        self._on_output = _nobody


class FakeProcess:
    """A scripted program beside the session; see EngineProcess."""

    pid = None

    def __init__(self, exit_code: int | None) -> None:
        self.written = b""
        self.input_is_closed = False
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if exit_code is not None:
            self.ends(exit_code)

    def ends(self, exit_code: int = 0) -> None:
        """Make it end."""
        if not self._ended.done():
            self._ended.set_result(exit_code)

    async def write(self, data: bytes) -> None:
        if self.input_is_closed or self._ended.done():
            raise BrokenPipeError("its input is closed")
        self.written += data

    async def close_input(self) -> None:
        self.input_is_closed = True

    async def resize(self, size: TerminalSize) -> None:
        """Nothing: it has no terminal."""

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def abandon(self) -> None:
        """Nothing is held."""


class FakeEnvironment(FakeFiles):
    """A place in memory; see Environment. `replies` says what each command does, `default` what all others do.

    environment = FakeEnvironment({"make": Reply(output="done\\n")})
    ...
    assert environment.commands == ["make"]
    """

    kind = "fake"
    isolated = True

    def __init__(
        self, replies: Mapping[str, Reply] | None = None, *, default: Reply | None = None, cwd: str = "/work"
    ) -> None:
        super().__init__()
        self.replies = dict(replies or {})
        self.default = default or Reply()
        self.commands: list[str] = []
        """Every command that was started, in order."""
        self.executions: dict[str, FakeExecution] = {}
        """The same, by id."""
        self.programs: list[str] = []
        """Every program that was started beside the session, as a shell line."""
        self.is_open = False
        self.closings = 0
        self._cwd = BackendPath(cwd)

    @property
    def cwd(self) -> BackendPath:
        return self._cwd

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        self.closings += 1
        for execution in self.executions.values():
            await execution.terminate()

    async def start(self, request: CommandRequest, on_output: OnOutput) -> FakeExecution:
        reply = self.replies.get(request.command, self.default)
        self.commands.append(request.command)
        if reply.fails_with is not None:
            raise reply.fails_with
        number = len(self.commands)
        if not request.id:
            request = replace(request, id=f"cmd_{number:012x}")
        execution = self.executions[request.id] = FakeExecution(request, on_output, pid=number)
        if reply.output:
            execution.prints(reply.output)
        if reply.exit_code is not None:
            execution.ends(reply.exit_code, orphans=reply.orphans, note=reply.note)
        return execution

    async def reattach(self, command_id: str, on_output: OnOutput, *, offset: int = 0) -> Execution | None:
        execution = self.executions.get(command_id)
        if execution is None or execution.request.mode != "background":
            return None
        execution.heard_by(on_output, offset)
        return execution

    async def spawn(self, argv: Sequence[str], *, on_output: OnOutput) -> FakeProcess:
        """Start a program; it does what `replies` says about its arguments as one shell line."""
        line = shlex.join(argv)
        reply = self.replies.get(line, self.default)
        self.programs.append(line)
        if reply.fails_with is not None:
            raise reply.fails_with
        if reply.output:
            on_output(reply.output.encode())
        return FakeProcess(reply.exit_code)

    def address(self) -> Mapping[str, str]:
        return {"kind": self.kind, "folder": f"fake-{id(self):x}"}


def _nobody(_: bytes) -> None:
    """Where the output of an abandoned command goes."""
